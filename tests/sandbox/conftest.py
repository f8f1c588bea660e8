from __future__ import annotations

import shutil

import pytest


def usable(name):
    """Return the level of this name; skip the test with the reason where the level does not work."""
    from lastword.sandbox.runner import Level, level_failure

    if name == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("needs the program bwrap: install bubblewrap")
    if failure := level_failure(Level(name)):
        pytest.skip(f"the sandbox level {name!r} does not work here: {failure}")
    return Level(name)


@pytest.fixture(params=["bubblewrap", "none"])
def level(request):
    """Every level at which a program can be run."""
    return usable(request.param)


@pytest.fixture
def sandbox():
    """The level that isolates programs."""
    return usable("bubblewrap")


@pytest.fixture
def works(monkeypatch):
    """A function that makes only the given levels work."""
    from lastword.sandbox.runner import UNSAFE

    monkeypatch.delenv(UNSAFE, raising=False)

    def only(*levels):
        def failure(level):
            return "" if level in levels else f"{level.value} is not installed"

        monkeypatch.setattr("lastword.sandbox.runner.level_failure", failure)

    return only
