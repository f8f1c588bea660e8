"""`lastword chat`: the same conversation with a model here and with a server."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from rich.console import Console

from lastword.cli.chat import Conversation, show
from lastword.cli.chat_backends import AnswerUpdate, LocalBackend, ServerBackend
from lastword.cli.options import ChatOptions
from lastword.errors import CapacityError, EngineError, SettingError
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


def console(*, terminal=False):
    return Console(file=io.StringIO(), force_terminal=terminal, width=100)


def local(model, **options):
    chat_options = ChatOptions(**options)
    return LocalBackend(model, "tiny", chat_options.build(), chat_options)


def remote(server, **options):
    return ServerBackend(server.url, "open", None, ChatOptions(**options))


def user(content):
    return [{"role": "user", "content": content}]


def untimed(cost):
    """The costs that both backends report and that do not depend on the clock."""
    names = ("predicted_length", "forward_passes", "tokens_computed", "tokens_per_forward", "recipe", "seed")
    return [cost[name] for name in (*names, "ended_by")]


class Echo:
    """A backend that repeats the last message, or raises `error`."""

    name, has_chat_template, error = "echo", True, None

    def __init__(self):
        self.requests, self.closed = [], 0

    def answer(self, messages, *, draw):
        self.requests.append([dict(message) for message in messages])
        try:
            yield AnswerUpdate("so ")
            if self.error is not None:
                raise self.error
            yield AnswerUpdate("so " + messages[-1]["content"], tokens=2)
        finally:
            self.closed += 1

    def replay(self, path):
        raise SettingError("no replay")


def talk(backend, *lines, **options):
    """Handle lines one after the other; an exception among them is raised where it stands."""
    remaining = iter(lines)

    def read():
        line = next(remaining, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    conversation = Conversation(backend, console(), **options)
    conversation.run(read)
    return conversation


# The command


def lines(*texts):
    return "".join(f"{text}\n" for text in texts)


def test_lines_are_answered_and_costs_go_to_standard_error(command):
    code, out, err = command("chat", "-m", "toy", "--length", "fixed:5", stdin=lines("abc", "", "abc"))
    assert code == 0
    assert out == "defgh\n" * 2
    assert "toy has no chat template: each line is a prompt without earlier" in err
    costs = "[predicted no length, wrote 5 tokens; 5 forward passes, 40 tokens computed, 1.00 tokens per forward pass; "
    assert err.count(costs) == 2
    assert err.count("cut: the canvas was full]") == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--base-url", "http://127.0.0.1:1"], "is the server running?"),
        (["--url", "ftp://here"], "give http:// or https://"),
        (["--url", "http://[::1"], "http://[::1"),
        (["--recipe", "quick"], "no recipe called 'quick'"),
        (["--url", "http://127.0.0.1:1", "--recipe", "./none.json"], "cannot be read"),
        (["-m", "toy", "--temperature", "-1"], "temperature"),
        (["-m", "toy", "--system", "Be brief."], "leave --system out"),
    ],
)
def test_a_chat_that_cannot_start_ends_with_one_line(command, options, words):
    code, out, err = command("chat", *options, stdin="abc\n")
    assert (code, out) == (1, "")
    assert words in err
    assert err.count("\n") == 1


def test_a_server_is_used_with_its_key(command, server, monkeypatch):
    monkeypatch.setenv("LASTWORD_API_KEY", "open")
    text = lines(QUESTION, "/replay run.html", "/quit", "never")
    code, out, err = command("chat", "--url", f"{server.url}/v1", "--max-new-tokens", "6", stdin=text)
    assert (code, out.count("\n")) == (0, 1)
    assert "wrote 6 tokens" in err
    assert "cut by --max-new-tokens" in err
    assert "a replay needs the model in this process" in err
    code, _, err = command("chat", "--url", server.url, "-m", "other")
    assert (code, "it has: tiny" in err) == (1, True)
    for key, reason in (("shut", "the server (401): "), ("caf\u00e9", "the API key has characters")):
        monkeypatch.setenv("LASTWORD_API_KEY", key)
        code, _, err = command("chat", "--url", server.url)
        assert (code, reason in err) == (1, True)


# Local and server


def test_a_server_answers_as_the_model_does(instruct, server):
    messages = [{"role": "system", "content": "Be brief."}, *user(QUESTION)]
    options = {"max_new_tokens": CAP, "temperature": 0.8, "seed": 3}
    for draw in (False, True):
        ours = list(local(instruct, **options).answer(messages, draw=draw))
        theirs = list(remote(server, **options).answer(messages, draw=draw))
        assert theirs[-1].text == ours[-1].text != ""
        assert theirs[-1].tokens == ours[-1].tokens == CAP
        assert untimed(theirs[-1].cost) == untimed(ours[-1].cost)
    passes = [update.canvas.forward_passes for update in ours]
    assert sorted(set(passes)) == [*range(CAP + 1)]
    ours, theirs = ours[-1].canvas, theirs[-1].canvas
    assert (theirs.filled_at, theirs.end) == (list(ours.filled_at), ours.end)
    assert [text or "" for text in theirs.texts] == list(ours.texts)


def test_a_stop_string_ends_an_answer_here_and_at_a_server(instruct, server):
    options = {"max_new_tokens": CAP, "recipe": "paper", "length": "fixed:6"}
    *_, whole = local(instruct, **options).answer(user(QUESTION), draw=False)
    stop = whole.text[2:4]
    for backend in (local, remote):
        made = backend(instruct if backend is local else server, **options, stop=["never so", stop])
        *_, final = made.answer(user(QUESTION), draw=False)
        assert final.text == whole.text.partition(stop)[0]
        assert final.cost["ended_by"] == "stop"
        assert final.tokens < whole.tokens


@pytest.mark.parametrize("sampling", [{"top_k": 3}, {"top_p": 0.5}], ids=str)
def test_filters_reach_the_model_here_and_at_a_server(instruct, server, sampling):
    options = {"max_new_tokens": CAP, "temperature": 3.0, "seed": 5}
    plain, *filtered = (
        [*made.answer(user(QUESTION), draw=False)][-1].text
        for made in (
            local(instruct, **options),
            local(instruct, **options, **sampling),
            remote(server, **options, **sampling),
        )
    )
    assert filtered[0] == filtered[1] != plain


def test_an_answer_without_text_is_an_answer(server):
    first = "4 - 3 = 4, 4n + 3 = 35\n4n = 35 - 3 = 32\nn = 32 / 4 = 8\nFinal Answer: The final answer is $8$."
    contents = [QUESTION, first, "And for 5n = 20?"]  # the model was trained on one turn
    messages = [{"role": r, "content": c} for r, c in zip(("user", "assistant", "user"), contents)]
    final = list(remote(server).answer(messages, draw=True))[-1]
    assert (final.text, final.tokens) == ("", 0)


@pytest.mark.parametrize("draw", [False, True])
def test_text_grows_until_the_answer_is_finished(instruct, server, draw):
    for backend in (local(instruct, max_new_tokens=CAP), remote(server, max_new_tokens=CAP)):
        updates = list(backend.answer(user(QUESTION), draw=draw))
        if not draw:
            assert all(final.text.startswith(some.text) for some, final in itertools.pairwise(updates))
        assert updates[-1].cost is not None


def test_closing_an_answer_frees_the_slot_of_the_server(server):
    updates = remote(server).answer(user(QUESTION), draw=True)
    next(updates)
    assert server.engine.num_unfinished == 1
    updates.close()
    for _ in range(200):
        if not server.engine.num_unfinished:
            break
        threading.Event().wait(0.02)
    assert server.engine.num_unfinished == 0


def test_a_model_without_a_template_gets_the_last_line_only(toy):
    with serving(toy) as server:
        backend = ServerBackend(server.url, None, None, ChatOptions(length="fixed:5"))
        assert not backend.has_chat_template
        assert list(backend.answer([*user("uvw"), *user("abc")], draw=False))[-1].text == "defgh"


def test_every_sampled_answer_has_a_new_seed_unless_one_is_set(toy):
    def seeds(**options):
        backend = local(toy, length="fixed:2", **options)
        return {list(backend.answer(user("abc"), draw=False))[-1].cost["seed"] for _ in range(3)}

    assert seeds() == {0}
    assert seeds(temperature=0.5, seed=7) == {7}
    assert len(seeds(temperature=0.5)) == 3


def test_a_conversation_that_is_too_long_is_refused_with_advice(instruct, server, capsys):
    for backend in (local(instruct), remote(server)):
        talk(backend, "abc " * 2000)
        (message,) = capsys.readouterr().err.splitlines()
        assert "prompt" in message
        assert "/reset" not in message  # there is nothing to forget
        with pytest.raises(CapacityError):
            list(backend.answer(user("abc " * 2000), draw=False))
    backend = Echo()
    conversation = talk(backend, "one")
    backend.error = CapacityError("prompt 0 has 900 tokens")
    remaining = iter(["two", "/quit"])
    conversation.run(lambda: next(remaining))
    assert capsys.readouterr().err.endswith("900 tokens; /reset begins a new conversation\n")


# The conversation


def test_messages_without_an_answer_are_removed(capsys):
    backend = Echo()
    conversation = talk(backend, "one", system="S")
    backend.error = EngineError("the server (429): busy")
    with pytest.raises(EngineError):
        conversation.handle("two")
    backend.error = KeyboardInterrupt()
    conversation.handle("three")
    backend.error = None
    conversation.handle("four")
    assert [message["content"] for message in backend.requests[-1]] == ["S", "one", "so one", "four"]
    assert backend.closed == 4
    assert "stopped; the message was removed" in capsys.readouterr().err


def test_a_line_is_read_after_an_error_and_ctrl_c_between_answers_ends_the_chat(capsys):
    backend = Echo()
    backend.error = EngineError("the server (429): busy")
    talk(backend, "one", "two")
    assert capsys.readouterr().err == "lastword: the server (429): busy\n" * 2
    backend.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        talk(backend, "one", KeyboardInterrupt(), "never")
    assert len(backend.requests) == 3


def test_commands(tmp_path, capsys):
    path = tmp_path / "chat.json"
    backend = Echo()
    talk(backend, "one", f"/save {path}", "/reset", "two", f"/save {path}", " /slash", system="S")
    assert [message["content"] for message in backend.requests[1]] == ["S", "two"]
    assert backend.requests[2][-1]["content"] == "/slash"
    data = json.loads(path.read_text())
    assert data["model"] == "echo"
    assert [message["role"] for message in data["messages"]] == ["system", "user", "assistant"]
    assert data["answers"] == [None]
    talk(backend, f"/save {path}", "/save", "/sing", "/help", "/", "/quit", "never")
    printed = capsys.readouterr().err.splitlines()[-5:]
    words = ["exists; give", "needs the name", "no command /sing", "Ctrl-D", "no command /"]
    assert all(word in line for word, line in zip(words, printed))
    assert len(backend.requests) == 3


def test_a_replay_of_the_last_answer_is_written(toy, tmp_path, capsys):
    path = tmp_path / "run.html"
    talk(local(toy, length="fixed:5"), f"/replay {path}", "abc", f"/replay {path}")
    assert "there is no answer to replay yet" in capsys.readouterr().err
    assert "a lastword replay" in path.read_text()


def test_on_a_terminal_the_canvas_is_redrawn_and_control_characters_are_not_printed(toy):
    screen = console(terminal=True)
    show(local(toy, length="fixed:5").answer(user("abc"), draw=True), screen, "toy")
    output = screen.file.getvalue()
    assert "toy · 5 slots" in output
    assert "pass 0 · 5 masks left" in output
    assert output.rstrip().endswith("defgh")
    show(iter([AnswerUpdate("a\x1b]0;title\x07b")]), screen, "m")
    assert "\x1b]0" not in screen.file.getvalue()


# Errors of a server


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b'data: {"choices": []}\n\n', "did not send a complete answer"),
        (200, b'data: {"error": {"message": "late\\nvery", "code": "x"}}\n\n', "the server: late very"),
        (502, b"<html>", "the server (502): no reason given; try again in 3 seconds"),
        (400, b'{"error": "text"}', "the server (400): no reason given"),
    ],
)  # fmt: skip
def test_an_error_of_a_server_becomes_a_sentence(status, body, words):
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
        with pytest.raises(EngineError) as error:
            list(backend.answer(user("a"), draw=False))
        stub.shutdown()
    assert str(error.value).replace(f"{url} ", "").startswith(words)


def test_chat_with_a_server_needs_no_torch():
    code = "import sys, lastword.cli.chat_backends; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
