"""The page at `/`, and replays, in a real browser; test_page_chat.py tests chats and errors."""

import ast
import json
import os
import re
import shlex
import time
from io import BytesIO
from pathlib import Path

import pytest

import lastword
from lastword.recipe.registry import RECIPES
from lastword.serve.app import render_page
from lastword.viz.replay import RUNS
from tests.serve.browser import page_server
from tests.serve.conftest import is_idle, serving

ODD = ["</script><script>alert(1)</script>", "\"'&", "\u202eabc", "\0", "<b>bold</b>", " "]
MAX_PICTURE_BYTES = 150_000


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


@pytest.fixture
def opened(browser, page):
    browser.open_page(page)
    return browser


def no_sideways_scroll(browser):
    wide = browser.run("[document.documentElement.scrollWidth, innerWidth]")
    return wide[0] <= wide[1]


@pytest.mark.full
def test_a_prompt_is_sent_and_tokens_appear(opened, page):
    opened.ask("hello")
    opened.until(lambda: opened.tokens() and opened.all(".canvas .mask"), "an answer half done")
    assert opened.one("#send").text == "Stop"
    text = "".join(opened.answer())
    assert text == lastword.generate(page.model, [0, 1, 2]).text
    assert opened.all(".asked")[0].text == "hello"
    assert not opened.all(".canvas .mask")
    path, body = page.bodies[-1] if "chat" in page.bodies[-1][0] else page.bodies[-2]
    assert (path, body["stream"], body["diffusing"]) == ("/v1/chat/completions", True, True)
    marks = opened.one(".marks").text
    for word in ("mean", "median", "0.9 quantile", "planned"):
        assert word in marks
    assert "passes" in opened.one(".ledger").text
    assert not opened.complaints()


@pytest.mark.full
def test_a_conversation_goes_on(opened, page):
    opened.ask("one")
    first = "".join(opened.answer())
    opened.ask("two")
    opened.answer(2)
    sent = [body["messages"] for path, body in page.bodies if "chat" in path][-1]
    assert [one["role"] for one in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"] == first


@pytest.mark.full
def test_two_canvases_race(opened, page):
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
    lengths = [body["length"] for path, body in page.bodies if "chat" in path and "length" in body]
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
def test_a_model_without_a_template_is_asked_for_completions(browser):
    with page_server(chat=False) as running:
        browser.open_page(running)
        browser.ask("hello")
        browser.answer()
        assert running.bodies[-1][1].get("prompt") == "hello"
        assert len(browser.all(".asked")) == 1


@pytest.mark.full
def test_all_of_it_works_by_keyboard(opened, page):
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
    opened.until(lambda: is_idle(page.engine), "the server to free the row")
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
def test_a_phone_needs_no_sideways_scroll(browser, page):
    browser.open_page(page, width=360, height=740)
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
def test_text_can_be_read_on_every_colour(browser, page, scheme):
    browser.open_page(page, color_scheme=scheme)
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
        browser.open_page(running)
        browser.one("input[value=race]").click()
        browser.ask("</script> says the prompt")
        shown = browser.answer()
        browser.button("Save replay").click()
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
