"""Bad inputs are shown to the package as a user runs it."""

import jaxtyping
import pytest


@pytest.fixture
def unchecked(monkeypatch):
    """Switches off the type checks that only tests have: they would refuse a wrong kind before we do."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
