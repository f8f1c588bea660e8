"""`lastword chat`: a conversation in the terminal, with a model in this process or with a server."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from lastword.cli import options
from lastword.cli.serve import KEY
from lastword.errors import CapacityError, LastwordError, PromptError, SettingError
from lastword.io.files import check_target, user_path, write

if TYPE_CHECKING:
    from rich.console import Console
    from rich.panel import Panel

    from lastword.cli.chat_backends import (
        AnswerCost,
        CanvasUpdate,
        ChatBackend,
        ChatEvent,
        ChatOptions,
        FinishedAnswer,
        Message,
    )

CHAT_MODEL = "tiny-llada-instruct"
TOO_LONG = "context_length_exceeded"
COMMANDS = "/reset, /save FILE, /replay FILE, /help, /quit"
HELP = f"{COMMANDS}; Ctrl-C stops an answer, and ends the chat between answers; Ctrl-D ends the chat"
MASK, END = "░", "·"
REDRAW_SECONDS = 0.05
ENDINGS = {"cap": "cut by --max-tokens", "canvas": "cut: the canvas was full"}


def chat(
    model: Annotated[
        Optional[str],
        typer.Option(
            "--model",
            "-m",
            help="A checkpoint folder, a hub name, or an embedded model. Default: with --url the server's "
            f"first model, otherwise {CHAT_MODEL}.",
        ),
    ] = None,
    url: Annotated[
        Optional[str],
        typer.Option(help=f"Chat with the server at this address; {KEY} contains its API key."),
    ] = None,
    recipe: options.RecipeName = None,
    length: options.Length = None,
    temperature: options.Temperature = None,
    seed: Annotated[
        Optional[int],
        typer.Option(
            callback=options.as_seed,
            help="Seed of everything random. Default: a new one for every answer.",
        ),
    ] = None,
    max_tokens: Annotated[
        Optional[int],
        typer.Option(min=1, help="Maximum number of tokens of an answer. It does not size the canvas."),
    ] = None,
    system: Annotated[Optional[str], typer.Option(help="System message of the conversation.")] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    weights: options.Weights = None,
) -> None:
    """Chat with a model: on a terminal its answers are shown while they are denoised.

    Every line is a message; /reset, /save FILE, /replay FILE, /help and /quit are commands. Ctrl-C stops an
    answer, Ctrl-D ends the chat. Answers go to standard output, their costs to standard error.

    Examples:

      lastword chat

      lastword chat --recipe fast --max-tokens 200

      lastword chat --url http://127.0.0.1:8000

      echo "Solve for n: 4n + 3 = 35." | lastword chat --temperature 0
    """
    from rich.console import Console

    from lastword.cli.chat_backends import ChatOptions, ServerBackend

    chat_options = ChatOptions(recipe, length, temperature, seed, max_tokens)
    backend: ChatBackend
    if url:
        backend = ServerBackend(url, os.environ.get(KEY), model, chat_options)
    else:
        backend = _local_backend(model or CHAT_MODEL, chat_options, device, dtype, weights)
    console = Console()
    if sys.stdin.isatty() and console.is_terminal:
        import contextlib

        with contextlib.suppress(ImportError):  # line editing, where Python has it
            import readline  # noqa: F401
        note(f"{backend.name}. {HELP}")
    Conversation(backend, console, system).run()


def _local_backend(
    name: str, chat_options: ChatOptions, device: str, dtype: str, weights: str | None
) -> ChatBackend:
    from lastword.cli.chat_backends import LocalBackend
    from lastword.models.load import load

    recipe = options.read_recipe(chat_options.recipe)
    model = load(name, device=device, dtype=dtype, weights=weights)
    return LocalBackend(model, name, recipe, chat_options)


class QuitChat(Exception):
    """The user's command to end the chat."""


class Conversation:
    """The messages of a chat and the commands on them.

    A message without an answer, because it was refused or stopped, is removed.
    """

    def __init__(self, backend: ChatBackend, console: Console, system: str | None = None) -> None:
        if system is not None and not backend.has_chat_template:
            raise SettingError(
                f"--system was given, and {backend.name} has no chat template for it; leave --system out, or "
                "chat with an instruct model"
            )
        self._backend, self._console = backend, console
        self._system: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._messages = [*self._system]
        self._answers: list[FinishedAnswer] = []
        self._saved: set[Path] = set()

    def run(self, read: Callable[[], str] | None = None) -> None:
        """Handle lines until there are no more, or /quit; Ctrl-C between answers ends it as an interrupt."""
        read = read or read_line
        if not self._backend.has_chat_template:
            note(f"{self._backend.name} has no chat template: each line is a prompt without earlier lines")
        while True:
            try:
                self.handle(read())
            except (EOFError, QuitChat):
                return
            except LastwordError as error:
                too_long = isinstance(error, CapacityError) or getattr(error, "code", None) == TOO_LONG
                advice = "; /reset begins a new conversation" if too_long and len(self._messages) > 1 else ""
                note(f"lastword: {error}{advice}")

    def handle(self, line: str) -> None:
        """Handle one line: a command, or a message. A line with a space before the slash is a message."""
        if line.startswith("/"):
            self._command(*line[1:].split(maxsplit=1))
        elif line.strip():
            self._send(line.strip())

    def _send(self, text: str) -> None:
        options.check_utf8(text, "the line")
        messages = [*self._messages, {"role": "user", "content": text}]
        events = self._backend.answer(messages, frames=self._console.is_terminal)
        try:
            answer = show(events, self._console, self._backend.name)
        except KeyboardInterrupt:
            note("lastword: stopped; the message was removed. Ctrl-C again ends the chat")
            return
        finally:
            getattr(events, "close", lambda: None)()  # ends the request of a server now
        self._messages = [*messages, {"role": "assistant", "content": answer.text}]
        self._answers.append(answer)

    def _command(self, name: str = "", argument: str = "") -> None:
        if name == "quit":
            raise QuitChat
        if name == "reset":
            self._messages, self._answers = [*self._system], []
            note("lastword: a new conversation")
        elif name == "help":
            note(f"lastword: {HELP}")
        elif name in ("save", "replay"):
            if not argument:
                raise SettingError(f"/{name} needs the name of a file: /{name} FILE")
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
        data = {
            "model": self._backend.name,
            "messages": self._messages,
            "answers": [None if cost is None else cost.model_dump() for cost in costs],
        }
        write(path, json.dumps(data, ensure_ascii=False, indent=1) + "\n")
        self._saved.add(path)
        return path


def read_line() -> str:
    """Return the next line of the terminal or of a pipe; raise EOFError at the end."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return input("> ")
    try:
        line = sys.stdin.readline(options.MAX_CHARACTERS)
    except UnicodeDecodeError as error:
        raise PromptError(f"standard input is not {sys.stdin.encoding} text ({error}); give UTF-8") from error
    if not line:
        raise EOFError
    return line.rstrip("\r\n")


def show(events: Iterator[ChatEvent], console: Console, title: str) -> FinishedAnswer:
    """Print an answer while it is decoded, then its costs; return it."""
    answer = _redraw(events, console, title) if console.is_terminal else _stream(events)
    if answer.cost is not None:
        note(cost_line(answer.cost, answer.tokens))
    return answer


def cost_line(cost: AnswerCost, tokens: int | None) -> str:
    """Return the predicted length, the number of tokens and the costs of an answer."""
    predicted = "no length" if cost.predicted_length is None else f"{cost.predicted_length:.0f}"
    written = "" if tokens is None else f", wrote {tokens}"
    queued = f" after {cost.seconds_queued:.2f} s in the queue" if cost.seconds_queued else ""
    ending = f"; {ENDINGS[cost.ended_by]}" if cost.ended_by in ENDINGS else ""
    return (
        f"[predicted {predicted}{written} tokens; {cost.forward_passes} passes, {cost.tokens_computed} "
        f"columns, {cost.tokens_per_forward:.2f} tokens per forward; {cost.seconds_decoding:.2f} s{queued}"
        f"{ending}]"
    )


def note(sentence: str) -> None:
    """Print a line on standard error, so that a pipe contains the answers alone."""
    typer.echo(printable(sentence), err=True)


def printable(text: str) -> str:
    """Replace characters that would control a terminal: a model may write anything."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def canvas_panel(update: CanvasUpdate, title: str) -> Panel:
    """Return a canvas with its masks and end tokens, and in green the tokens of its last forward pass."""
    from rich.panel import Panel
    from rich.text import Text

    text = Text()
    end = len(update.texts) if update.end is None else update.end
    for slot, (piece, filled_at) in enumerate(zip(update.texts, update.filled_at)):
        if piece is None:
            text.append(MASK, style="bright_black")
        elif slot >= end:
            text.append(END, style="dim red")
        else:
            new = filled_at == update.forward_passes > 0
            text.append(printable(piece), style="bold green" if new else "")
    masks = sum(piece is None for piece in update.texts)
    counts = f"canvas {len(update.texts)} · pass {update.forward_passes} · {masks} masks left"
    return Panel(text, title=f"{title} · {counts}")


def _redraw(events: Iterator[ChatEvent], console: Console, title: str) -> FinishedAnswer:
    from rich.live import Live
    from rich.text import Text

    from lastword.cli.chat_backends import CanvasUpdate, FinishedAnswer

    answer, next_draw = FinishedAnswer(""), 0.0
    # This thread alone draws, so that Ctrl-C interrupts nothing for which another thread waits.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for event in events:
            if isinstance(event, CanvasUpdate) and (now := time.monotonic()) >= next_draw:
                live.update(canvas_panel(event, title), refresh=True)
                next_draw = now + REDRAW_SECONDS
            elif isinstance(event, FinishedAnswer):
                answer = event
    console.print(Text(printable(answer.text)))
    return answer


def _stream(events: Iterator[ChatEvent]) -> FinishedAnswer:
    from lastword.cli.chat_backends import FinishedAnswer, NewText

    answer, line_is_open = FinishedAnswer(""), False
    try:
        for event in events:
            if isinstance(event, NewText):
                line_is_open = True
                typer.echo(event.text, nl=False)
            elif isinstance(event, FinishedAnswer):
                answer, line_is_open = event, True  # an answer without text is an empty line
    finally:
        if line_is_open:
            typer.echo()
    return answer
