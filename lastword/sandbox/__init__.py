"""Execution of model-written Python programs in a sandbox, and their verdicts."""

from lastword.sandbox.runner import UNSAFE, Level, Limits, Outcome, Verdict, run_programs, sandbox_info, sandbox_level

__all__ = ["UNSAFE", "Level", "Limits", "Outcome", "Verdict", "run_programs", "sandbox_info", "sandbox_level"]
