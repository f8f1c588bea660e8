"""Progress: what a bar or a line says, when lines come, and that nothing of it is on standard output."""

import io
import threading
import time

import pytest
from rich.console import Console

from lastword.cli import console as module
from lastword.cli.console import EVERY, Showing, progress, spoken, tell


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 s"),
        (59.4, "59 s"),
        (61.0, "1 min 1 s"),
        (3599.9, "1 h 0 min"),
        (7300.0, "2 h 1 min"),
    ],
)
def test_a_time_as_people_say_it(seconds, words):
    assert spoken(seconds) == words


def test_without_an_estimate_the_pace_of_this_run_counts(clock):
    shown = Showing("samples", clock)
    shown(90, 100)  # earlier runs did these
    assert shown.rest == "no estimate yet"
    clock.now = 10.0
    shown(92, 100)
    assert str(shown) == "92 of 100 samples, 10 s; about 40 s left"
    clock.now = 30.0  # nobody told it anything since
    assert str(shown) == "92 of 100 samples, 30 s; about 20 s left"
    clock.now = 99.0
    assert shown.rest == "about 0 s left"


def test_an_estimate_that_is_told_goes_before_the_pace(clock):
    shown = Showing("samples", clock)
    shown.count(0, 20)
    clock.now = 5.0
    shown.waiting(15, 7.0)
    assert str(shown) == "5 of 20 samples, 5 s; about 7 s left"


def test_what_cannot_be_counted_is_named(clock):
    shown = Showing("drawing figures", clock)
    clock.now = 12.0
    assert str(shown) == "drawing figures, 12 s"


class Stops(threading.Event):
    """An event that is set after so many waits; the clock goes on meanwhile."""

    def __init__(self, clock, waits):
        super().__init__()
        self.clock, self.left, self.waited = clock, waits, []

    def wait(self, timeout=None):
        self.waited.append(timeout)
        self.clock.now += timeout
        self.left -= 1
        return self.left < 0


def test_lines_come_every_ten_seconds_and_then_ever_more_seldom(clock, capsys):
    shown, stop = Showing("samples", clock), Stops(clock, 40)
    shown(1, 4)
    tell(shown, stop)
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert (said.out, len(lines)) == ("", 40)
    assert lines[0] == "lastword: 1 of 4 samples, 10 s; no estimate yet"
    assert stop.waited[:10] == [EVERY] * 10
    assert stop.waited[-1] > 15 * EVERY  # an hour and more is not a page of lines


def test_a_short_run_off_a_terminal_says_nothing(capsys):
    with progress("samples") as shown:
        shown(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_long_run_off_a_terminal_says_where_it_is(capsys, monkeypatch):
    monkeypatch.setattr(module, "EVERY", 0.01)
    with progress("samples") as shown:
        shown(1, 2)
        time.sleep(0.2)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("lastword: 1 of 2 samples, ")


def test_lines_end_with_what_they_are_of(monkeypatch, capsys):
    monkeypatch.setattr(module, "EVERY", 0.01)

    def broken():
        with progress("samples"):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        broken()
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_a_bar_has_count_and_rest_in_80_columns(monkeypatch, clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    shown = Showing("samples of word_problems", clock)
    with module._bar(shown, console):
        shown(120, 2500, 7300.0, "3 failed")
    drawn = console.file.getvalue()
    assert "120/2500 samples of word_problems" in drawn
    assert "3 failed, about 2 h 1 min left" in drawn
