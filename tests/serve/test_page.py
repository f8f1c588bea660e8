"""The page at `/`, and replays, in a real browser."""

import ast
import json
import os
import re
import shlex
import shutil
import time
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest

import lastword
from lastword.errors import PromptError
from lastword.models.toy import Letters
from lastword.recipe.registry import RECIPES
from lastword.serve.app import render_page
from lastword.viz.replay import RUNS
from tests.serve.conftest import is_idle, serving
from tests.serve.helpers import Misbehaving

ODD = ["</script><script>alert(1)</script>", "\"'&", "\u202eabc", "\0", "<b>bold</b>", " "]
MAX_PICTURE_BYTES = 150_000
PAUSE = 0.01  # seconds per forward pass, so that the browser shows them


# ---- a server whose toy model takes any text ----


class AnyText(Letters):
    """The tokenizer of the toy model, for which every text is "abc".

    A text with REFUSE is rejected, and the answer to one with BREAK fails after two tokens.
    """

    def __init__(self, chat=True, words=None):
        self.chat_template = "a template" if chat else None
        self.words, self.breaks = words, False

    def encode(self, text):
        if "REFUSE" in text:
            raise PromptError("max_tokens is 0; give a whole number from 1 on")
        self.breaks = "BREAK" in text
        return [0, 1, 2]

    def chat(self, messages, *, continue_last=False):
        return self.encode(messages[-1]["content"])

    def decode(self, ids, **options):
        if self.breaks and len(ids) > 2:
            raise ValueError("of a test")
        if self.words is None:
            return super().decode(ids, **options)
        return "".join(self.words[token % len(self.words)] for token in ids)


class SlowToy(Misbehaving):
    """The toy model with a pause per forward pass."""

    default_max_new_tokens = 64


class Recorder:
    """ASGI middleware that records the posted bodies."""

    def __init__(self, app, bodies):
        self.app, self.bodies = app, bodies

    async def __call__(self, scope, receive, send):
        async def record():
            message = await receive()
            if message.get("body"):
                self.bodies.append((scope["path"], json.loads(message["body"])))
            return message

        await self.app(scope, record, send)


@contextmanager
def page_server(*, keys=(), **options):
    """Run a server; its `bodies` are the posted ones with their paths."""
    model, bodies = SlowToy(PAUSE), []
    model.tokenizer = AnyText(**options)
    with serving(model, keys=keys, wrap=lambda app: app.add_middleware(Recorder, bodies=bodies)) as server:
        server.model, server.bodies = model, bodies
        yield server


# ---- what can be seen without a browser ----


def test_the_page_is_one_file_that_asks_nobody_else():
    text = render_page()
    assert re.findall(r"https?://[^\"'` )\\]+", text) == ["http://www.w3.org/2000/svg"] * 2
    assert "connect-src 'self'" in text
    assert "innerHTML" not in text
    assert "alert(" not in text
    assert "{{known}}" not in text
    assert "/*player" not in text


def test_the_page_knows_the_recipes_and_brings_a_replay_without_runs():
    known = json.loads(re.search(r'id="known">(.*?)</script>', render_page(), re.S)[1])
    assert known["recipes"].keys() == RECIPES.keys()
    assert known["replay"].count(RUNS) == 1
    assert "survival" in known["lengths"]


# ---- in a browser ----


class Browser:
    """Chromium, with the few things the tests ask of it."""

    def __init__(self, driver):
        from selenium.webdriver.common.by import By
        from selenium.webdriver.common.keys import Keys

        self.driver, self.keys, self._css = driver, Keys, By.CSS_SELECTOR

    def open(self, address, width=1200, height=840, **media):
        self.size(width, height)
        features = [{"name": f"prefers-{k.replace('_', '-')}", "value": v} for k, v in media.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(address)

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

    def ask(self, prompt):
        box = self.one("#prompt")
        box.send_keys(prompt)
        box.send_keys(self.keys.ENTER)

    def answer(self):
        self.one(".actions")
        return self.tokens()

    def tokens(self, lane=1):
        """The texts of the answer's tokens, up to its end."""
        css = f".answer:last-of-type .lane:nth-of-type({lane}) .canvas .token:not(.mask):not(.after)"
        return [token for token in self.texts(css) if token != "end"]

    def texts(self, css):
        return self.run("[...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", css)

    def complaints(self):
        return [line for line in self.driver.get_log("browser") if line["level"] == "SEVERE"]


@pytest.fixture(scope="module")
def downloads(tmp_path_factory):
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def browser(downloads):
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs the package selenium")
    programs = [shutil.which("chromium"), shutil.which("chromedriver")]
    if None in programs:
        pytest.skip("needs the program chromium: install chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    options.add_argument("--headless=new")
    options.add_argument("--disable-dev-shm-usage")
    options.add_argument("--hide-scrollbars")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # its own sandbox does not run as root
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.chrome.service.Service(programs[1])
    driver = webdriver.Chrome(options=options, service=service)
    yield Browser(driver)
    driver.quit()


@pytest.fixture(scope="module")
def server():
    with page_server() as running:
        yield running


@pytest.fixture
def opened(browser, server):
    browser.open(server.url)
    browser.until(lambda: browser.one("#model").text == "toy", "the model's name")
    browser.complaints()
    return browser


def no_sideways_scroll(browser):
    wide = browser.run("[document.documentElement.scrollWidth, innerWidth]")
    return wide[0] <= wide[1]


@pytest.mark.full
def test_a_prompt_is_sent_and_tokens_appear(opened, server):
    opened.ask("hello")
    opened.until(lambda: opened.tokens() and opened.all(".canvas .mask"), "an answer half done")
    assert opened.one("#send").text == "Stop"
    text = "".join(opened.answer())
    assert text == lastword.generate(server.model, [0, 1, 2]).text
    assert opened.all(".asked")[0].text == "hello"
    assert not opened.all(".canvas .mask")
    path, body = server.bodies[-1] if "chat" in server.bodies[-1][0] else server.bodies[-2]
    assert (path, body["stream"], body["diffusing"]) == ("/v1/chat/completions", True, True)
    marks = opened.one(".marks").text
    for word in ("mean", "median", "0.9 quantile", "planned"):
        assert word in marks
    assert "passes" in opened.one(".ledger").text
    assert not opened.complaints()


@pytest.mark.full
def test_a_conversation_goes_on(opened, server):
    opened.ask("one")
    first = "".join(opened.answer())
    opened.ask("two")
    opened.until(lambda: len(opened.all(".actions")) == 2, "the second answer")
    sent = [body["messages"] for path, body in server.bodies if "chat" in path][-1]
    assert [one["role"] for one in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"] == first


@pytest.mark.full
def test_two_canvases_race(opened, server):
    opened.one("input[value=race]").click()
    size = opened.one("#canvas-size")
    size.clear()
    size.send_keys("60")
    opened.one("#length").send_keys("survival:60")
    opened.ask("who is first")
    opened.until(lambda: opened.tokens(1) and opened.tokens(2), "both at work")
    assert "times fewer tokens computed" in opened.one(".verdict[role=status]").text
    assert len(opened.all(".ledger")) == 2
    assert "done first" in opened.all(".lane-state")[0].text
    lengths = [body["length"] for path, body in server.bodies if "chat" in path and "length" in body]
    assert sorted(lengths) == ["fixed:60", "survival:60"]
    assert not opened.complaints()


@pytest.mark.full
def test_tokens_are_coloured_by_confidence_and_by_pass(opened):
    opened.ask("hello")
    opened.answer()
    assert opened.all(".colour-confidence .canvas .token[class*=' s']")
    opened.one("input[value=pass]").click()
    assert not opened.all(".colour-confidence .canvas")
    token = opened.all(".colour-pass .canvas .token")[0]
    number = opened.run("getComputedStyle(arguments[0], '::after').content", token)
    assert number.strip('"') == token.get_attribute("data-pass")
    assert "filled in pass" in opened.one(".legend").text


@pytest.mark.full
def test_an_error_is_shown_kindly(opened):
    opened.ask("REFUSE")
    said = opened.one(".trouble")
    assert "max_tokens is 0; give a whole number from 1 on" in said.text
    assert said.get_attribute("role") == "alert"
    opened.ask("hello")
    opened.answer()


@pytest.mark.full
def test_an_error_half_way_leaves_what_was_written(opened):
    opened.ask("BREAK")
    assert "failed" in opened.one(".trouble").text
    assert opened.all(".canvas .token")
    opened.one(".trouble button")


@pytest.mark.full
def test_a_server_that_is_gone_is_no_riddle(browser):
    with page_server() as running:
        browser.open(running.url)
        browser.until(lambda: browser.one("#model").text == "toy")
    browser.ask("hello")
    assert "cannot be reached" in browser.one(".trouble").text


@pytest.mark.full
def test_a_key_is_asked_for_and_used(browser):
    with page_server(keys=["sesame"]) as running:
        browser.open(running.url)
        browser.one("#key").send_keys("wrong" + browser.keys.ENTER)
        browser.until(lambda: browser.one("#key").get_attribute("value") == "")
        browser.one("#key").send_keys("sesame" + browser.keys.ENTER)
        browser.until(lambda: browser.one("#model").text == "toy")
        assert not browser.one("body").find_element("id", "key-card").is_displayed()
        browser.ask("hello")
        browser.answer()
        assert "sesame" not in browser.one("#call").text
        browser.run("sessionStorage.clear()")


@pytest.mark.full
def test_a_model_without_a_template_is_asked_for_completions(browser):
    with page_server(chat=False) as running:
        browser.open(running.url)
        browser.until(lambda: browser.one("#model").text == "toy")
        browser.ask("hello")
        browser.answer()
        assert running.bodies[-1][1].get("prompt") == "hello"
        assert len(browser.all(".asked")) == 1


@pytest.mark.full
def test_all_of_it_works_by_keyboard(opened, server):
    from selenium.webdriver.common.action_chains import ActionChains

    def press(*keys):
        ActionChains(opened.driver).send_keys(*keys).perform()

    keys, focused = opened.keys, "document.activeElement"
    for _ in range(20):
        press(keys.TAB)
        if opened.run(f"{focused}.id") == "prompt":
            break
    press("hello", keys.TAB, keys.ARROW_RIGHT)
    assert opened.run(f"{focused}.value") == "race"
    press(keys.TAB)
    assert opened.run(f"{focused}.id") == "canvas-size"
    press(keys.TAB)
    assert opened.run(f"{focused}.id") == "send"
    assert opened.run(f"getComputedStyle({focused}).outlineStyle") == "solid"
    press(keys.ENTER)
    opened.until(lambda: opened.tokens(), "the first token")
    press(keys.ESCAPE)
    opened.until(lambda: "Stopped" in opened.one(".answer").text, "the word that it stopped")
    opened.until(lambda: is_idle(server.engine), "the server to free the row")
    opened.run("document.querySelector('.canvas .token').focus()")
    press(keys.ARROW_RIGHT)
    assert opened.one(".told").text.startswith("slot 2 of")


@pytest.mark.full
def test_enter_while_an_answer_is_made_neither_stops_it_nor_loses_the_text(opened):
    opened.ask("hello")
    opened.until(lambda: opened.one("#send").text == "Stop", "a start")
    opened.ask("and then")
    assert opened.answer()
    assert opened.one("#prompt").get_attribute("value") == "and then"
    assert "Stopped" not in opened.one(".answer").text


@pytest.mark.full
def test_every_control_has_a_name(opened):
    opened.ask("hello")
    opened.answer()
    nameless = opened.run(
        "[...document.querySelectorAll('input, select, textarea, button')].filter((e) => !("
        "(e.labels && e.labels.length) || e.getAttribute('aria-label') || e.textContent.trim())).length"
    )
    assert nameless == 0


@pytest.mark.full
def test_a_phone_needs_no_sideways_scroll(browser, server):
    browser.open(server.url, width=360, height=740)
    browser.until(lambda: browser.one("#model").text == "toy")
    assert no_sideways_scroll(browser)
    browser.one("input[value=race]").click()
    browser.ask("a_very_long_word_" * 12)
    browser.one(".actions", 40)
    assert no_sideways_scroll(browser)
    browser.ask("REFUSE")
    browser.one(".trouble")
    assert no_sideways_scroll(browser)


def luminance(colour):
    parts = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_every_colour(browser, server, scheme):
    browser.open(server.url, color_scheme=scheme)
    browser.until(lambda: browser.one("#model").text == "toy")
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (luminance(paper) < 0.2) == (scheme == "dark")
    pairs = browser.run("""((root) => {
        document.body.append(root);
        const colours = (e) => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor];
        const found = [colours(document.querySelector("#send"))];
        for (const [mode, kinds] of [["confidence", "s0 s1 s2 s3 s4"], ["pass", "p0 p1 p2 p3 p4 p5"]])
          for (const kind of kinds.split(" ")) {
            root.className = `colour-${mode}`;
            const token = root.appendChild(document.createElement("span"));
            token.className = `token ${kind}`;
            found.push(colours(token));
          }
        root.remove();
        return found;
    })(document.createElement("div"))""")
    assert len(pairs) == 12
    for ink, ground in pairs:
        light, dark = sorted((luminance(ink), luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)


@pytest.mark.full
def test_the_call_can_be_copied(opened):
    opened.one("#prompt").send_keys('it\'s "quoted" \\ $HOME')
    opened.one("#length").send_keys("fixed:9")
    words = shlex.split(opened.one("#call").text)
    body = json.loads(words[words.index("-d") + 1])
    assert body["messages"][0]["content"] == 'it\'s "quoted" \\ $HOME'
    assert body["length"] == "fixed:9"
    opened.one("input[value=python]").click()
    calls = [node for node in ast.walk(ast.parse(opened.one("#call").text)) if isinstance(node, ast.Call)]
    create = next(call for call in calls if getattr(call.func, "attr", "") == "create")
    given = {one.arg: ast.literal_eval(one.value) for one in create.keywords}
    assert given.pop("extra_body") == {"length": "fixed:9"}
    assert given == {key: value for key, value in body.items() if key != "length"}


@pytest.mark.full
def test_a_replay_is_saved_and_plays(browser, downloads):
    with page_server(words=ODD) as running:
        browser.open(running.url)
        browser.until(lambda: browser.one("#model").text == "toy")
        browser.one("input[value=race]").click()
        browser.ask("</script> says the prompt")
        shown = browser.answer()
        saving = browser.one(".actions button")
        browser.run("arguments[0].scrollIntoView({block: 'center'})", saving)
        saving.click()
    file = downloads / "lastword-replay.html"
    browser.until(file.is_file, "the file")
    browser.open(file.as_uri(), reduced_motion="reduce")
    assert browser.one("#prompt").text == "</script> says the prompt"
    assert len(browser.all(".lane")) == 2
    assert "columns 0 of" in browser.one(".where").text
    browser.one("[aria-label=Play]")
    browser.run("document.querySelector('select').value = 8")
    browser.one("[aria-label=Play]").click()
    browser.until(lambda: not browser.all(".canvas .mask"), "its end", 40)
    lane = ".lane:first-of-type .canvas .token:not(.mask):not(.after):not(.end)"
    assert browser.texts(lane) == shown
    assert "<b>bold</b>" in "".join(shown)
    assert not browser.complaints()


@pytest.mark.full
def test_a_replay_of_python_plays_steps_and_scrubs(browser, tmp_path):
    model = lastword.load("toy")
    answer = lastword.generate(model, "abc", length="survival:30", frames=True)
    browser.open(answer.replay(tmp_path / "run.html").as_uri())
    browser.until(lambda: not browser.one(".where").text.startswith("pass 0 "), "it to play by itself")
    browser.one("[aria-label=Pause]").click()
    script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
    for passes in (0, 3, answer.cost.forward_passes):
        browser.driver.execute_script(script, browser.one("input[type=range]"), passes)
        frame = answer.frames[passes]
        assert len(browser.all(".canvas .mask")) == frame.tokens.count(None)
        assert browser.one(".where").text == f"pass {passes} of {answer.cost.forward_passes}"
    browser.one("[aria-label='Step back']").click()
    assert len(browser.all(".canvas .mask")) == answer.frames[-2].tokens.count(None)
    for word in ("mean", "median", "0.9 quantile", "planned"):
        assert word in browser.one(".marks").text
    assert str(answer.cost.forward_passes) in browser.one(".ledger").text
    assert not browser.complaints()


@pytest.mark.full
def test_a_replay_moves_only_if_asked_where_motion_is_unwelcome(browser, tmp_path):
    answer = lastword.generate(lastword.load("toy"), "abc", length="fixed:9", frames=True)
    browser.open(answer.replay(tmp_path / "run.html").as_uri(), reduced_motion="reduce")
    time.sleep(0.5)
    assert browser.one(".where").text == "pass 0 of 9"


@pytest.mark.full
def test_the_picture_of_the_docs(browser, tmp_path, instruct):
    """LASTWORD_PAGE_PNG=docs/figures/page.png keeps it."""
    from PIL import Image

    with serving(instruct, name="tiny-llada-instruct") as running:
        browser.open(running.url, width=1180, height=940, color_scheme="light")
        browser.one("input[value=race]").click()
        browser.one("#examples button:nth-child(3)").click()
        browser.one("#prompt").send_keys(browser.keys.ENTER)
        browser.one(".verdict[role=status]", 120)
        browser.run("document.activeElement.blur()")
        browser.run("scrollTo(0, 0)")
        shot = Image.open(BytesIO(browser.driver.get_screenshot_as_png()))
    target = Path(os.environ.get("LASTWORD_PAGE_PNG", tmp_path / "page.png"))
    # The rare colours are the ones that say something.
    kept = Image.Quantize.MAXCOVERAGE
    shot.convert("RGB").quantize(200, method=kept, dither=Image.Dither.NONE).save(target, optimize=True)
    assert target.stat().st_size < MAX_PICTURE_BYTES
