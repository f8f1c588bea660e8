"""Talk: lines in, answers out, until somebody leaves."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from lastword.cli.chatting.heard import Answerer, Ended, Turn
from lastword.cli.chatting.showing import note, show
from lastword.cli.options import MOST_LETTERS
from lastword.errors import CapacityError, LastwordError, PromptError, SettingError
from lastword.io.files import check_target, user_path, write

TOO_LONG = "context_length_exceeded"
COMMANDS = "/reset, /save FILE, /replay FILE, /help, /quit"
HELP = f"{COMMANDS}; Ctrl-C stops an answer and leaves when nothing is at work, Ctrl-D leaves"
PROMPT = "> "
NO_TEMPLATE = "{} has no chat template: each line is a prompt of its own, without what was said before"


class Left(Exception):
    """Somebody said /quit."""


class Talk:
    """One conversation at a time, and the commands about it.

    A question that got no answer, because it was refused or stopped, is forgotten: what was said before
    stays as it was.
    """

    def __init__(self, answerer: Answerer, console: Console, system: str | None = None) -> None:
        if system is not None and not answerer.chats:
            raise SettingError(
                f"a system message was given, and {answerer.name} has no chat template to put it in; leave "
                "--system out, or chat with an instruct model"
            )
        self._answerer, self._console = answerer, console
        self._opening: list[Turn] = [] if system is None else [{"role": "system", "content": system}]
        self._turns = [*self._opening]
        self._ended: list[Ended] = []
        self._saved: set[Path] = set()

    def run(self, read: Callable[[], str] | None = None) -> None:
        """Take lines until there are none; Ctrl-C while nothing is at work leaves as an interruption."""
        read = read or line
        if not self._answerer.chats:
            note(NO_TEMPLATE.format(self._answerer.name))
        while True:
            try:
                said = read()
                self.take(said)
            except (EOFError, Left):
                return
            except LastwordError as wrong:
                note(f"lastword: {self._advised(wrong)}")

    def take(self, said: str) -> None:
        """One line: a command, or something to answer. A space before a slash makes it no command."""
        if said.startswith("/"):
            self._command(*said[1:].split(maxsplit=1))
        elif said.strip():
            self._ask(said.strip())

    def _ask(self, question: str) -> None:
        if any("\ud800" <= letter <= "\udfff" for letter in question):
            raise PromptError("the line holds bytes that are no UTF-8; give it as UTF-8 text")
        turns = [*self._turns, {"role": "user", "content": question}]
        heard = self._answerer.ask(turns, drawn=self._console.is_terminal)
        try:
            ended = show(heard, self._console, self._answerer.name)
        except KeyboardInterrupt:
            note("lastword: stopped; the question is forgotten. Ctrl-C again leaves")
            return
        finally:
            getattr(heard, "close", lambda: None)()  # a server is to hear of it now
        self._turns = [*turns, {"role": "assistant", "content": ended.text}]
        self._ended.append(ended)

    def _command(self, name: str = "", rest: str = "") -> None:
        if name == "quit":
            raise Left
        if name == "reset":
            self._turns, self._ended = [*self._opening], []
            note("lastword: a new conversation")
        elif name == "help":
            note(f"lastword: {HELP}")
        elif name in ("save", "replay"):
            if not rest:
                raise SettingError(f"/{name} needs the name of a file: /{name} FILE")
            path = user_path(rest.strip())
            written = self._save(path) if name == "save" else self._answerer.replay(path)
            note(f"lastword: wrote {written}")
        else:
            raise SettingError(
                f"there is no command /{name}; there are {COMMANDS}. To say this to the model, begin the "
                "line with a space"
            )

    def _save(self, path: Path) -> Path:
        check_target(path)
        if path.exists() and path not in self._saved:
            raise SettingError(f"{path} is there already; give another file, or remove it")
        data = {
            "model": self._answerer.name,
            "messages": self._turns,
            "answers": [None if own.ledger is None else own.ledger.model_dump() for own in self._ended],
        }
        write(path, json.dumps(data, ensure_ascii=False, indent=1) + "\n")
        self._saved.add(path)
        return path

    def _advised(self, wrong: LastwordError) -> str:
        full = isinstance(wrong, CapacityError) or getattr(wrong, "code", None) == TOO_LONG
        more = "; /reset begins a new conversation" if full and len(self._turns) > 1 else ""
        return f"{wrong}{more}"


def line() -> str:
    """What was typed next, or the next line of a pipe; EOFError where there is no more."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return input(PROMPT)
    try:
        said = sys.stdin.readline(MOST_LETTERS)
    except UnicodeDecodeError as binary:
        raise PromptError(f"standard input is no {sys.stdin.encoding} text ({binary})") from binary
    if not said:
        raise EOFError
    return said.rstrip("\r\n")
