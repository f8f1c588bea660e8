"""Which records answer the same sample, and which may be compared at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TypeVar

from lastword.evaluate.records import IDENTITY, Answer, Asked, Record
from lastword.recipe.recipe import Recipe

Key = tuple[str, str, int]
AnyRecord = TypeVar("AnyRecord", bound=Asked)
APART = ("weights", "dtype", "seed", "layout")
# Without the prompt's digest, which an archive does not keep: it may lie beside the journal it was made of.
_identity_in_arm = attrgetter(*(name for name in IDENTITY if name not in ("recipe", "prompt")))


def sample_of(record: Asked) -> Key:
    """The sample a record answers: under another version of its task it is another one."""
    return record.task, record.task_version, record.index


def latest(records: Iterable[AnyRecord]) -> list[AnyRecord]:
    """Each answer once, the last one given: a folder may hold a record twice."""
    return [
        record
        for mine in by_recipe(records).values()
        for record in {_identity_in_arm(record): record for record in mine}.values()
    ]


def by_recipe(records: Iterable[AnyRecord]) -> dict[Recipe, list[AnyRecord]]:
    """Records by their recipe, in order of first appearance."""
    found: dict[Recipe, list[AnyRecord]] = {}
    seen: dict[int, list[AnyRecord]] = {}  # most share one value, which is faster known than hashed
    for record in records:
        mine = seen.get(id(record.recipe))
        if mine is None:
            mine = seen[id(record.recipe)] = found.setdefault(record.recipe, [])
        mine.append(record)
    return found


def answers(records: Iterable[Record], split: str = "test") -> list[Answer]:
    """The decoded answers of a split, each once."""
    return latest(r for r in records if isinstance(r, Answer) and r.split == split)


def by_subject(records: Iterable[AnyRecord]) -> dict[str, list[AnyRecord]]:
    """Records by who answered: a model, or one of its weights, dtypes, seeds or layouts if there are several.

    Answers are compared within one of these and never across.
    """
    models: dict[str, dict[tuple[str, ...], list[AnyRecord]]] = {}
    for record in records:
        who = (record.weights, record.dtype, str(record.seed), record.layout)
        models.setdefault(record.model, {}).setdefault(who, []).append(record)
    found = {}
    for model, mine in models.items():
        differ = [at for at in range(len(APART)) if len({who[at] for who in mine}) > 1]
        for those, own in mine.items():
            said = ", ".join(f"{APART[at]} {those[at]}" for at in differ)
            found[f"{model} ({said})" if said else model] = own
    return found


def lengths_written(records: Iterable[Answer]) -> dict[Key, int]:
    """Lengths of the answers that were finished, end token included, by their sample."""
    ended = [record for record in records if record.finish == "ended"]
    return {sample_of(r): r.length + 1 for r in ended if r.length is not None}


def on_shared(*arms: Sequence[AnyRecord]) -> list[list[AnyRecord]]:
    """The arms on the samples all of them answered, in the same order."""
    by_sample = [{sample_of(record): record for record in arm} for arm in arms]
    keys = [key for key in by_sample[0] if all(key in other for other in by_sample)]
    return [[arm[key] for key in keys] for arm in by_sample]
