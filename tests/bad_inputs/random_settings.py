"""Draws values of any kind for the fields of parts and the options of `generate`; run in a plain interpreter.

    python random_settings.py EXAMPLES

Each part that can be made decodes a few slots of the toy. Prints, as JSON, how many were taken and how many
refused, and the first call that ended in an error that is not ours.
"""

import inspect
import json
import sys
import warnings
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

import lastword
from lastword.recipe.registry import PARTS

warnings.filterwarnings("ignore")

TOY = lastword.load("toy")
OPTIONS = inspect.signature(lastword.generate).parameters.keys() - {"model", "prompt"}
MADE = [cls(max_passes=9) if cls is lastword.Budget else cls() for axis in PARTS.values() for cls in axis.values()]

NUMBERS = st.integers() | st.floats() | st.floats(0, 1) | st.integers(0, 40)
EDGES = st.sampled_from([2**31, 2**63, 2**63 - 1, 10**30, 10**400, 1e-300, 5e-324, 1e308, sys.maxsize])
TEXTS = st.text(max_size=12) | st.sampled_from(
    ["model", "draw", "any", "entropy", "gap", "fixed:4", "survival", "threshold", "hazard", "x" * 9999]
)
TENSORS = st.sampled_from(
    [torch.tensor(3), torch.tensor([True]), torch.ones(1, 3), torch.ones(2).long(), np.array([1.5])]
)
OBJECTS = st.sampled_from([object(), id, lambda: None, lastword.Fixed, NotImplemented, ..., 1j])
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | EDGES | TEXTS | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
LIKELY = st.integers(0, 40) | st.floats(0, 1) | st.sampled_from(MADE)
VALUES = LIKELY | ANYTHING | TENSORS | OBJECTS


@st.composite
def calls(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    """A part and some of its fields, or `generate` and some of its options."""
    part = draw(st.sampled_from([lastword.generate, *map(type, MADE)]))
    generates = part is lastword.generate
    names = sorted(OPTIONS if generates else inspect.signature(part).parameters)
    chosen = draw(st.lists(st.sampled_from(names), max_size=2, unique=True)) if names else []
    return part, {name: draw(VALUES) for name in chosen}


def run(part: Any, fields: dict[str, Any]) -> None:
    if part is lastword.generate:
        lastword.generate(TOY, "abc", **{"length": "fixed:5", **fields})
        return
    made = part(**{**({"max_passes": 9} if part is lastword.Budget else {}), **fields})
    axis = next(axis for axis, parts in PARTS.items() if part in parts.values())
    wrapped = {
        "schedule": lambda: {"unmask": lastword.MostConfident(made)},
        "estimate": lambda: {"length": lastword.Survival(16, estimate=made)},
        "interpretation": lambda: {"length": lastword.Survival(16, interpretation=made)},
    }
    choice = wrapped[axis]() if axis in wrapped else {axis: made}
    recipe = lastword.Recipe(**{"length": lastword.Fixed(5), **choice})
    if max(lastword.resolve(recipe, TOY).length.traits.upper_bound, 1) > 200:
        return  # a canvas of a million slots is a long one, and no mistake
    for number, _ in enumerate(lastword.decode(TOY, [[0, 1]], recipe)):
        if number == 3:
            break


def main(examples: int) -> None:
    counts = {"taken": 0, "refused": 0}
    raw: list[str] = []

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples <= 500,
        suppress_health_check=list(HealthCheck),
    )
    @given(calls())
    def taken_or_refused(call: tuple[Any, dict[str, Any]]) -> None:
        try:
            run(*call)
            counts["taken"] += 1
        except lastword.LastwordError:
            counts["refused"] += 1

    try:
        taken_or_refused()
    except Exception as error:
        raw.append(f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}")
    print(json.dumps({**counts, "raw": raw}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
