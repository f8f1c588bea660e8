"""Tasks that ship with the package: frozen prompts with reference answers, and scorers.

`training.tasks` contains the generators that wrote the prompts.
"""

from lastword.tasks.families import BENCHMARKS, FAMILIES, CodeFamily, Example, TaskFamily, load_frozen

__all__ = ["BENCHMARKS", "FAMILIES", "CodeFamily", "Example", "TaskFamily", "load_frozen"]
