"""Write the frozen held-out prompts again, with the same bytes: `python -m training.tasks.freeze`."""

from __future__ import annotations

import json
import lzma
import sys
from itertools import islice

from lastword.tasks import FAMILIES, Example
from lastword.tasks.families import COUNTS, frozen_path
from training.tasks.generators import example_stream

SEED = 2024


def frozen_examples(split: str, family: str, count: int | None = None) -> tuple[Example, ...]:
    """Generate the first `count` frozen examples (default: all of them)."""
    return tuple(islice(example_stream(split, family, SEED), count or COUNTS[split]))


def main() -> None:
    """Generate every held-out split and overwrite its file."""
    for split in COUNTS:
        for family in FAMILIES:
            examples = frozen_examples(split, family)
            lines = "".join(json.dumps([e.prompt, e.answer, e.target]) + "\n" for e in examples).encode()
            frozen_path(split, family).write_bytes(lzma.compress(lines, preset=9 | lzma.PRESET_EXTREME))
            sys.stdout.write(f"{split}-{family}: {COUNTS[split]} examples, {len(lines) // 1024} KiB of text\n")


if __name__ == "__main__":
    main()
