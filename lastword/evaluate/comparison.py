"""A paired comparison of two sets of records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lastword.errors import SettingError, WrongTypeError
from lastword.evaluate import tables
from lastword.evaluate.journal import read_records
from lastword.evaluate.records import Answer, Record
from lastword.validation import is_list, short_repr

Records = Sequence[Record] | Path | str


@dataclass(frozen=True)
class Comparison:
    """Two recipes or models compared on the samples that both answered.

    Costs are those of the second divided by those of the first, probes included; None if a cost is unknown.
    """

    names: tuple[str, str]
    samples: int
    accuracy: tuple[float, float]
    difference: float  # of the second's accuracy from the first's
    standard_error: float  # of the difference
    won: int  # samples that only the second answered correctly
    lost: int  # samples that only the first answered correctly
    p_value: float  # of the exact two-sided McNemar test
    forward_passes: float | None
    tokens_computed: float | None
    seconds: float | None
    left_out: Mapping[str, int] = field(default_factory=dict)  # number of samples by reason
    tasks: Mapping[str, Comparison] = field(default_factory=dict)  # the same for each task, if there are several

    def __str__(self) -> str:
        costs = {
            "forward passes": self.forward_passes,
            "tokens computed": self.tokens_computed,
            "seconds": self.seconds,
        }
        known = [f"{name} {ratio:.3g}" for name, ratio in costs.items() if ratio is not None]
        lines = [
            f"{self.names[1]}, compared with {self.names[0]} on {self.samples} samples",
            f"accuracy {self.accuracy[1]:.3f}, not {self.accuracy[0]:.3f}: {self.difference:+.3f} ± "
            f"{self.standard_error:.3f}, {self.won} won, {self.lost} lost, p = {self.p_value:.2g}",
        ]
        if known:
            lines.append(f"cost as a share of the first's: {', '.join(known)}")
        lines += [f"left out: {count} samples, {reason}" for reason, count in self.left_out.items()]
        lines += [
            f"  {task}: {one.samples} samples, {one.difference:+.3f} ± {one.standard_error:.3f}, p = {one.p_value:.2g}"
            for task, one in self.tasks.items()
        ]
        return "\n".join(lines)


def compare(records_a: Records, records_b: Records) -> Comparison:
    """Compare two sets of records on the samples that both answered, with an exact paired test.

    A set is the records of one recipe and one model, or a file or folder of them. `by_recipe` divides the records of a
    folder. Samples that only one set has, or that the sets asked with different prompts, are left out and counted.
    """
    first, second = (_answers(name, given) for name, given in (("records_a", records_a), ("records_b", records_b)))
    sizes = [len({*map(tables.sample_key, records)}) for records in (first, second)]
    shared = [*zip(*tables.on_shared_samples(first, second))]
    pairs = [(a, b) for a, b in shared if len({a.prompt, b.prompt} - {None}) < 2]  # published records have no digest
    left_out = {
        "which only the first answered": sizes[0] - len(shared),
        "which only the second answered": sizes[1] - len(shared),
        "whose prompts differ": len(shared) - len(pairs),
    }
    if not pairs:
        reasons = "; ".join(f"{count} {reason}" for reason, count in left_out.items() if count)
        raise SettingError(f"the two sets of records have no sample in common ({reasons}); measure the same samples")
    names = _names(first[0], second[0])
    tasks = dict.fromkeys(record.task for record, _ in pairs)
    by_task = {task: _compared(names, [pair for pair in pairs if pair[0].task == task]) for task in tasks}
    counted = {reason: count for reason, count in left_out.items() if count}
    return _compared(names, pairs, counted, by_task if len(by_task) > 1 else {})


def _compared(
    names: tuple[str, str],
    pairs: Sequence[tuple[Answer, Answer]],
    left_out: Mapping[str, int] | None = None,
    tasks: Mapping[str, Comparison] | None = None,
) -> Comparison:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    differences = [b.score - a.score for a, b in pairs]
    correct = [record.correct for record in first], [record.correct for record in second]
    return Comparison(
        names,
        len(pairs),
        (sum(a.score for a in first) / len(pairs), sum(b.score for b in second) / len(pairs)),
        sum(differences) / len(pairs),
        tables.standard_error(differences),
        sum(b and not a for a, b in zip(*correct)),
        sum(a and not b for a, b in zip(*correct)),
        tables.paired_p(*correct),
        _cost_ratio(first, second, "forward_passes"),
        _cost_ratio(first, second, "tokens_computed"),
        _ratio(_seconds(second), _seconds(first)),
        left_out or {},
        tasks or {},
    )


def _answers(name: str, given: Records) -> list[Answer]:
    """Return the answers of one recipe and one model; raise an error if there are none, or several recipes."""
    records = read_records(Path(given)) if isinstance(given, (str, Path)) else given
    if not is_list(records) or not all(isinstance(record, Record) for record in records):
        raise WrongTypeError(
            f"compare({name}={short_repr(given)}) was given; give a list of records, or a file or folder of them"
        )
    answers = tables.latest(record for record in records if isinstance(record, Answer))
    if not answers:
        raise SettingError(f"{name} has no answers; measure some with lastword eval")
    arms = dict.fromkeys(f"{record.model}, {record.recipe.label()}, seed {record.seed}" for record in answers)
    if len(arms) > 1:
        raise SettingError(
            f"{name} has the answers of {len(arms)} recipes or models ({'; '.join(arms)}); give those of one, for "
            "example a value of lastword.evaluate.by_recipe(records)"
        )
    return answers


def _names(first: Answer, second: Answer) -> tuple[str, str]:
    """Return a name for each set: its recipe, and its model, dtype or seed if these differ."""
    facts = [(tables.recipe_title(r.recipe), r.model, r.dtype, f"seed {r.seed}", r.layout) for r in (first, second)]
    differing = [at for at in range(len(facts[0])) if facts[0][at] != facts[1][at]] or [0]
    return ", ".join(facts[0][at] for at in differing), ", ".join(facts[1][at] for at in differing)


def _cost_ratio(first: Sequence[Answer], second: Sequence[Answer], cost: tables.Cost) -> float | None:
    return _ratio(tables.total_cost(second, cost), tables.total_cost(first, cost))


def _seconds(records: Sequence[Answer]) -> float:
    return math.nan if any(record.share_of_time is None for record in records) else tables.total_seconds(records)


def _ratio(numerator: float, denominator: float) -> float | None:
    """Return the ratio of two costs, or None if one of them is unknown."""
    if not numerator or not denominator or math.isnan(numerator / denominator):
        return None
    return numerator / denominator
