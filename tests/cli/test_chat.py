"""`lastword chat`: the same conversation with a model here and with a server."""

from __future__ import annotations

import io
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from rich.console import Console
from rich.text import Text

from lastword.cli import main
from lastword.cli.chat import Conversation, canvas_panel, printable, show
from lastword.cli.chat_backends import (
    CanvasUpdate,
    ChatOptions,
    ChatServerError,
    FinishedAnswer,
    LocalBackend,
    NewText,
    ServerBackend,
)
from lastword.errors import CapacityError, SettingError
from lastword.recipe.recipe import Recipe
from tests.serve.conftest import serving

QUESTION = "Solve for n: 4n + 3 = 35."
CAP = 6


@pytest.fixture(scope="module")
def instruct():
    import lastword

    return lastword.load("tiny-llada-instruct", device="cpu")


@pytest.fixture(scope="module")
def server(instruct):
    with serving(instruct, name="tiny", keys=["open"]) as running:
        yield running


@pytest.fixture
def lastword(capsys, monkeypatch):
    """Run the command line with lines to read: exit code, standard output, standard error."""

    def run(*arguments, lines=()):
        monkeypatch.setattr(sys, "argv", ["lastword", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        with pytest.raises(SystemExit) as left:
            main()
        output = capsys.readouterr()
        return left.value.code, output.out, output.err

    return run


def plain():
    return Console(file=io.StringIO(), force_terminal=False)


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def here(model, **wishes):
    return LocalBackend(model, "tiny", Recipe(), ChatOptions(**wishes))


def there(server, **wishes):
    return ServerBackend(server.url, "open", None, ChatOptions(**wishes))


def told(ledger):
    """What does not depend on the clock."""
    return {name: value for name, value in ledger.model_dump().items() if "seconds" not in name}


class Says:
    """An answerer that repeats the last turn, or does what it is told to."""

    name, has_chat_template = "echo", True

    def __init__(self):
        self.asked, self.closed, self.action = [], 0, None

    def answer(self, turns, *, frames):
        self.asked.append([dict(turn) for turn in turns])
        try:
            yield NewText("so ")
            if self.action is not None:
                raise self.action
            yield FinishedAnswer("so " + turns[-1]["content"], 2)
        finally:
            self.closed += 1

    def replay(self, path):
        raise SettingError("no replay")


def _eof():
    raise EOFError


def talk(answerer, *lines, **options):
    """Lines said one after the other; an exception among them is raised where it stands."""
    left = iter(lines)

    def read():
        line = next(left, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    conversation = Conversation(answerer, plain(), **options)
    conversation.run(read)
    return conversation


# The command


def test_lines_are_answered_and_the_ledger_stands_apart(lastword):
    code, out, err = lastword("chat", "-m", "toy", "--length", "fixed:5", lines=["abc", "", "abc"])
    assert code == 0
    assert out == "defgh\n" * 2
    assert "toy has no chat template: each line is a prompt without earlier" in err
    ledger = "[predicted no length, wrote 5 tokens; 5 passes, 40 columns, 1.00 tokens per forward; "
    assert err.count(ledger) == 2
    assert err.count("cut: the canvas was full]") == 2


def test_a_system_message_needs_a_chat_template(lastword):
    code, _, err = lastword("chat", "-m", "toy", "--system", "Be brief.")
    assert (code, "leave --system out" in err) == (1, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--url", "http://127.0.0.1:1"], "is the server running?"),
        (["--url", "ftp://here"], "is not the address of a server"),
        (["--url", "http://[::1"], "is not the address"),
        (["--recipe", "quick"], "no recipe called 'quick'"),
        (["--url", "http://127.0.0.1:1", "--recipe", "./none.json"], "cannot be read"),
        (["-m", "toy", "--temperature", "-1"], "temperature"),
    ],
)
def test_what_cannot_begin_is_one_line(lastword, options, words):
    code, out, err = lastword("chat", *options, lines=["abc"])
    assert (code, out) == (1, "")
    assert words in err
    assert err.count("\n") == 1


def test_the_command_asks_a_server_with_its_key(lastword, server, monkeypatch):
    monkeypatch.setenv("LASTWORD_API_KEY", "open")
    lines = [QUESTION, "/replay run.html", "/quit", "never"]
    code, out, err = lastword("chat", "--url", f"{server.url}/v1", "--max-tokens", "6", lines=lines)
    assert (code, out.count("\n")) == (0, 1)
    assert "wrote 6 tokens" in err
    assert "cut by --max-tokens" in err
    assert "a replay needs the model in this process" in err
    monkeypatch.setenv("LASTWORD_API_KEY", "shut")
    code, _, err = lastword("chat", "--url", server.url)
    assert (code, "the server (401): the API key is wrong" in err) == (1, True)
    monkeypatch.setenv("LASTWORD_API_KEY", "open")
    code, _, err = lastword("chat", "--url", server.url, "-m", "other")
    assert (code, "it has: tiny" in err) == (1, True)


# Here and there


def test_a_server_answers_as_the_model_does(instruct, server):
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    wishes = {"max_tokens": CAP, "temperature": 0.8, "seed": 3}
    for drawn in (False, True):
        ours = list(here(instruct, **wishes).answer(turns, frames=drawn))
        theirs = list(there(server, **wishes).answer(turns, frames=drawn))
        assert theirs[-1].text == ours[-1].text != ""
        assert theirs[-1].tokens == ours[-1].tokens == CAP
        assert told(theirs[-1].cost) == told(ours[-1].cost)
    frames = [event for event in ours if isinstance(event, CanvasUpdate)]
    assert [frame.forward_passes for frame in frames] == [*range(CAP + 1)]
    assert [e for e in theirs if isinstance(e, CanvasUpdate)][-1] == frames[-1]


def test_an_answer_without_text_is_one(server):
    first = "4 - 3 = 4, 4n + 3 = 35\n4n = 35 - 3 = 32\nn = 32 / 4 = 8\nFinal Answer: The final answer is $8$."
    said = [
        QUESTION,
        first,
        "And for 5n = 20?",
    ]  # it was trained on one turn, and says nothing in a second
    turns = [{"role": r, "content": c} for r, c in zip(("user", "assistant", "user"), said)]
    ended = list(there(server).answer(turns, frames=True))[-1]
    assert (ended.text, ended.tokens) == ("", 0)


def test_text_is_added_as_the_server_commits_it(server):
    heard = list(there(server, max_tokens=CAP).answer([{"role": "user", "content": QUESTION}], frames=False))
    assert "".join(event.text for event in heard if isinstance(event, NewText)) == heard[-1].text


def test_whoever_stops_listening_frees_the_slot(server):
    heard = there(server).answer([{"role": "user", "content": QUESTION}], frames=True)
    next(heard)
    assert server.engine.num_unfinished == 1
    heard.close()
    for _ in range(200):
        if not server.engine.num_unfinished:
            break
        threading.Event().wait(0.02)
    assert server.engine.num_unfinished == 0


def test_a_model_without_a_template_is_asked_line_by_line(toy):
    with serving(toy) as server:
        asked = ServerBackend(server.url, None, None, ChatOptions(length="fixed:5"))
        assert not asked.has_chat_template
        turns = [{"role": "user", "content": content} for content in ("uvw", "abc")]
        assert list(asked.answer(turns, frames=False))[-1].text == "defgh"


def test_seeds_are_drawn_anew_unless_one_is_given(toy):
    def seeds(**wishes):
        model = here(toy, length="fixed:2", **wishes)
        turns = [{"role": "user", "content": "abc"}]
        return {list(model.answer(turns, frames=False))[-1].cost.seed for _ in range(3)}

    assert seeds() == {0}
    assert seeds(temperature=0.5, seed=7) == {7}
    assert len(seeds(temperature=0.5)) == 3


def test_a_prompt_that_is_too_long_is_told_in_a_sentence(instruct, server, capsys):
    for answerer in (here(instruct), there(server)):
        talk(answerer, "abc " * 2000)
        (said,) = capsys.readouterr().err.splitlines()
        assert "tokens" in said
        assert "/reset" not in said  # there is nothing to forget
    with pytest.raises(CapacityError, match="positions"):
        list(here(instruct).answer([{"role": "user", "content": "abc " * 2000}], frames=False))


def test_a_conversation_that_is_too_long_is_told_how_to_begin_anew(capsys):
    answerer = Says()
    conversation = talk(answerer, "one")
    answerer.action = ChatServerError("prompt 0 has 900 tokens", "context_length_exceeded")
    lines = iter(["two"])
    conversation.run(lambda: next(lines, None) or _eof())
    assert capsys.readouterr().err.endswith("900 tokens; /reset begins a new conversation\n")


# The conversation


def test_a_conversation_goes_on_after_errors_and_forgets_what_got_no_answer(capsys):
    answerer = Says()
    conversation = talk(answerer, "one", system="S")
    answerer.action = ChatServerError("the server (429): busy")
    with pytest.raises(ChatServerError):
        conversation.handle("two")
    answerer.action = KeyboardInterrupt()
    conversation.handle("three")
    answerer.action = None
    conversation.handle("four")
    said = [turn["content"] for turn in answerer.asked[-1]]
    assert said == ["S", "one", "so one", "four"]
    assert answerer.closed == 4
    assert "stopped; the message was removed" in capsys.readouterr().err


def test_errors_are_sentences_and_the_next_line_is_read(capsys):
    answerer = Says()
    answerer.action = ChatServerError("the server (429): busy")
    talk(answerer, "one", "two")
    assert capsys.readouterr().err == "lastword: the server (429): busy\n" * 2


def test_a_second_interruption_leaves():
    answerer = Says()
    answerer.action = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        talk(answerer, "one", KeyboardInterrupt(), "never")
    assert len(answerer.asked) == 1


def test_commands(tmp_path, capsys):
    path = tmp_path / "said.json"
    answerer = Says()
    talk(answerer, "one", f"/save {path}", "/reset", "two", f"/save {path}", " /slash", system="S")
    assert [turn["content"] for turn in answerer.asked[1]] == ["S", "two"]
    assert answerer.asked[2][-1]["content"] == "/slash"
    data = json.loads(path.read_text())
    assert data["model"] == "echo"
    assert [turn["role"] for turn in data["messages"]] == ["system", "user", "assistant"]
    assert data["answers"] == [None]
    talk(answerer, f"/save {path}", "/save", "/sing", "/help", "/", "/quit", "never")
    lines = capsys.readouterr().err.splitlines()[-5:]
    words = ["exists; give", "needs the name", "no command /sing", "Ctrl-D", "no command /"]
    for line, said in zip(lines, words):
        assert said in line
    assert len(answerer.asked) == 3


def test_a_replay_is_written_of_the_last_answer(toy, tmp_path, capsys):
    path = tmp_path / "run.html"
    talk(here(toy, length="fixed:5"), f"/replay {path}", "abc", f"/replay {path}")
    assert "there is no answer to replay yet" in capsys.readouterr().err
    assert "a lastword replay" in path.read_text()


# What is seen


def test_on_a_terminal_the_canvas_is_redrawn(toy):
    console = terminal()
    turns = [{"role": "user", "content": "abc"}]
    show(here(toy, length="fixed:5").answer(turns, frames=True), console, "toy")
    seen = console.file.getvalue()
    assert "toy · canvas 5 · pass 0 · 5 masks left" in seen
    assert seen.rstrip().endswith("defgh")


def test_a_canvas_shows_masks_ends_and_what_is_new():
    drawn = CanvasUpdate(
        texts=["a", None, "b", "", "c"], filled_at=[1, None, 2, 2, 1], forward_passes=2, end=3
    )
    text = canvas_panel(drawn, "m").renderable
    assert isinstance(text, Text)
    assert text.plain == "a░b··"
    assert [str(span.style) for span in text.spans] == [
        "bright_black",
        "bold green",
        *["dim red"] * 2,
    ]


def test_nothing_that_a_model_writes_steers_the_terminal():
    assert printable("a\x1b[2Jb\n\tc\x07") == "a�[2Jb\n\tc�"
    console = terminal()
    show(iter([FinishedAnswer("a\x1b]0;title\x07b")]), console, "m")
    assert "\x1b]0" not in console.file.getvalue()


# Errors of a server


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b'data: {"choices": []}\n\n', "closed the connection before the end"),
        (200, b'data: {"error": {"message": "late\\nvery", "code": "x"}}\n\n', "the server: late very"),
        (502, b"<html>", "the server (502): it gave no reason; try again in 3 seconds"),
        (400, b'{"error": "text"}', "the server (400): it gave no reason"),
    ],
)  # fmt: skip
def test_whatever_a_server_says_becomes_a_sentence(status, body, words):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"data": [{"id": "m"}]}')

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Type", "text/event-stream" if status == 200 else "application/json")
            if status == 502:
                self.send_header("Retry-After", "3")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as stub:
        threading.Thread(target=stub.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{stub.server_port}"
        backend = ServerBackend(url, None, None, ChatOptions())
        with pytest.raises(ChatServerError) as error:
            list(backend.answer([{"role": "user", "content": "a"}], frames=False))
        stub.shutdown()
    assert str(error.value).replace(f"{url} ", "").startswith(words)


def test_chat_with_a_server_needs_no_torch():
    import subprocess

    code = "import sys, lastword.cli.chat_backends; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
