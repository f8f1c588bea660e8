"""Frozen held-out prompts: reading them needs neither a generator nor a third-party package."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from lastword.errors import TaskError
from lastword.tasks.families import Example

FOLDER = Path(__file__).parent / "data"
COUNTS = {"validation": 300, "test": 1200}  # examples per family


def load_frozen(split: str, family: str) -> tuple[Example, ...]:
    """Return the held-out examples of a family: 300 of `validation` or 1,200 of `test`, always the same ones.

    >>> load_frozen("test", "algebra")[0].target
    '2'
    """
    path = frozen_path(split, family)
    if not path.exists():
        known = sorted(file.name.removesuffix(".jsonl.xz") for file in FOLDER.glob("*.jsonl.xz"))
        raise TaskError(f"there are no frozen prompts {split}-{family}; there are {', '.join(known)}")
    try:
        lines = lzma.decompress(path.read_bytes()).decode().splitlines()
        examples = tuple(Example(family, *json.loads(line)) for line in lines)
        if len(examples) != COUNTS[split]:
            raise ValueError(f"it has {len(examples)} examples, not {COUNTS[split]}")
        return examples
    except (OSError, EOFError, lzma.LZMAError, ValueError, TypeError) as error:
        raise TaskError(
            f"{path}, the frozen prompts of {family}, cannot be read ({error}); install lastword again"
        ) from error


def frozen_path(split: str, family: str) -> Path:
    """Return the file of a split of a family: xz-compressed lines of [prompt, answer, target]."""
    return FOLDER / f"{split}-{family}.jsonl.xz"
