"""Run generated Python programs in isolation and judge them."""

from lastword.sandbox.runner import UNSAFE, Level, Limits, Outcome, Verdict, run_programs, sandbox_info, sandbox_level

__all__ = ["UNSAFE", "Level", "Limits", "Outcome", "Verdict", "run_programs", "sandbox_info", "sandbox_level"]
