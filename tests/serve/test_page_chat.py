"""Chats on the page at `/` in a real browser: what is sent, what stays in view, and errors."""

import pytest

from lastword.serve.request import ServerError
from tests.serve.browser import PAUSE, page_server
from tests.serve.conftest import is_idle

pytestmark = pytest.mark.slow

SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
both_sizes = pytest.mark.parametrize("opened", SIZES, indirect=True)
LONG_QUESTION = "LONG: a farmer has 17 sheep and buys 4 more every week. " * 20


@pytest.fixture(params=["phone", pytest.param("desktop", marks=pytest.mark.full)])
def opened(browser, page, request):
    """A browser on the page, in the size of a desktop or of a phone."""
    page.faults.clear()
    page.model.pause, page.model.single_turn = PAUSE, False
    width, height = SIZES[request.param]
    browser.open_page(page, width=width, height=height)
    browser.phone = request.param == "phone"
    return browser


def in_form(browser):
    return browser.one("#prompt").get_attribute("value")


def sent(page):
    """Return the contents of the messages of each request for an answer."""
    return [[one["content"] for one in body["messages"]] for path, body in page.bodies if "chat" in path]


def set_value(browser, css, value):
    script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"
    browser.driver.execute_script(script, browser.all(css)[0], value)


# ---- chats ----


def test_a_model_of_one_question_receives_one_question(opened, page):
    page.model.single_turn = True
    opened.open_page(page)
    opened.ask("one")
    opened.answer()
    assert "alone" not in opened.one(".turn").text
    opened.ask("two")
    opened.answer(2)
    assert sent(page)[-2:] == [["one"], ["two"]]
    assert "answers each question alone" in opened.one(".turn:last-child").text
    assert {len(body["messages"]) for path, body in page.bodies[-4:] if "lengths" in path} == {1}


def test_a_new_chat_forgets_the_conversation_and_keeps_the_draft(opened, page):
    opened.ask("one")
    opened.answer()
    opened.one("#prompt").send_keys("two")
    opened.button("New chat").click()
    assert not opened.all(".turn")
    assert opened.one("#welcome")
    assert not opened.all("#curve svg")
    assert (in_form(opened), opened.run("document.activeElement.id")) == ("two", "prompt")
    opened.one("#prompt").send_keys(opened.keys.ENTER)
    opened.answer()
    assert sent(page)[-1] == ["two"]


def test_a_new_chat_stops_the_answer(opened, page):
    page.model.pause = 0.5
    opened.ask("one")
    opened.until(lambda: not is_idle(page.engine), "a start")
    opened.button("New chat").click()
    opened.until(lambda: is_idle(page.engine), "the server to free the row", 8)
    page.model.pause = PAUSE
    assert (opened.all(".turn"), opened.one("#send").text) == ([], "Send")
    opened.ask("two")
    opened.answer()
    assert sent(page)[-1] == ["two"]


def test_an_answer_is_regenerated_with_another_seed(opened, page):
    first_body = len(page.bodies)
    set_value(opened, "#temperature", "1")
    set_value(opened, "#seed", "1")
    opened.ask("one")
    first = opened.answer()
    opened.button("Regenerate").click()
    opened.until(lambda: not opened.all(".actions"), "a start")
    second = opened.answer()
    seeds = [body["seed"] for path, body in page.bodies[first_body:] if "chat" in path]
    assert seeds[0] == 1 != seeds[1]
    assert str(seeds[1]) == opened.all("#seed")[0].get_attribute("value")
    assert first != second
    assert sent(page)[-1] == ["one"]
    assert len(opened.all(".turn")) == 1


def test_an_equal_answer_is_explained_and_only_the_last_is_regenerated(opened, page):
    opened.ask("one")
    opened.answer()
    opened.ask("two")
    opened.answer(2)
    assert [button.is_displayed() for button in opened.all(".again")] == [False, True]
    opened.button("Regenerate").click()
    opened.until(lambda: "The answer is the same" in opened.one(".turn:last-child").text, "the explanation")
    assert [len(messages) for messages in sent(page)[-2:]] == [3, 3]
    assert "set a temperature" in opened.one(".turn:last-child").text


def test_an_edited_question_replaces_what_follows_it(opened, page):
    opened.ask("one")
    opened.answer()
    opened.ask("two")
    opened.answer(2)
    edit = opened.all(".question button")[0]
    opened.run("arguments[0].click()", edit)
    box = opened.one(".question textarea")
    assert (box.get_attribute("value"), opened.run("document.activeElement === arguments[0]", box)) == ("one", True)
    box.send_keys(" and a half", opened.keys.ESCAPE)  # Escape cancels
    assert opened.texts(".asked") == ["one", "two"]
    opened.run("arguments[0].click()", edit)
    opened.one(".question textarea").send_keys(" more", opened.keys.ENTER)
    opened.answer()
    assert opened.texts(".asked") == ["one more"]
    assert sent(page)[-1] == ["one more"]


def test_a_question_can_be_edited_during_its_answer(opened, page):
    opened.ask("one")
    opened.until(opened.tokens, "the first token")
    opened.button("Edit").click()
    opened.one(".question textarea").send_keys(" more", opened.keys.ENTER)
    opened.until(opened.tokens, "the first token of the other answer")
    assert opened.one("#send").text == "Stop"
    assert opened.answer()
    assert (opened.texts(".asked"), opened.one("#send").text) == (["one more"], "Send")
    assert sent(page)[-1] == ["one more"]


# ---- what stays in view ----


@both_sizes
def test_question_curve_and_settings_stay_in_view(opened, page):
    opened.ask("before")
    opened.answer()
    if opened.phone:
        opened.run("document.querySelector('#choices-card summary').click()")  # sending closes the settings
    set_value(opened, "#temperature", "0.5")
    opened.ask(LONG_QUESTION)
    opened.until(lambda: len(opened.tokens()) > 20 and opened.all("#curve svg"), "a part of the answer")
    page.model.pause = 0.5  # so that the answer does not end during the checks
    places = [".turn:last-child .asked", "#curve svg", "#choices-card summary", "#send", "#new-chat"]
    places += ["#choices-now"] if opened.phone else ["#recipe", "#length", "#most", "#temperature", "#seed"]
    tops = []
    for block in ("start", "end"):  # wherever the reader scrolls within the answer
        opened.run("document.querySelectorAll('.turn')[1].scrollIntoView({block: arguments[0]})", block)
        tops.append(opened.run("document.querySelector('#turns').scrollTop"))
        assert [css for css in places if not opened.in_view(css)] == []
    assert tops[0] < tops[1]
    assert opened.one("#send").text == "Stop"
    assert "temperature 0.5" in opened.run("document.querySelector('#choices-now').textContent")
    page.model.pause = PAUSE
    opened.answer(2)
    opened.run("document.querySelectorAll('.turn')[1].scrollIntoView({block: 'end'})")
    assert [css for css in places if not opened.in_view(css)] == []


@both_sizes
def test_no_button_is_covered(opened):
    opened.ask(LONG_QUESTION)
    opened.answer()
    for index in range(len(opened.all(".turn button"))):
        opened.run("document.querySelectorAll('.turn button')[arguments[0]].focus()", index)
        assert opened.in_view(".turn button:focus"), index
    opened.run("[...document.querySelectorAll('.turn .canvas .token')].at(-1).focus()")
    assert opened.in_view(".token:focus")
    opened.run("document.querySelector('.turn .canvas .token').scrollIntoView({block: 'nearest'})")
    assert opened.in_view(".turn .canvas .token")


@both_sizes
def test_a_new_question_moves_to_the_top(opened):
    opened.ask(LONG_QUESTION)
    opened.answer()
    opened.ask("short")
    top = "document.querySelector(arguments[0]).getBoundingClientRect().top"
    opened.until(lambda: abs(opened.run(top, "#turns") - opened.run(top, ".turn:last-child")) < 2, "it at the top")
    opened.answer(2)


# ---- errors ----


ERRORS = {  # codes of the server, with the advice of the page
    "overloaded": "The server is busy. Try again in 7 seconds.",
    "invalid_request": "Change the question or the settings, then send it again.",
    "request_too_large": "Shorten the question, or start a new chat.",
    "context_length_exceeded": "Shorten the question, or start a new chat.",
    "model_not_found": "Reload this page: the server may serve another model now.",
    "request_timeout": "Check your connection, then try again.",
    "server_error": "Try again. If it fails again, ask the operator: the log of the server has the reason.",
    "draining": "The server is stopping. Try again when it has been started again.",
    "starting": "The server is loading its model. Try again in 7 seconds.",
    "replica_lost": "The server cannot answer now. Try again in 7 seconds.",
    "deadline_unreachable": "Set fewer most tokens or a faster recipe in the settings, then try again.",
    "deadline_exceeded": "Set fewer most tokens or a faster recipe in the settings, then try again.",
}


def test_every_error_says_what_to_do_and_keeps_the_question(opened, page):
    for code, advice in ERRORS.items():
        retry_after = 7 if "7 seconds" in advice else None
        error = ServerError(f"reason of {code}", code, retry_after=retry_after)
        page.faults["/v1/chat/completions"] = page.faults["/v1/lengths"] = error
        opened.button("New chat").click()
        set_value(opened, "#prompt", "")
        opened.ask("hello")
        box = opened.one(".trouble")
        assert box.get_attribute("role") == "alert"
        assert box.text.split("\n") == [f"No answer. reason of {code}", advice, "Try again"]
        assert f"reason of {code}" in opened.run("document.querySelector('#curve').textContent")
        assert (in_form(opened), opened.one("#send").text) == ("hello", "Send")
        assert opened.in_view(".trouble button")
    page.faults.clear()
    opened.one("#prompt").send_keys(opened.keys.ENTER)
    assert opened.answer()
    assert (opened.texts(".asked"), opened.all(".trouble"), in_form(opened)) == (["hello"], [], "")


def test_a_refusal_of_the_server_is_quoted(opened):
    opened.ask("REFUSE")
    assert "max_tokens is 0; give a whole number from 1 on" in opened.one(".trouble").text


def test_a_draft_is_kept_when_an_answer_fails(opened):
    opened.ask("BREAK")
    opened.one("#prompt").send_keys("a draft")
    assert "The answer broke off." in opened.one(".trouble").text
    assert (in_form(opened), opened.texts(".asked")) == ("a draft", ["BREAK"])


def test_an_error_event_leaves_what_was_written(opened):
    opened.ask("BREAK")
    text = opened.one(".trouble").text
    assert text.startswith("The answer broke off. ")
    assert "the log of the server has the reason" in text
    assert opened.tokens()
    assert in_form(opened) == "BREAK"


@pytest.mark.parametrize("fault", [6, -6], ids=["ended", "closed"])
def test_a_stream_that_breaks_off_is_no_answer(opened, page, fault):
    page.faults["/v1/chat/completions"] = fault
    opened.ask("hello")
    text = opened.one(".trouble").text
    assert "The connection broke off before the answer was complete." in text
    assert "What was written so far stays." in text
    assert opened.all(".canvas .token")
    assert (in_form(opened), opened.all(".actions")) == ("hello", [])
    page.faults.clear()
    opened.button("Try again").click()
    assert opened.answer()
    assert opened.texts(".asked") == ["hello"]


def test_an_answer_comes_back_when_regenerating_fails(opened, page):
    opened.ask("one")
    answer = opened.answer()
    page.faults["/v1/chat/completions"] = ServerError("the queue is full", "overloaded")
    opened.button("Regenerate").click()
    assert "Try again in a moment." in opened.one(".trouble").text
    assert (opened.tokens(), opened.texts(".asked")) == (answer, ["one"])
    page.faults.clear()
    opened.button("Try again").click()
    opened.until(lambda: not opened.all(".trouble"), "a start")
    assert opened.answer() == answer
    opened.ask("two")
    opened.answer(2)
    assert sent(page)[-1] == ["one", "".join(answer), "two"]


def test_an_answer_is_stopped(opened, page):
    opened.ask("one")
    opened.until(opened.tokens, "the first token")
    opened.one("#send").click()
    opened.until(lambda: "Stopped" in opened.one(".answer").text, "the word that it stopped")
    opened.until(lambda: is_idle(page.engine), "the server to free the row")
    assert opened.tokens()
    opened.button("Regenerate").click()
    opened.until(lambda: "Stopped" not in opened.one(".turn").text, "a start")
    assert opened.answer()


def test_a_server_without_a_model_keeps_the_question(browser, page):
    page.faults.clear()
    page.faults["/v1/models"] = ServerError("the model is not loaded", "starting", retry_after=5)
    browser.open(page.url)
    assert "The server is loading its model. Try again in 5 seconds." in browser.one(".trouble").text
    browser.ask("hello")
    browser.until(lambda: len(browser.all(".trouble")) == 1, "one message")
    assert (in_form(browser), browser.all(".turn")) == ("hello", [])
    page.faults.clear()
    browser.one("#prompt").send_keys(browser.keys.ENTER)
    browser.answer()
    assert (browser.texts(".asked"), browser.all(".trouble")) == (["hello"], [])


def test_a_server_that_is_gone(browser):
    with page_server() as running:
        browser.open_page(running)
    browser.ask("hello")
    assert "The server cannot be reached." in browser.one(".trouble").text
    assert "Check that the server is running" in browser.one(".trouble").text
    assert in_form(browser) == "hello"


def test_a_key_is_requested_and_used(browser):
    with page_server(keys=["sesame"]) as running:
        browser.open(running.url, width=390, height=844)
        assert "needs an API key" in browser.one("#key-says").text
        browser.one("#key").send_keys("wrong" + browser.keys.ENTER)
        browser.until(lambda: "does not accept this key" in browser.one("#key-says").text, "the refusal")
        assert browser.in_view("#key")
        assert browser.run("document.activeElement.id") == "key"
        browser.one("#key").send_keys("sesame" + browser.keys.ENTER)
        browser.until(lambda: browser.one("#model").text == "toy")
        assert not browser.all("#key-card")[0].is_displayed()
        browser.ask("hello")
        browser.answer()
        assert "sesame" not in browser.run("document.querySelector('#call').textContent")
        # Later the server no longer accepts the key.
        error = ServerError("the API key is wrong", "invalid_api_key")
        running.faults.update(dict.fromkeys(("/v1/chat/completions", "/v1/models", "/v1/lengths"), error))
        browser.ask("again")
        assert "Enter the key in the field above your message." in browser.one(".trouble").text
        assert "does not accept this key" in browser.one("#key-says").text
        assert browser.in_view("#key")
        browser.one("#key").send_keys("wrong" + browser.keys.ENTER)
        browser.until(lambda: browser.one("#key").get_attribute("value") == "")
        running.faults.clear()
        browser.one("#key").send_keys("sesame" + browser.keys.ENTER)
        browser.answer(2)
        assert (browser.texts(".asked"), browser.all(".trouble")) == (["hello", "again"], [])
        browser.run("sessionStorage.clear()")
