from __future__ import annotations

import pytest


@pytest.fixture(params=["bubblewrap", "namespaces", "none"])
def level(request):
    """Every level that works on this machine; the others are skipped with the reason."""
    from lastword.sandbox.level import Level, works

    wanted = Level(request.param)
    if not works(wanted):
        pytest.skip(f"the sandbox level {wanted.value!r} does not work on this machine")
    return wanted


@pytest.fixture
def sandbox(level):
    """A level that keeps programs in; `none` does not."""
    if level.value == "none":
        pytest.skip("the level 'none' promises limits and a token, no walls")
    return level
