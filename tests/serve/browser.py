"""Chromium, and a server whose toy model takes any text, for tests of the page."""

import json
import time
from contextlib import contextmanager

from starlette.responses import JSONResponse

from lastword.errors import PromptError
from lastword.models.toy import Letters
from lastword.serve.request import ServerError
from tests.serve.conftest import serving
from tests.serve.helpers import Misbehaving

PAUSE = 0.01  # seconds per forward pass, so that the browser shows them


class AnyText(Letters):
    """The tokenizer of the toy model, for which every text is "abc".

    A text with REFUSE is rejected, the answer to one with BREAK fails after two tokens, and tokens of the answer to
    one with LONG have many words.
    """

    def __init__(self, chat=True, words=None):
        self.chat_template = "a template" if chat else None
        self.words, self.prompt = words, ""

    def encode(self, text):
        if "REFUSE" in text:
            raise PromptError("max_tokens is 0; give a whole number from 1 on")
        self.prompt = text
        return [0, 1, 2]

    def chat(self, messages, *, continue_last=False):
        return self.encode(messages[-1]["content"])

    def decode(self, ids, **options):
        if "BREAK" in self.prompt and len(ids) > 2:
            raise ValueError("of a test")
        words = (
            ["as many words as a line has, and then as many again, so that it must wrap "]
            if "LONG" in self.prompt
            else self.words
        )
        if words is None:
            return super().decode(ids, **options)
        return "".join(words[token % len(words)] for token in ids)


class SlowToy(Misbehaving):
    """The toy model with a pause per forward pass."""

    default_max_new_tokens = 64
    single_turn = False


class Recorder:
    """ASGI middleware that records the posted bodies, and fails requests to `faults`, a mapping from paths.

    A fault is an error of the server, or the number of messages after which a response ends; if it is negative, the
    connection is closed.
    """

    def __init__(self, app, bodies, faults):
        self.app, self.bodies, self.faults = app, bodies, faults

    async def __call__(self, scope, receive, send):
        messages, fault = 0, self.faults.get(scope["path"])

        async def record():
            message = await receive()
            if message.get("body"):
                self.bodies.append((scope["path"], json.loads(message["body"])))
            return message

        async def cut(message):
            nonlocal messages
            messages += 1
            if messages == abs(fault) and fault < 0:
                raise RuntimeError("of a test")
            if messages == fault:
                message = message | {"more_body": False}
            if messages <= abs(fault):
                await send(message)

        if isinstance(fault, Exception):
            failure = ServerError.of(fault)
            return await JSONResponse(failure.body, failure.kind.status, failure.headers)(scope, record, send)
        return await self.app(scope, record, send if fault is None else cut)


@contextmanager
def page_server(*, keys=(), **options):
    """Run a server; its `bodies` are the posted ones with their paths, its `faults` those of a `Recorder`."""
    model, bodies, faults = SlowToy(PAUSE), [], {}
    model.tokenizer = AnyText(**options)
    with serving(model, keys=keys, wrap=lambda app: app.add_middleware(Recorder, bodies=bodies, faults=faults)) as one:
        one.model, one.bodies, one.faults = model, bodies, faults
        yield one


class Browser:
    """Chromium, with the few methods that the tests need."""

    def __init__(self, driver):
        from selenium.webdriver.common.by import By
        from selenium.webdriver.common.keys import Keys

        self.driver, self.keys, self._css = driver, Keys, By.CSS_SELECTOR

    def open(self, address, width=1200, height=840, **media):
        self.size(width, height)
        features = [{"name": f"prefers-{k.replace('_', '-')}", "value": v} for k, v in media.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(address)

    def open_page(self, server, **options):
        """Open a server's page and wait for the name of its model."""
        self.open(server.url, **options)
        self.until(lambda: self.one("#model").text == "toy", "the model's name")
        self.complaints()

    def size(self, width, height):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def all(self, css):
        return self.driver.find_elements(self._css, css)

    def one(self, css, seconds=20):
        self.until(lambda: any(found.is_displayed() for found in self.all(css)), css, seconds)
        return next(found for found in self.all(css) if found.is_displayed())

    def until(self, true, what="", seconds=20):
        last = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < last, f"waited for {what}"
            time.sleep(0.02)

    def run(self, script, *given):
        return self.driver.execute_script(f"return {script}", *given)

    def button(self, text):
        """Return the last button with this text, scrolled into view."""
        found = [button for button in self.all("button") if button.text == text and button.is_displayed()]
        self.run("arguments[0].scrollIntoView({block: 'center'})", found[-1])
        return found[-1]

    def ask(self, prompt):
        box = self.one("#prompt")
        box.send_keys(prompt)
        box.send_keys(self.keys.ENTER)

    def answer(self, number=1):
        """Wait until so many answers are finished, and return the tokens of the last."""
        self.until(lambda: len(self.all(".actions")) == number, f"answer {number}", 40)
        return self.tokens()

    def tokens(self, lane=1):
        """The texts of the answer's tokens, up to its end."""
        css = f".turn:last-child .lane:nth-of-type({lane}) .canvas .token:not(.mask):not(.after)"
        return [token for token in self.texts(css) if token != "end"]

    def texts(self, css):
        return self.run("[...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", css)

    def in_view(self, css):
        """Return whether an element is within the window, and its middle is not covered."""
        return self.run(
            """((element) => {
            const { left, right, top, bottom } = element.getBoundingClientRect();
            const inside = left >= 0 && top >= 0 && right <= innerWidth && bottom <= innerHeight && bottom > top;
            const line = element.getClientRects()[0];  // of text that wraps
            const at = document.elementFromPoint((line.left + line.right) / 2, (line.top + line.bottom) / 2);
            return inside && element.contains(at);
        })(document.querySelector(arguments[0]))""",
            css,
        )

    def complaints(self):
        return [line for line in self.driver.get_log("browser") if line["level"] == "SEVERE"]
