"""Make the training corpus: `python -m training.data`, minutes on two cores, the same bytes by seed.

Training runs on a machine without the generators, so the examples travel as token ids, one packed
file per tokenizer. What a model family puts around them (chat frames, end tokens) is added there.
"""

from __future__ import annotations

import argparse
import io
import time
import zipfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np

from lastword.models.tokenizer import Tokenizer
from lastword.tasks import FAMILIES, Example, load_frozen
from training.corpus import Examples, read_tokenizer
from training.tasks.generators import example_stream

TOKENIZERS = ("llada", "dream")
# Examples of a family in units of --per-family. Code is learnt soonest, and a model that writes it
# perfectly gains nothing from more; the known-hazard task is there to be measured, not mastered.
SHARES = {"complete_function": 0.6, "write_function": 0.6, "known_hazard": 0.2}
CHUNK = 2500
Job = tuple[str, int, int, tuple[str, ...]]


def tokenised(examples: Iterable[Example], tokenizer: Tokenizer) -> Examples:
    """Return prompts and answers, encoded separately as in decoding."""
    return Examples.from_pairs([(tokenizer.encode(e.prompt), tokenizer.encode(e.answer)) for e in examples])


def _chunk(job: Job) -> list[Examples]:
    """Encode a worker's share: a stretch of a family, from a separate random stream."""
    family, seed, count, folders = job
    examples = list(islice(example_stream("train", family, seed), count))
    return [tokenised(examples, read_tokenizer(Path(folder))) for folder in folders]


def jobs(per_family: int, seed: int, folders: tuple[str, ...]) -> list[Job]:
    """Everything to generate, cut into equal pieces of work."""
    return [
        (family, seed * 1_000_000 + start, min(CHUNK, total - start), folders)
        for family in FAMILIES
        for total in [int(per_family * SHARES.get(family, 1))]
        for start in range(0, total, CHUNK)
    ]


def make(per_family: int, seed: int, out: Path, workers: int) -> None:
    """Write `out/<tokenizer>.npz` for both tokenizers. Families stay together, which packs better."""
    work = jobs(per_family, seed, tuple(str(out / f"tiny-{name}-base") for name in TOKENIZERS))
    parts: list[list[Examples]] = []
    began = time.perf_counter()
    with ProcessPoolExecutor(workers) as pool:
        for done, part in enumerate(pool.map(_chunk, work), 1):
            parts.append(part)
            if done % 10 == 0 or done == len(work):
                print(f"{done}/{len(work)} chunks, {time.perf_counter() - began:.0f} s", flush=True)
    for name, train in zip(TOKENIZERS, map(Examples.join, zip(*parts)), strict=True):
        held_out = [e for family in FAMILIES for e in load_frozen("validation", family)]
        validation = tokenised(held_out, read_tokenizer(out / f"tiny-{name}-base"))
        path = out / f"{name}.npz"
        write(path, {"train": train, "validation": validation})
        size = path.stat().st_size / 2**20
        print(f"{path}: {len(train)} examples, {len(train.tokens) / 1e6:.1f}M tokens, {size:.1f} MiB")


def write(path: Path, splits: dict[str, Examples]) -> None:
    """An npz packed by LZMA: half of what numpy's own compression leaves, and numpy reads it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        for split, examples in splits.items():
            for field, array in vars(examples).items():
                buffer = io.BytesIO()
                np.save(buffer, array)
                # A fixed date: the same examples are the same file.
                entry = zipfile.ZipInfo(f"{split}_{field}.npy")
                file.writestr(entry, buffer.getvalue(), zipfile.ZIP_LZMA)


def main() -> None:
    """Read the tokenizers in OUT and write the corpus to the same folder."""
    parser = argparse.ArgumentParser(description="Make the training corpus of the embedded models.")
    parser.add_argument("--out", type=Path, default=Path("out/recipe"), help="holds the tokenizers")
    parser.add_argument("--per-family", type=int, default=100_000, help="training examples")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    make(given.per_family, given.seed, given.out, given.workers)


if __name__ == "__main__":
    main()
