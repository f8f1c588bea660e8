"""Help at 80 columns: nothing is swallowed, nothing is cut, examples can be copied."""

import inspect
import re
import shlex

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from lastword.cli import COMMANDS, PANELS, app
from lastword.cli.commands import WIDTH, help_of


def shown(*words):
    return CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80", "TERM": "dumb"}).output


def flat(text):
    """Words alone, without frames, wherever lines were broken."""
    return "".join(text.translate(dict.fromkeys(map(ord, "│╭╮╰╯─"))).split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_word_of_every_help_text_is_shown(command):
    page = shown(command)
    assert all(len(line) <= 80 for line in page.splitlines())
    assert "…" not in page
    for parameter in get_command(app).commands[command].params:
        said = getattr(parameter, "help", None) or ""
        words = [word for word in said.split() if len(word) < 20]
        assert all(flat(word) in flat(page) for word in words), f"{parameter.name}: {said}"
    for paragraph in inspect.getdoc(COMMANDS[command]).split("\n\n"):
        if not paragraph.startswith(" "):
            assert flat(paragraph) in flat(page)


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_explained_in_words_that_rich_leaves_alone(command):
    """What stands in square brackets could be taken for a style, and vanish."""
    for parameter in get_command(app).commands[command].params:
        assert not re.search(r"\[[a-z#/@]", getattr(parameter, "help", None) or "")


def test_an_example_is_one_command_whatever_its_lines():
    for name, command in COMMANDS.items():
        lines = help_of(command.__doc__).splitlines()
        assert all(len(line) <= WIDTH + 4 for line in lines if line.startswith("  ")), name
    long = "      lastword predict 'a b' --model tiny-llada-instruct --chat --plot curve.png --limit 128"
    text = help_of(f"Says.\n\n    Prose\n    in lines.\n\n{long}\n\n      lastword predict")
    assert text.startswith("Says.\n\nProse in lines.\n\n")
    first, second, third = text.split("\n\n")[2].splitlines()
    assert first.endswith(" \\")
    assert shlex.split(first[:-2] + second) == shlex.split(long)
    assert third == "  lastword predict"


def test_brackets_survive():
    assert help_of("Takes [one of these].") == "Takes \\[one of these]."


def test_commands_come_in_the_order_of_a_newcomer():
    page = shown()
    places = [page.index(f"│ {name} ") for name in COMMANDS]
    assert places == sorted(places)
    assert [page.index(panel) for panel in PANELS] == sorted(page.index(panel) for panel in PANELS)
    assert list(COMMANDS)[:2] == ["demo", "generate"]
    assert "lastword demo" in page
