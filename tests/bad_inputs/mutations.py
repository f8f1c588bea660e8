"""Documents gone wrong: a good one with fields replaced, removed or added, and bytes that are hardly JSON.

A property over them is tested with 500 examples by `make test`, the same ones each time, and with 2,000 new
ones by `make test-all`:

    @EXAMPLES
    def test_any_config(examples):
        hold(examples, mutated(GOOD), lambda document: reads_or_refuses(document))
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.strategies import SearchStrategy

Value = TypeVar("Value")
Steps = tuple[Any, ...]  # keys and indices that lead to a value inside a document

EXAMPLES = pytest.mark.parametrize("examples", [500, pytest.param(2_000, marks=pytest.mark.full)])

NUMBERS = st.sampled_from(
    [0, -1, 1, 2, 2**20, 2**31, 2**63, 2**64, 10**30, 10**400, -(10**400), 0.5, -0.0, 1e-320, 1e308]
) | st.sampled_from([float("nan"), float("inf"), float("-inf")])
TEXTS = st.text(max_size=20) | st.sampled_from(
    ["", "0", "null", "NaN", "\0", "\ud800", "../x", "/etc/passwd", "a" * 5_000, "\N{SNOWMAN}" * 200]
)
LEAVES = st.none() | st.booleans() | NUMBERS | st.integers() | st.floats() | TEXTS


def _nested(depth: int) -> object:
    value: object = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


JSON_VALUES = (
    st.recursive(
        LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=5
    )
    | st.sampled_from([3, 150, 300]).map(_nested)
    | st.just([0] * 1_000)
)


def hold(examples: int, documents: SearchStrategy[Value], check: Callable[[Value], object]) -> None:
    """Check so many documents: fails with the smallest one on which `check` raises."""

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=examples <= 500,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(documents)
    def property_holds(document: Value) -> None:
        check(document)

    property_holds()


def mutated(document: object) -> SearchStrategy[object]:
    """The document with one to three values replaced, removed or added; now and then another altogether."""
    edits = st.lists(_edits(document), min_size=1, max_size=3)  # made once: making it takes longest
    edited = edits.map(lambda them: _edited(document, them))
    return st.integers(0, 24).flatmap(lambda n: JSON_VALUES if n == 24 else edited)


def mutated_bytes(document: object) -> SearchStrategy[bytes]:
    """What a file may hold instead: a mutated document; the good one cut, doubled, in UTF-16; noise."""
    files = mutated(document).map(_as_bytes)
    good = _as_bytes(document)
    return (
        files
        | files
        | files.map(lambda data: b"\xef\xbb\xbf" + data)
        | st.integers(0, len(good)).map(lambda end: good[:end])
        | st.tuples(st.integers(0, len(good)), st.binary(max_size=8)).map(
            lambda spliced: good[: spliced[0]] + spliced[1] + good[spliced[0] :]
        )
        | st.sampled_from([good.decode().encode("utf-16"), good * 2, b"[" * 100_000, b'{"a":' * 5_000])
        | st.binary(max_size=200)
    )


def _as_bytes(document: object) -> bytes:
    """JSON with what json.dumps lets through: NaN, Infinity, lone surrogates."""
    return json.dumps(document).encode()


def _edits(document: object) -> SearchStrategy[tuple[str, Steps, Any]]:
    """What to do, where, and with which value, the value of which place, or how many times."""
    places = st.sampled_from(_places(document)[1:] or [()])
    return (
        st.tuples(st.just("replace"), places, JSON_VALUES)
        | st.tuples(st.just("replace"), places, NUMBERS)
        | st.tuples(st.just("replace"), places, LEAVES)
        | st.tuples(st.just("remove"), places, st.none())
        | st.tuples(st.just("add"), places, JSON_VALUES)
        | st.tuples(st.just("copy"), places, places)
        | st.tuples(st.just("nest"), places, st.sampled_from([2, 20, 180]))
    )


def _places(value: object, steps: Steps = ()) -> list[Steps]:
    """Where values stand inside the document, itself included."""
    inside: list[tuple[Any, object]] = []
    if isinstance(value, dict):
        inside = list(value.items())
    elif isinstance(value, list):
        inside = list(enumerate(value))
    return [steps, *(place for key, one in inside for place in _places(one, (*steps, key)))]


def _edited(document: object, edits: list[tuple[str, Steps, Any]]) -> object:
    for what, steps, value in edits:
        document = _edit(copy.deepcopy(document), what, steps, value)
    return document


def _edit(document: Any, what: str, steps: Steps, value: Any) -> object:
    """The document after one edit; an edit whose place is gone changes nothing."""
    try:
        if what == "copy":
            what, value = "replace", copy.deepcopy(_at(document, value))
        if what == "add":
            owner = _at(document, steps)
            if isinstance(owner, dict):
                owner[f"new {len(owner)}"] = value
            elif isinstance(owner, list):
                owner.append(value)
            return document
        if not steps:
            return value
        owner = _at(document, steps[:-1])
        if what == "nest":
            what, depth, value = "replace", value, owner[steps[-1]]
            for _ in range(depth):
                value = {**value, steps[-1]: value}
        if what == "replace":
            owner[steps[-1]] = value
        else:
            del owner[steps[-1]]
    except (KeyError, IndexError, TypeError):
        pass
    return document


def _at(document: Any, steps: Steps) -> Any:
    for step in steps:
        document = document[step]
    return document
