"""Which records answer the same sample, and which may be compared at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from lastword.eval.journal import IDENTITY, Record

Key = tuple[str, str, int]


def sample_of(record: Record) -> Key:
    """The sample a record answers: under another version of its task it is another one."""
    return record["task"], record.get("task_version") or "", record["place"]


def latest(records: Iterable[Record]) -> list[Record]:
    """Each answer once, the last one given: a folder may hold a record twice."""
    rest = [name for name in IDENTITY if name != "recipe"]
    return list(
        {
            (recipe, *map(record.get, rest)): record
            for recipe, mine in by_recipe(records).items()
            for record in mine
        }.values()
    )


def by_recipe(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records by their recipe as JSON, in order of first appearance.

    Records of one archive share the recipe itself, so that few of a hundred thousand are written out.
    """
    texts: dict[int, tuple[object, str]] = {}
    found: dict[str, list[Record]] = {}
    for record in records:
        recipe = record["recipe"]
        if id(recipe) not in texts:
            texts[id(recipe)] = (recipe, json.dumps(recipe))  # held, so that no other takes its id
        found.setdefault(texts[id(recipe)][1], []).append(record)
    return found


def answers(records: Iterable[Record], split: str = "test") -> list[Record]:
    """The decoded answers of a split, each once."""
    return [
        record
        for record in latest(records)
        if record.get("kind", "answer") == "answer" and record.get("split", "test") == split
    ]


def by_subject(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records by who answered: a model, or one of its seeds, weights or layouts if there are several.

    Answers are compared within one of these and never across.
    """
    models: dict[str, dict[tuple[str, ...], list[Record]]] = {}
    for record in records:
        facts = [record.get(name) for name in APART]
        who = tuple("" if fact is None else str(fact) for fact in facts)
        models.setdefault(record["model"], {}).setdefault(who, []).append(record)
    found = {}
    for model, mine in models.items():
        differ = [at for at in range(len(APART)) if len({who[at] for who in mine}) > 1]
        for who, own in mine.items():
            said = ", ".join(f"{APART[at]} {who[at]}" for at in differ)
            found[f"{model} ({said})" if said else model] = own
    return found


APART = ("weights", "seed", "layout")


def on_shared(*arms: Sequence[Record]) -> list[list[Record]]:
    """The arms on the samples all of them answered, in the same order."""
    by_sample = [{sample_of(record): record for record in arm} for arm in arms]
    keys = [key for key in by_sample[0] if all(key in other for other in by_sample)]
    return [[arm[key] for key in keys] for arm in by_sample]
