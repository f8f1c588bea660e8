"""Generate the training corpus: `python -m training.data`. It takes minutes on two cores.

The same seed gives the same bytes. The corpus has token ids, in one compressed file per tokenizer, so that a machine
for training does not need the generators. Training adds what depends on the model family: chat template, end tokens.
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
# The number of examples of a family, as a share of --per-family. Code is learned with fewer examples than the other
# families. The known-hazard task is used for measurements of lengths only, so few examples are enough.
SHARES = {"complete_function": 0.6, "write_function": 0.6, "known_hazard": 0.2}
CHUNK = 2500
Job = tuple[str, int, int, tuple[str, ...]]


def tokenised(examples: Iterable[Example], tokenizer: Tokenizer) -> Examples:
    """Return prompts and answers, encoded separately as in decoding."""
    return Examples.from_pairs([(tokenizer.encode(e.prompt), tokenizer.encode(e.answer)) for e in examples])


def _chunk(job: Job) -> list[Examples]:
    """Generate and encode the examples of a job, with a random stream for this job alone."""
    family, seed, count, folders = job
    examples = list(islice(example_stream("train", family, seed), count))
    return [tokenised(examples, read_tokenizer(Path(folder))) for folder in folders]


def jobs(per_family: int, seed: int, folders: tuple[str, ...]) -> list[Job]:
    """Return the jobs that together generate the corpus, of at most CHUNK examples each."""
    return [
        (family, seed * 1_000_000 + start, min(CHUNK, total - start), folders)
        for family in FAMILIES
        for total in [int(per_family * SHARES.get(family, 1))]
        for start in range(0, total, CHUNK)
    ]


def make(per_family: int, seed: int, out: Path, workers: int) -> None:
    """Write `out/<tokenizer>.npz` for both tokenizers. The files keep families together, which compresses better."""
    work = jobs(per_family, seed, tuple(str(out / f"tiny-{name}-base") for name in TOKENIZERS))
    parts: list[list[Examples]] = []
    began = time.perf_counter()
    with ProcessPoolExecutor(workers) as pool:
        for finished, part in enumerate(pool.map(_chunk, work), 1):
            parts.append(part)
            if finished % 10 == 0 or finished == len(work):
                print(f"{finished}/{len(work)} chunks, {time.perf_counter() - began:.0f} s", flush=True)
    for name, train in zip(TOKENIZERS, map(Examples.join, zip(*parts)), strict=True):
        held_out = [e for family in FAMILIES for e in load_frozen("validation", family)]
        validation = tokenised(held_out, read_tokenizer(out / f"tiny-{name}-base"))
        path = out / f"{name}.npz"
        write(path, {"train": train, "validation": validation})
        size = path.stat().st_size / 2**20
        print(f"{path}: {len(train)} examples, {len(train.tokens) / 1e6:.1f}M tokens, {size:.1f} MiB")


def write(path: Path, splits: dict[str, Examples]) -> None:
    """Write an npz file with LZMA compression, which numpy can read; it is half as large as numpy's own."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        for split, examples in splits.items():
            for field, array in vars(examples).items():
                buffer = io.BytesIO()
                np.save(buffer, array)
                # ZipInfo has a fixed date, so the same examples always give the same bytes.
                entry = zipfile.ZipInfo(f"{split}_{field}.npy")
                file.writestr(entry, buffer.getvalue(), zipfile.ZIP_LZMA)


def main() -> None:
    """Parse the arguments, read the tokenizers in OUT, and write the corpus to the same folder."""
    parser = argparse.ArgumentParser(description="Generate the training corpus of the embedded models.")
    parser.add_argument("--out", type=Path, default=Path("out/recipe"), help="folder that contains the tokenizers")
    parser.add_argument("--per-family", type=int, default=100_000, help="number of training examples per family")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    make(args.per_family, args.seed, args.out, args.workers)


if __name__ == "__main__":
    main()
