from __future__ import annotations

import shutil

import pytest


def usable(name):
    """The level of that name; where it does not work, the test is skipped with the reason."""
    from lastword.sandbox.level import works
    from lastword.sandbox.outcome import Level

    if name == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("needs the program bwrap: install bubblewrap")
    if not works(Level(name)):
        pytest.skip(f"this kernel does not let the sandbox level {name!r} work")
    return Level(name)


@pytest.fixture(params=["bubblewrap", "namespaces", "none"])
def level(request):
    """How a program may be run at all: limits and a token."""
    return usable(request.param)


@pytest.fixture(params=["bubblewrap", "namespaces"])
def sandbox(request):
    """A level that keeps programs in; `none` has no walls to test."""
    return usable(request.param)
