"""`lastword chat`: a conversation in the terminal, with a model in this process or with a server."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text
from typer import Option

from lastword.cli import options
from lastword.cli.console import canvas_panel, printable
from lastword.cli.errors import TerminatedError
from lastword.cli.options import CHAT_MODEL, ChatOptions, ModelOptions
from lastword.cli.serve import KEY
from lastword.errors import CapacityError, LastwordError, PromptError, SettingError
from lastword.io.files import check_target, user_path, write

if TYPE_CHECKING:
    from lastword.cli.chat_backends import AnswerUpdate, LocalBackend, Message, ServerBackend

COMMANDS = "/reset, /save FILE, /replay FILE, /help, /quit"
HELP = f"{COMMANDS}; Ctrl-C stops an answer, and ends the chat between answers; Ctrl-D ends the chat"
REDRAW_SECONDS = 0.05
ENDINGS = {"cap": "; cut by --max-new-tokens", "canvas": "; cut: the canvas was full"}


class Conversation:
    """A chat: its messages so far, and the methods that handle messages and commands.

    If the answer to a message fails or is stopped, the message is removed.
    """

    def __init__(self, backend: LocalBackend | ServerBackend, console: Console, system: str | None = None) -> None:
        if system is not None and not backend.has_chat_template:
            raise SettingError(
                f"--system was given, and {backend.name} has no chat template for it; leave --system out, or "
                "chat with an instruct model"
            )
        self._backend, self._console = backend, console
        self._system: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._messages = [*self._system]
        self._answers: list[AnswerUpdate] = []
        self._saved: set[Path] = set()

    def run(self, read: Callable[[], str] | None = None) -> None:
        """Handle lines until the input ends or /quit is read; Ctrl-C between answers raises KeyboardInterrupt."""
        read = read or read_line
        if not self._backend.has_chat_template:
            note(f"{self._backend.name} has no chat template: each line is a prompt without earlier lines")
        while True:
            try:
                self.handle(read())
            except EOFError:
                return
            except LastwordError as error:
                can_reset = isinstance(error, CapacityError) and len(self._messages) > 1
                note(f"lastword: {error}{'; /reset begins a new conversation' * can_reset}")

    def handle(self, line: str) -> None:
        """Handle one line: a command, or a message. A line with a space before the slash is a message."""
        if line.startswith("/"):
            self._command(*line[1:].split(maxsplit=1))
            return
        text = line.strip()
        if not text:
            return
        options.check_utf8(text, "the line")
        messages = [*self._messages, {"role": "user", "content": text}]
        updates = self._backend.answer(messages, draw=self._console.is_terminal)
        try:
            answer = show(updates, self._console, self._backend.name)
        except KeyboardInterrupt as error:
            if isinstance(error, TerminatedError):
                raise
            note("lastword: stopped; the message was removed. Ctrl-C again ends the chat")
            return
        finally:
            updates.close()  # ends a request to a server at once
        self._messages = [*messages, {"role": "assistant", "content": answer.text}]
        self._answers.append(answer)

    def _command(self, name: str = "", argument: str = "") -> None:
        if name == "quit":
            raise EOFError
        if name == "reset":
            self._messages, self._answers = [*self._system], []
            note("lastword: a new conversation")
        elif name == "help":
            note(f"lastword: {HELP}")
        elif name in ("save", "replay") and not argument:
            raise SettingError(f"/{name} needs the name of a file: /{name} FILE")
        elif name in ("save", "replay"):
            path = user_path(argument.strip())
            written = self._save(path) if name == "save" else self._backend.replay(path)
            note(f"lastword: wrote {written}")
        else:
            raise SettingError(
                f"there is no command /{name}; the commands are {COMMANDS}. To send this to the model, begin "
                "the line with a space"
            )

    def _save(self, path: Path) -> Path:
        check_target(path)
        if path.exists() and path not in self._saved:
            raise SettingError(f"{path} exists; give another file, or remove it")
        costs = [answer.cost for answer in self._answers]
        data = {"model": self._backend.name, "messages": self._messages, "answers": costs}
        write(path, json.dumps(data, ensure_ascii=False, indent=1) + "\n")
        self._saved.add(path)
        return path


def read_line() -> str:
    """Return the next line of the terminal or of a pipe, without its end; raise EOFError after the last one."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return input("> ")
    try:
        line = sys.stdin.readline(options.MAX_CHARACTERS)
    except UnicodeDecodeError as error:
        raise PromptError(f"standard input is not {sys.stdin.encoding} text ({error}); give UTF-8") from error
    if not line:
        raise EOFError
    if len(line) == options.MAX_CHARACTERS and not line.endswith("\n"):
        while line and not line.endswith("\n"):
            line = sys.stdin.readline(options.MAX_CHARACTERS)
        raise PromptError(f"a line of {options.MAX_CHARACTERS} characters or more was given; write shorter ones")
    return line.rstrip("\r\n")


def note(sentence: str) -> None:
    """Print a line on standard error, so that standard output contains only the answers."""
    typer.echo(printable(sentence), err=True)


def show(updates: Iterator[AnswerUpdate], console: Console, title: str) -> AnswerUpdate:
    """Print an answer while it is decoded, then its costs, and return its last update."""
    answer = _draw(updates, console, title) if console.is_terminal else _print(updates)
    if cost := answer.cost:
        predicted = "no length" if cost["predicted_length"] is None else f"{cost['predicted_length']:.0f}"
        written = "" if answer.tokens is None else f", wrote {answer.tokens}"
        queued = f" after {cost['seconds_queued']:.2f} s in the queue" if cost.get("seconds_queued") else ""
        note(
            f"[predicted {predicted}{written} tokens; {cost['forward_passes']} forward passes, "
            f"{cost['tokens_computed']} tokens computed, {cost['tokens_per_forward']:.2f} tokens per forward pass; "
            f"{cost['seconds_decoding']:.2f} s{queued}{ENDINGS.get(cost['ended_by'], '')}]"
        )
    return answer


def _draw(updates: Iterator[AnswerUpdate], console: Console, title: str) -> AnswerUpdate:
    """Redraw the canvas until the answer is finished, then print its text, and return the last update."""
    from rich.live import Live

    next_draw = 0.0
    # Only this thread draws: with a second one, Ctrl-C could interrupt a thread while the other waits for it.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for answer in updates:
            if answer.canvas is not None and (now := time.monotonic()) >= next_draw:
                live.update(canvas_panel(answer.canvas, title), refresh=True)
                next_draw = now + REDRAW_SECONDS
    console.print(Text(printable(answer.text)))
    return answer


def _print(updates: Iterator[AnswerUpdate]) -> AnswerUpdate:
    """Print the text of an answer as it is committed, then a line break, and return the last update."""
    printed = 0
    try:
        for answer in updates:
            typer.echo(answer.text[printed:], nl=False)
            printed = max(printed, len(answer.text))
    except BaseException:
        if printed:
            typer.echo()
        raise
    typer.echo()
    return answer


def chat(
    model_options: ModelOptions,
    chat_options: ChatOptions,
    url: Annotated[
        str | None,
        Option("--base-url", "--url", help=f"URL of a server, such as http://host:8000; its API key is in {KEY}."),
    ] = None,
    system: Annotated[str | None, Option(help="System message of the conversation.")] = None,
    timeout: options.Timeout = None,
    import_modules: options.Imports = None,
) -> None:
    """Chat with a model in this process, or with a server.

    Each line is a message; /reset, /save FILE, /replay FILE, /help and /quit are commands. On a terminal, answers are
    drawn while they are decoded. Ctrl-C stops an answer, Ctrl-D ends the chat. Answers go to standard output, their
    costs to standard error.

    Examples:

        lastword chat
        lastword chat --recipe fast --max-new-tokens 200
        lastword chat --base-url http://127.0.0.1:8000
        echo "Solve for n: 4n + 3 = 35." | lastword chat --temperature 0
    """
    from lastword.cli.chat_backends import LocalBackend, ServerBackend

    backend: LocalBackend | ServerBackend
    if url is not None:
        options.check_no_loading(model_options, "--base-url")
        backend = ServerBackend(url, os.environ.get(KEY), model_options.model, chat_options, timeout)
    else:
        if timeout is not None:
            raise SettingError(f"--timeout {timeout:g} was given without --base-url; give both, or leave it out")
        recipe = chat_options.build()
        source = model_options.source("auto", CHAT_MODEL)
        backend = LocalBackend(source.load(), source.name, recipe, chat_options)
    console = Console()
    if sys.stdin.isatty() and console.is_terminal:
        with suppress(ImportError):  # line editing, where Python has it
            import readline  # noqa: F401
        note(f"{backend.name}. {HELP}")
    Conversation(backend, console, system).run()
