"""How often a model is right on held-out prompts: `python -m recipes.check out/models/tiny-llada-base`.

A fixed canvas of 256, one token a pass, the surest first: the setting every shortened canvas is
compared with. Decoding is the library's own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import lastword
from benchmarks.ask import ask
from lastword.models.predictor import MaskPredictor
from lastword.tasks import BENCHMARKS, FAMILIES, Example, Split, load_frozen

CANVAS = 256


def answers(
    model: MaskPredictor,
    examples: Sequence[Example],
    *,
    chat: bool,
    rows: int,
    canvas: int = CANVAS,
) -> list[str]:
    """The model's text for every example, `rows` at a time, prompts of like length together."""
    texts = [""] * len(examples)
    for reply in ask(model, examples, lastword.Fixed(canvas), rows, chat=chat):
        texts[reply.place] = reply.answer.text or ""
    return texts


def check(
    name: str | Path, split: Split, per_family: int, *, rows: int = 250, device: str = "auto"
) -> dict[str, float]:
    """Share of right answers by family, and their mean."""
    model = lastword.load(name, device=device)
    chat = getattr(model.tokenizer, "chat_template", None) is not None
    asked = {family: load_frozen(split, family)[:per_family] for family in BENCHMARKS}
    flat = [example for examples in asked.values() for example in examples]
    texts = iter(answers(model, flat, chat=chat, rows=rows))
    shares = {}
    for family, examples in asked.items():
        right = FAMILIES[family].score_all(examples, list(islice(texts, len(examples))))
        shares[family] = round(sum(right) / len(right), 4)
    return {**shares, "mean": round(sum(shares.values()) / len(shares), 4)}


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description="Held-out accuracy on the fixed canvas.")
    parser.add_argument("model", help="an embedded model, or the folder of an exported one")
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--per-family", type=int, default=100)
    parser.add_argument("--rows", type=int, default=250, help="prompts decoded at once")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    shares = check(given.model, given.split, given.per_family, rows=given.rows, device=given.device)
    asked = {"model": Path(given.model).name, "split": given.split, "per_family": given.per_family}
    print(json.dumps(asked | shares))


if __name__ == "__main__":
    main()
