"""Tables: raw Markdown into a pipe, and onto a terminal what fits."""

import io

import pytest
from rich.console import Console

from lastword.cli.console import print_markdown

PAGE = """algebra (plain)

| model | recipe | n | accuracy | against the first | empty | seconds |
|---|---|---:|---:|---:|---:|---:|
| tiny | stop-at-end:(grow-when-full:(survival:256,limit=9)), block 32 | 500 | 0.898 ± 0.013 | | | 1.00 |
| tiny | fixed\\|256 | 500 | 0.912 ± 0.012 | +0.014, p = 0.3 | | 0.16 |

**Bold** words [and brackets]."""


def shown(width, page=PAGE):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    print_markdown(page, console)
    return console.file.getvalue()


def test_into_a_pipe_it_is_the_text_itself(capsys):
    print_markdown(PAGE, Console(file=io.StringIO()))
    assert capsys.readouterr().out == PAGE + "\n"


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_on_a_terminal_no_line_is_wider_than_it(width):
    assert all(len(line) <= width for line in shown(width).splitlines())


def test_what_rows_share_is_said_once_and_what_none_has_is_not():
    said = shown(80)
    assert said.count("model: tiny") == said.count("tiny") == 1
    assert "empty" not in said
    assert "fixed|256" in said
    assert "Bold words [and brackets]." in said


def test_numbers_stay_whole_in_80_columns():
    said = shown(80)
    for number in ("0.898 ± 0.013", "0.912 ± 0.012", "+0.014,", "p = 0.3", "1.00", "0.16"):
        assert number in said
    assert "left out" not in said


def test_columns_that_do_not_fit_are_named():
    said = shown(40)
    assert "left out to fit: against the first, seconds;" in " ".join(said.split())
    assert "0.898 ± 0.013" in said
    assert "+0.014" not in said


def test_rows_of_each_model_stand_below_its_name_and_the_head_once():
    rows = [f"| {model} | {task} | {n} |" for n, model in enumerate("aab") for task in ("x", "y")]
    said = shown(80, "\n".join(["| model | task | n |", "|---|---|---:|", *rows]))
    assert [line.split() for line in said.splitlines() if "─" not in line] == [
        ["model:", "a"], ["task", "n"], ["x", "0"], ["y", "0"], ["x", "1"], ["y", "1"],
        ["model:", "b"], ["x", "2"], ["y", "2"],
    ]  # fmt: skip


def test_rows_that_share_nothing_are_one_table():
    said = shown(80, "| model | n |\n|---|---:|\n| a | 1 |\n| b | 2 |")
    assert said.split() == ["model", "n", said.split()[2], "a", "1", "b", "2"]
