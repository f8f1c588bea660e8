"""Draw every figure of README and docs from its record: `python -m benchmarks.figures [--measure]`.

A figure is a picture of a JSON record beside it; `--measure` makes the records anew first.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import lastword
from lastword.survival import LengthDistribution, save_lengths

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
MODEL = "tests/golden/llada-tiny-eos"  # trained for minutes to end like a chat model; no tokenizer
PROMPT = [94, 183, 254, 187, 5, 49, 312, 245, 285, 156, 318, 338]
LIMIT = 64


def measure_survival() -> dict[str, object]:
    """The record behind the survival curve: one probe of a tiny checkpoint."""
    model = lastword.load(ROOT / MODEL, device="cpu")
    lengths = lastword.predict_length(model, PROMPT, limit=LIMIT)
    return {
        "model": MODEL,
        "prompt": PROMPT,
        "limit": LIMIT,
        "hazard": [round(h, 6) for h in lengths.hazard[0].tolist()],
    }


def draw_survival(record: Path) -> None:
    """The first picture a reader sees: a survival curve meeting its horizon."""
    hazard = torch.tensor([json.loads(record.read_text())["hazard"]], dtype=torch.float64)
    save_lengths(LengthDistribution.from_hazard(hazard), record.with_suffix(".png"))


def main() -> None:
    """Measure if asked, then draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="make the records anew")
    given = parser.parse_args()
    FIGURES.mkdir(parents=True, exist_ok=True)
    record = FIGURES / "survival.json"
    if given.measure or not record.is_file():
        record.write_text(json.dumps(measure_survival(), indent=1) + "\n")
    draw_survival(record)
    print(f"drew {record.with_suffix('.png').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
