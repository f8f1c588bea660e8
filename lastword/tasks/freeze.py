"""Write the frozen held-out prompts again, the same bytes: `python -m lastword.tasks.freeze`."""

from __future__ import annotations

import gzip
import sys
from itertools import islice

from lastword.tasks import FAMILIES
from lastword.tasks.frozen import COUNTS, path_of, to_lines
from lastword.tasks.split import stream
from lastword.tasks.task import Example

SEED = 2024


def frozen_examples(split: str, family: str, count: int | None = None) -> tuple[Example, ...]:
    """Generate the first `count` frozen examples (default: all of them)."""
    return tuple(islice(stream(split, FAMILIES[family], SEED), count or COUNTS[split]))


def main() -> None:
    """Generate every held-out split and overwrite its file."""
    for split in COUNTS:
        for family in FAMILIES:
            lines = to_lines(frozen_examples(split, family)).encode()
            path_of(split, family).write_bytes(gzip.compress(lines, 9, mtime=0))
            size = len(lines) // 1024
            sys.stdout.write(f"{split}-{family}: {COUNTS[split]} examples, {size} KiB of text\n")


if __name__ == "__main__":
    main()
