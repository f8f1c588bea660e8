"""Help at 80 columns: nothing is swallowed, nothing is cut, examples can be copied."""

import inspect
import re

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from lastword.cli import COMMANDS, PANELS, app

WIDTH = 76  # of an example: a terminal of 80 columns indents it


def shown(*words):
    return CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80", "TERM": "dumb"}).output


def flat(text):
    """Return the words alone, without frames and code marks, wherever lines are broken."""
    return "".join(text.translate(dict.fromkeys(map(ord, "│╭╮╰╯─`"))).split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_word_of_every_help_text_is_shown(command):
    page = shown(command)
    assert all(len(line) <= 80 for line in page.splitlines())
    assert "…" not in page
    for parameter in get_command(app).commands[command].params:
        words = [word for word in (getattr(parameter, "help", None) or "").split() if len(word) < 20]
        assert words
        assert all(flat(word) in flat(page) for word in words), parameter.name
    prose, _, examples = inspect.getdoc(COMMANDS[command]).partition("Examples:\n")
    assert flat(prose) in flat(page)
    for line in filter(None, examples.splitlines()):
        assert line.strip() in page, "an example is broken where it would not be typed"
        assert len(line.strip()) <= WIDTH


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "recipes"])
def test_examples_are_of_the_command(command):
    examples = inspect.getdoc(COMMANDS[command]).partition("Examples:\n")[2]
    assert re.search(rf"\blastword {command}\b", examples)


def test_commands_come_in_the_order_of_a_new_user():
    page = shown()
    places = [page.index(f"│ {name} ") for name in COMMANDS]
    assert places == sorted(places)
    assert [page.index(panel) for panel in PANELS] == sorted(page.index(panel) for panel in PANELS)
