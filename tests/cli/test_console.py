"""Progress, Markdown tables and canvases on a terminal and in a pipe."""

import io
import threading
import time
from contextlib import suppress

import pytest
from rich.console import Console

from lastword.cli import console as module
from lastword.cli.chat_backends import ServerCanvas
from lastword.cli.console import canvas_panel, print_lines, print_markdown, printable, progress


def terminal(width=80):
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


# Progress


@pytest.fixture
def clock(monkeypatch):
    """The time of progress displays, in a list of one number."""
    now = [0.0]
    monkeypatch.setattr("rich.console.monotonic", lambda: now[0])
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


def test_the_time_left_follows_the_pace_of_this_run(clock):
    with progress("samples") as display:
        display.update(90, 100)  # by earlier runs
        assert str(display) == "90/100 samples, 0:00:00"
        clock[0] = 10.0
        display.update(92, 100)
        assert str(display) == "92/100 samples, 0:00:10; about 0:00:40 left"


def test_an_estimate_and_a_note_are_shown(clock):
    with progress("samples") as display:
        clock[0] = 5.0
        display.update(5, 20, seconds_left=7.4, note="3 failed")
        assert str(display) == "5/20 samples, 0:00:05; 3 failed, about 0:00:07 left"


def test_an_estimate_that_is_exceeded_is_replaced_by_the_time_since_the_last_update(clock):
    with progress("samples") as display:
        clock[0] = 5.0
        display.update(5, 20, seconds_left=7.0)
        clock[0] = 8.0
        assert str(display) == "5/20 samples, 0:00:08; about 0:00:04 left"
        clock[0] = 75.0
        assert str(display) == "5/20 samples, 0:01:15; still working, nothing finished for 0:01:10"
        display.update(20, 20, seconds_left=0.0)
        assert str(display) == "20/20 samples, 0:01:15"


def test_work_that_cannot_be_counted_is_named(clock):
    with progress("drawing figures") as display:
        clock[0] = 12.0
        assert str(display) == "drawing figures, 0:00:12"


class StopAfter(threading.Event):
    """An event that is set after some waits."""

    def __init__(self, waits):
        super().__init__()
        self.left, self.pauses = waits, []

    def wait(self, timeout=None):
        self.pauses.append(timeout)
        self.left -= 1
        return self.left < 0


def test_without_a_terminal_lines_come_at_growing_intervals(capsys):
    stop = StopAfter(40)
    with progress("samples") as display:
        display.update(1, 4)
        print_lines(display, stop)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == ["lastword: 1/4 samples, 0:00:00"] * 40
    assert stop.pauses[:10] == [module.LINE_SECONDS] * 10
    assert stop.pauses[-1] > 5 * module.LINE_SECONDS


def test_lines_begin_and_end_with_the_work(capsys, monkeypatch):
    with progress("samples"):
        pass
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(module, "LINE_SECONDS", 0.01)
    with suppress(ValueError), progress("samples"):
        time.sleep(0.1)
        raise ValueError
    assert capsys.readouterr().err.startswith("lastword: samples, ")
    time.sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_a_bar_is_drawn_on_standard_error(capsys, monkeypatch):
    monkeypatch.setattr(Console, "is_terminal", True)
    with progress("samples") as display:
        display.update(120, 2500, seconds_left=7300, note="3 failed")
    output = capsys.readouterr()
    assert output.out == ""
    assert "120/2500 samples" in output.err
    assert "3 failed, about 2:01:40 left" in output.err


# Markdown


PAGE = """algebra (plain)

| model | recipe | n | accuracy | difference | empty | seconds |
|---|---|---:|---:|---:|---:|---:|
| tiny | stop-at-end:(grow-when-full:(survival:256,limit=9)), block 32 | 500 | 0.898 ± 0.013 | | | 1.00 |
| tiny | fixed\\|256 | 500 | 0.912 ± 0.012 | +0.014, p = 0.3 | | 0.16 |

**Bold** words [and brackets]."""


def shown(width, page=PAGE):
    console = terminal(width)
    print_markdown(page, console)
    return console.file.getvalue()


def test_into_a_pipe_it_is_the_text_itself(capsys):
    print_markdown(PAGE, Console(file=io.StringIO()))
    assert capsys.readouterr().out == PAGE + "\n"


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_on_a_terminal_no_line_is_wider_than_it(width):
    assert all(len(line) <= width for line in shown(width).splitlines())


def test_numbers_stay_whole_and_empty_columns_are_left_out():
    text = shown(80)
    for words in ("0.898 ± 0.013", "0.912 ± 0.012", "+0.014,", "p = 0.3", "1.00", "0.16", "fixed|256"):
        assert words in text
    assert "empty" not in text
    assert "Bold words [and brackets]." in text


def test_rows_of_a_model_are_below_its_name():
    rows = [f"| {model} | {task} | {n} |" for n, model in enumerate("aab") for task in ("x", "y")]
    text = shown(80, "\n".join(["| model | task | n |", "|---|---|---:|", *rows]))
    assert [line.split() for line in text.splitlines() if line.strip() and "─" not in line] == [
        *(["model:", "a"], ["task", "n"], ["x", "0"], ["y", "0"], ["x", "1"], ["y", "1"]),
        *(["model:", "b"], ["x", "2"], ["y", "2"]),
    ]
    single = shown(80, "| model | n |\n|---|---:|\n| a | 1 |\n| b | 2 |")
    assert "model:" not in single


# Canvases


def test_a_canvas_shows_masks_ends_and_new_tokens():
    texts, filled_at = ["a", None, "b", "", "c"], [1, None, 2, 2, 1]
    canvas = ServerCanvas(texts=texts, filled_at=filled_at, forward_passes=2, end=3)
    text = canvas_panel(canvas, "m").renderable
    assert text.plain == "a░b··"
    styles = ["bright_black", "bold green", "dim red", "dim red"]
    assert [str(span.style) for span in text.spans] == styles


def test_text_of_a_model_does_not_control_the_terminal():
    assert printable("a\x1b[2Jb\n\tc\x07") == "a�[2Jb\n\tc�"
