"""The record of a run, and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from benchmarks.hostile.clients import KINDS
from lastword.bench import Figure, RecordPart, Setting
from lastword.errors import SettingError
from lastword.io.schema import Count, Text, read_json_object, validate

HEAD = (
    "| hostile clients | connections | `/health`: before, during (longest), after | "
    "short answer: before, during (longest), after | memory, MB | left over |\n|---|" + "---:|" * 5
)


class Latency(RecordPart):
    """The median latency of a healthy client before, during and after an attack, in seconds."""

    before: Figure
    during: Figure
    longest: Figure  # during the attack
    after: Figure
    failed: Count  # requests without a response of status 200, at any time

    def cell(self) -> str:
        """Return the latencies in milliseconds."""
        before, during, longest, after = (
            f"{1000 * seconds:,.0f}" for seconds in (self.before, self.during, self.longest, self.after)
        )
        failed = f", **{self.failed} failed**" if self.failed else ""
        return f"{before}, {during} ({longest}), {after}{failed}"


class HostileLine(RecordPart):
    """One kind of hostile client."""

    kind: Text
    connections: Count
    open: Count  # connections of the server during the attack, at most
    health: Latency
    answer: Latency
    memory_before: Figure  # MB
    memory_during: Figure  # MB, at most
    memory_after: Figure
    files_left: Count  # open files after the attack that were not open before
    answers_left: Count  # running or waiting answers after the attack


class HostileRecord(RecordPart):
    """A run of `python -m benchmarks.hostile`."""

    kind: Literal["hostile"] = "hostile"
    model: Text
    hardware: Text
    versions: dict[Text, Text]
    settings: dict[Text, Setting]
    lines: list[HostileLine]

    def to_json(self) -> str:
        """Return the record as JSON with one text line per kind of client."""
        data = json.loads(self.model_dump_json(), parse_float=lambda number: float(f"{float(number):.4g}"))
        lines = ",\n  ".join(json.dumps(line) for line in data.pop("lines"))
        return f'{json.dumps(data, indent=1)[:-2]},\n "lines": [\n  {lines}\n ]\n}}\n'


def read(path: Path) -> HostileRecord:
    """Return the record in a file."""
    try:
        return validate(HostileRecord, read_json_object(path))
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} is not a record of benchmarks.hostile ({error})") from error


def table(record: HostileRecord) -> str:
    """Return a record as Markdown."""
    rows = []
    for line in record.lines:
        memory = f"{line.memory_before:,.0f}, {line.memory_during:,.0f}, {line.memory_after:,.0f}"
        left = f"{line.files_left} files, {line.answers_left} answers"
        cells = [
            KINDS[line.kind].description, f"{line.connections:,}", line.health.cell(),
            line.answer.cell(), memory, left if line.files_left or line.answers_left else "nothing",
        ]  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    settings = record.settings
    intro = (
        f"**{record.model}**, {record.hardware}: each kind for {settings['seconds']} seconds. Latencies in "
        f"milliseconds of one client that sends one request after the other, on new connections."
    )
    return "\n".join([intro, "", HEAD, *rows])
