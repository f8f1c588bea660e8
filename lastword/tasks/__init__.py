"""Tasks whose answers vary in length: one family per benchmark of the paper and a known hazard."""

from __future__ import annotations

from lastword.tasks.algebra import Algebra
from lastword.tasks.complete_function import CompleteFunction
from lastword.tasks.frozen import load_frozen
from lastword.tasks.known_hazard import KnownHazard, Lengths
from lastword.tasks.reasoning import Reasoning
from lastword.tasks.split import SPLITS, Split, split_of, stream
from lastword.tasks.task import Example, Family
from lastword.tasks.word_problems import WordProblems
from lastword.tasks.write_function import WriteFunction

FAMILIES: dict[str, Family] = {
    "word_problems": WordProblems(),
    "algebra": Algebra(),
    "reasoning": Reasoning(),
    "complete_function": CompleteFunction(),
    "write_function": WriteFunction(),
    "known_hazard": KnownHazard(),
}
BENCHMARKS = tuple(name for name in FAMILIES if name != "known_hazard")

__all__ = [
    "BENCHMARKS",
    "FAMILIES",
    "SPLITS",
    "Example",
    "Family",
    "Lengths",
    "Split",
    "load_frozen",
    "split_of",
    "stream",
]
