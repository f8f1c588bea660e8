"""Run Python that a model wrote where it can do no harm, and say what became of it."""

from lastword.sandbox.level import UNSAFE, Level, accept_unsafe_code, sandbox_level
from lastword.sandbox.limits import Limits
from lastword.sandbox.runner import Outcome, Verdict, run_programs

__all__ = [
    "UNSAFE",
    "Level",
    "Limits",
    "Outcome",
    "Verdict",
    "accept_unsafe_code",
    "run_programs",
    "sandbox_level",
]
