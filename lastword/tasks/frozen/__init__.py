"""The held-out prompts, frozen: reading them needs neither a generator nor a third-party package."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

from lastword.errors import TaskError
from lastword.tasks.task import Example

FOLDER = Path(__file__).parent
COUNTS = {"validation": 300, "test": 1200}


def load_frozen(split: str, family: str) -> tuple[Example, ...]:
    """The held-out examples of a family: 300 of `validation` or 1200 of `test`, always the same ones."""
    path = path_of(split, family)
    if not path.exists():
        known = sorted(p.name.removesuffix(".jsonl.gz") for p in FOLDER.glob("*.gz"))
        raise TaskError(f"nothing is frozen as {split}-{family}; there are {', '.join(known)}.")
    try:
        found = from_lines(family, gzip.decompress(path.read_bytes()).decode())
        if len(found) != COUNTS[split]:
            raise ValueError(f"it has {len(found)} examples, not {COUNTS[split]}")
        return found
    except (OSError, EOFError, zlib.error, ValueError, TypeError) as damaged:
        raise TaskError(
            f"{path}, the frozen prompts of {family}, cannot be read ({damaged}); install lastword again"
        ) from damaged


def path_of(split: str, family: str) -> Path:
    """Where a split of a family is kept."""
    return FOLDER / f"{split}-{family}.jsonl.gz"


def to_lines(examples: tuple[Example, ...]) -> str:
    """One JSON array per example: prompt, answer, target."""
    return "".join(json.dumps([e.prompt, e.answer, e.target]) + "\n" for e in examples)


def from_lines(family: str, lines: str) -> tuple[Example, ...]:
    """The inverse of `to_lines`."""
    return tuple(Example(family, *json.loads(line)) for line in lines.splitlines())
