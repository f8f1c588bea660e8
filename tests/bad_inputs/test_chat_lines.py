"""A line of a chat that is too long is refused as a whole, and the next line is the next message."""

import io

import pytest

from lastword.cli import options
from lastword.cli.chat import read_line
from lastword.errors import PromptError


@pytest.mark.parametrize("length", [10, 11, 19, 20, 21, 35])
def test_a_long_line_is_not_split(monkeypatch, length):
    monkeypatch.setattr(options, "MAX_CHARACTERS", 10)
    monkeypatch.setattr("sys.stdin", io.StringIO("a" * length + "\nnext\n"))
    with pytest.raises(PromptError, match="a line of 10 characters or more was given; write shorter ones"):
        read_line()
    assert read_line() == "next"


def test_a_line_of_the_longest_length_is_read(monkeypatch):
    monkeypatch.setattr(options, "MAX_CHARACTERS", 10)
    monkeypatch.setattr("sys.stdin", io.StringIO("a" * 9 + "\nnext"))
    assert [read_line(), read_line()] == ["a" * 9, "next"]


def test_a_long_last_line_is_refused_too(monkeypatch):
    monkeypatch.setattr(options, "MAX_CHARACTERS", 10)
    monkeypatch.setattr("sys.stdin", io.StringIO("a" * 25))
    with pytest.raises(PromptError):
        read_line()
    with pytest.raises(EOFError):
        read_line()
