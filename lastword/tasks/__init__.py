"""Tasks that ship with the package: frozen prompts with reference answers, and scorers.

`training.tasks` holds the generators that wrote the prompts.
"""

from lastword.tasks.families import BENCHMARKS, FAMILIES, CodeFamily, Example, TaskFamily
from lastword.tasks.frozen import load_frozen

__all__ = ["BENCHMARKS", "FAMILIES", "CodeFamily", "Example", "TaskFamily", "load_frozen"]
