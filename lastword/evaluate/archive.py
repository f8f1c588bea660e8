"""An arm in few bytes: the records of one recipe on one model and split, as columns in a file of their own.

An archive is what a repository keeps of a journal. Texts, digests of single prompts, squares, what the probe
said and each row's own clock are left out; so are lengths of answers, except on a plain fixed canvas, which
others are held against. The rest is what tables need. The same records make the same bytes, and a file
that already says the same is left alone: adding an arm rewrites none.

`packed` says how a file is written. A number that others tell is kept as the difference, mostly 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields
from hashlib import sha256
from itertools import groupby, islice, pairwise, repeat
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from lastword.errors import SettingError
from lastword.evaluate import packed
from lastword.evaluate.packed import Column, Numbers
from lastword.evaluate.records import (
    FINISHES,
    IDENTITY,
    Answer,
    Drift,
    Fields,
    RecipeField,
    Record,
    RowCount,
    Sandbox,
    Seconds,
    Spent,
    unchecked,
)
from lastword.io.schema import STRICT, Seed, Text, Value, error_reason, read_bytes
from lastword.policies.cache import NoCache
from lastword.policies.commit import Never
from lastword.policies.length.fixed import Fixed
from lastword.recipe.recipe import Recipe

ENDING = ".arm.xz"
LARGEST = 2**30  # passes, and columns of one: their products are whole numbers of 64 bits
DECIMALS = 10**4  # scores and expected lengths have four
SHARED = (
    "kind", "model", "weights", "recipe", "seed", "split", "layout", "hardware", "dtype", "versions",
)  # fmt: skip
STEP = "step_"  # begins the names of the columns of drift
QUESTION = tuple(name for name in IDENTITY if name != "prompt")  # an archive has no single prompts
OF_TASK = ("task", "group", "task_version", "sandbox")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TaskShare:
    """What the records of one task share, and how many they are."""

    task: Text
    group: Text
    task_version: Text
    sandbox: Sandbox | None = None
    samples: RowCount


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Header:
    """What the records of an arm share."""

    kind: Literal["answer", "drift"]
    model: Text
    weights: Text
    recipe: RecipeField
    seed: Seed
    split: Text
    layout: Text
    hardware: Text
    dtype: Text
    versions: dict[Text, Text]
    tasks: Annotated[list[TaskShare], Field(min_length=1)]
    prompts: Text  # a digest of all, by task and index
    seconds: list[Seconds | None]  # of batches, each once; a column says which


_HEADER: TypeAdapter[Header] = TypeAdapter(Header)


def pack(records: Sequence[Record]) -> bytes:
    """The records of one arm, in any order."""
    if not records:
        raise SettingError("an archive holds the records of an arm, and none were given")
    first = records[0]
    for name in SHARED:
        if any(getattr(record, name) != getattr(first, name) for record in records):
            raise SettingError(f"records of one arm were expected, and they differ in {name!r}")
    ordered = sorted(records, key=lambda record: (record.task, record.index))
    tasks = [list(mine) for _, mine in groupby(ordered, key=lambda record: record.task)]
    for mine in tasks:
        twice = [one.index for one, other in pairwise(mine) if one.index == other.index]
        if twice:
            raise SettingError(f"sample {twice[0]} of {mine[0].task} was given twice")
    index = np.array([r.index - at for mine in tasks for at, r in enumerate(mine)])
    answers = [record for record in ordered if isinstance(record, Answer)]
    drifts = [record for record in ordered if isinstance(record, Drift)]
    times = list(dict.fromkeys(answer.batch_seconds for answer in answers))
    columns = {"index": index} | (_of_answers(answers, times) if answers else _of_drift(drifts))
    asked = "".join(record.prompt or "" for record in ordered)
    header = Header(
        **{name: getattr(first, name) for name in SHARED},
        tasks=[_part(mine) for mine in tasks],
        prompts=sha256(asked.encode()).hexdigest()[:16],
        seconds=times,
    )
    return packed.pack(_HEADER.dump_json(header), columns)


def unpack(data: bytes) -> list[Record]:
    """The records of an archive; ValueError says what is wrong with it."""
    line, columns = packed.unpack(data)
    try:
        header = _header(line)
        samples = sum(part.samples for part in header.tasks)
        if samples != len(columns["index"]):
            raise ValueError("its tasks have other numbers of samples than its columns")
        if len({part.task for part in header.tasks}) != len(header.tasks):
            raise ValueError("it names a task twice")
        found = list(_records(header, columns))
        if len(found) != samples:
            raise ValueError(f"it says {samples} samples and has {len(found)}")
        return found
    except ValidationError as wrong:
        raise ValueError(error_reason(wrong)) from wrong
    except KeyError as missing:
        raise ValueError(f"it has no column {missing}") from missing


def _header(line: bytes) -> Header:
    try:
        return _HEADER.validate_json(line)
    except ValidationError as wrong:
        raise ValueError(error_reason(wrong)) from wrong


def keep(records: Sequence[Record], folder: Path) -> Path:
    """Write the records of one arm over those of the same arm; a file that says the same is left alone.

    An archive of other questions (another model, weights, seed ...) or with samples that are not among the
    records is refused, not replaced.
    """
    data = pack(records)
    kind, recipe = records[0].kind, records[0].recipe
    path = arms_in(folder).get((kind, recipe), folder / file_name(kind, recipe))
    if path.exists() and _arm_of(path) != (kind, recipe):  # a default has changed since
        digest = sha256(recipe.to_json().encode()).hexdigest()[:8]
        path = path.with_name(f"{path.name.removesuffix(ENDING)}_{digest}{ENDING}")
    held = _read(path, unpack) if path.exists() else []
    given = {_question(record) for record in records}
    lost = [record for record in held if _question(record) not in given]
    if lost:
        other = [name for name in SHARED if name in QUESTION]
        differ = [name for name in other if getattr(lost[0], name) != getattr(records[0], name)]
        raise SettingError(
            f"{path} holds {len(lost)} samples that are not among the {len(records)} records given"
            f"{f' (another {differ[0]})' if differ else ''} and was left as it is; move it away to keep these"
        )
    return packed.write(path, data)


def _question(record: Record) -> tuple[object, ...]:
    """What a record answers, as far as an archive tells."""
    return tuple(getattr(record, name) for name in QUESTION)


def arms_in(folder: Path) -> dict[tuple[str, Recipe], Path]:
    """The archives of a folder by what they hold: kind and recipe. Names are for people."""
    return {_arm_of(path): path for path in sorted(folder.glob(f"*{ENDING}"))}


def _arm_of(path: Path) -> tuple[str, Recipe]:
    header = _read(path, lambda data: _header(packed.unpack(data)[0]))
    return header.kind, header.recipe


def _read(path: Path, read: Callable[[bytes], Value]) -> Value:
    try:
        return read(read_bytes(path))
    except (OSError, ValueError) as wrong:
        raise SettingError(f"{path} is no archive of records ({wrong})") from wrong


def file_name(kind: str, recipe: Recipe) -> str:
    """An arm's file, named by its recipe as the command line writes it.

    >>> from lastword import Survival
    >>> file_name("answer", Recipe.named("paper").with_choices(length=Survival(256), block=32))
    'survival-256_block-32.arm.xz'
    """
    said = re.sub(r", ?", "_", re.sub(r"[()\"]", "", recipe.label()))
    return f"{'' if kind == 'answer' else f'{kind}_'}{re.sub(r'[: ]', '-', said)}{ENDING}"


def _part(records: Sequence[Record]) -> TaskShare:
    first = records[0]
    shared = {name: getattr(first, name) for name in OF_TASK}
    for name, value in shared.items():
        if any(getattr(record, name) != value for record in records):
            raise SettingError(f"records of {first.task} were expected to agree in {name!r}")
    return TaskShare(**shared, samples=len(records))


def _counted(answers: Sequence[Answer]) -> tuple[list[Spent], list[Spent]]:
    """What decodings and probes cost, if it is known of all."""
    costs = [a.cost for a in answers if a.cost is not None]
    probed = [a.probe_cost for a in answers if a.probe_cost is not None]
    if len(costs) < len(answers) or len(probed) < len(answers):
        raise SettingError(
            "some of these records are answers of a server, which does not say what decoding and probe cost; "
            "an archive holds arms whose costs are known: keep the journal"
        )
    return costs, probed


def _of_answers(answers: Sequence[Answer], times: list[float | None]) -> Numbers:
    def column(values: list[int]) -> Column:
        return np.array(values, dtype=np.int64)

    which = {seconds: at for at, seconds in enumerate(times)}
    prompt = column([a.prompt_tokens for a in answers])
    horizon = column([a.horizon for a in answers])
    costs, probed = _counted(answers)
    passes = column([spent.forward_passes for spent in costs])
    probes = column([spent.forward_passes for spent in probed])
    lengths = [a.length for a in answers if a.length is not None]
    baseline = _may_be_baseline(answers[0].recipe) and len(lengths) == len(answers)
    optional = {"length": column(lengths)} if baseline else {}
    if any(a.refused for a in answers):
        optional["refused"] = column([a.refused for a in answers])
    return {
        "prompt_tokens": prompt,
        "horizon": horizon,
        "passes": passes - horizon,
        "columns": column([spent.tokens_computed for spent in costs]) - passes * (prompt + horizon),
        "probe_passes": probes,
        "probe_columns": column([spent.tokens_computed for spent in probed]) - probes * prompt,
        "finish": column([FINISHES.index(a.finish) for a in answers]),
        "score": column([round(a.score * DECIMALS) for a in answers]),
        "rows": column([a.rows for a in answers]),
        "shortened": column([a.shortened for a in answers]),
        "seconds": column([which[a.batch_seconds] for a in answers]),
    } | optional


def _may_be_baseline(recipe: Recipe) -> bool:
    """A fixed canvas without cache and early commit: its lengths are what others are held against."""
    plain = (recipe.commit, recipe.cache) == (Never(), NoCache())
    return plain and isinstance(recipe.length, Fixed)


def _of_drift(drifts: Sequence[Drift]) -> Numbers:
    steps = sorted({step for drift in drifts for step in drift.steps})
    if any(len(drift.expected) != len(steps) for drift in drifts):
        raise SettingError("drift records of one arm were expected to have the same steps")
    return {f"{STEP}{step}": np.array([round(d.steps[step] * DECIMALS) for d in drifts]) for step in steps}


def _records(header: Header, columns: Numbers) -> Iterator[Record]:
    """Bounds are intervals: if the least and the most of every column pass the schema, so does each row."""
    kind: type[Answer | Drift]
    kind, rows = (Answer, _answers) if header.kind == "answer" else (Drift, _drifts)
    plain = _undone(header, columns)
    shared: Fields = {name: getattr(header, name) for name in SHARED}
    for end in (np.min, np.max):
        extremes = {name: end(column, keepdims=True) for name, column in plain.items()}
        for row in rows(header, extremes, _checked_work):
            kind(**shared, **_of_task(header.tasks[0]), **row)
    unsaid = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    left = rows(header, plain, _work)
    for part in header.tasks:
        same = unsaid | shared | _of_task(part)
        for row in islice(left, part.samples):
            yield unchecked(kind, same | row)


def _of_task(part: TaskShare) -> Fields:
    return {name: getattr(part, name) for name in OF_TASK}


def _checked_work(passes: int, columns: int) -> Spent:
    return Spent(passes, columns, None)


def _work(passes: int, columns: int) -> Spent:
    return unchecked(Spent, {"forward_passes": passes, "tokens_computed": columns, "attention_pairs": None})


def _undone(header: Header, columns: Numbers) -> Numbers:
    """The columns as numbers of their own, not as differences."""
    positions = np.concatenate([np.arange(part.samples) for part in header.tasks])
    if any((np.diff(columns["index"]) < 0) & (np.diff(positions) > 0)):
        raise ValueError("it has a sample twice, or samples out of order")
    plain = columns | {"index": columns["index"] + positions}
    if header.kind == "drift":
        return plain
    prompt, horizon, probes = (columns[n] for n in ("prompt_tokens", "horizon", "probe_passes"))
    known = {"finish": len(FINISHES), "seconds": len(header.seconds), "shortened": 2}
    for name, most in (known | dict.fromkeys(("prompt_tokens", "horizon", "probe_passes"), LARGEST)).items():
        _check_between(name, columns[name], 0, most - 1)
    _check_between("passes", columns["passes"], -LARGEST, LARGEST)
    passes = columns["passes"] + horizon
    return plain | {
        "passes": passes,
        "columns": columns["columns"] + passes * (prompt + horizon),
        "probe_columns": columns["probe_columns"] + probes * prompt,
    }


def _check_between(name: str, column: Column, least: int, most: int) -> None:
    if column.min() < least or column.max() > most:
        raise ValueError(f"column {name!r} has numbers outside {least} to {most}")


def _answers(header: Header, columns: Numbers, work: Callable[[int, int], Spent]) -> Iterator[Fields]:
    """The fields that each answer has to itself."""
    names = (
        "index", "prompt_tokens", "horizon", "passes", "columns", "probe_passes", "probe_columns",
        "finish", "rows", "shortened", "seconds",
    )  # fmt: skip
    lists = [columns[name].tolist() for name in names]
    scores = (columns["score"] / DECIMALS).tolist()
    lengths = columns["length"].tolist() if "length" in columns else repeat(None)
    refused = columns["refused"].tolist() if "refused" in columns else repeat(0)
    for row, score, length, unrun in zip(zip(*lists), scores, lengths, refused):
        index, prompt, horizon, passes, wide, probes, probe, finish, rows, shorter, clock = row
        yield {
            "index": index,
            "prompt_tokens": prompt,
            "horizon": horizon,
            "cost": work(passes, wide),
            "probe_cost": work(probes, probe),
            "finish": FINISHES[finish],
            "score": score,
            "rows": rows,
            "shortened": bool(shorter),
            "refused": bool(unrun),
            "batch_seconds": header.seconds[clock],
            "length": length,
        }


def _drifts(header: Header, columns: Numbers, work: Callable[[int, int], Spent]) -> Iterator[Fields]:
    steps = [name.removeprefix(STEP) for name in columns if name.startswith(STEP)]
    lengths = zip(*((columns[f"{STEP}{step}"] / DECIMALS).tolist() for step in steps))
    for index, expected in zip(columns["index"].tolist(), lengths):
        yield {"index": index, "expected": dict(zip(steps, expected))}
