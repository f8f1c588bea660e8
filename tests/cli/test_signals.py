"""Signals that arrive while modules are imported."""

import signal
import sys
import time
from importlib import import_module

import pytest

from lastword.cli.errors import TerminatedError, handle_signals

MODULE = """
import signal, time
signal.raise_signal({number})
time.sleep(0.2)
is_complete = True
"""


@pytest.fixture
def handlers():
    """Restore the handlers of the test run."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, TerminatedError)], ids=["INT", "TERM"]
)
def test_a_signal_takes_effect_after_a_running_import(number, kind, handlers, tmp_path, monkeypatch):
    name = f"imported_at_signal_{number:d}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(number=int(number)))
    monkeypatch.syspath_prepend(tmp_path)
    handle_signals()
    with pytest.raises(kind) as caught:  # noqa: PT012
        import_module(name)
        time.sleep(30)
    assert type(caught.value) is kind
    assert sys.modules[name].is_complete


def test_ignored_signals_stay_ignored(handlers):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a background job
    handle_signals()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
