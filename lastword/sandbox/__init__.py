"""Run Python that a model wrote where it can do no harm, and say what became of it."""

from lastword.sandbox.level import UNSAFE, accept_unsafe_code, conditions, sandbox_level
from lastword.sandbox.limits import Limits
from lastword.sandbox.outcome import Level, Outcome, Verdict
from lastword.sandbox.programs import run_programs
from lastword.sandbox.report import report

__all__ = [
    "UNSAFE",
    "Level",
    "Limits",
    "Outcome",
    "Verdict",
    "accept_unsafe_code",
    "conditions",
    "report",
    "run_programs",
    "sandbox_level",
]
