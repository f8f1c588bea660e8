"""What a player has to know of one run, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from lastword.replay.frames import Frame
from lastword.survival import LengthDistribution

DIGITS = 4  # of probabilities: more cannot be seen

Slot = tuple[str | None, int | None, float | None]  # text, pass, confidence; no text: a mask


def run(
    frames: Sequence[Frame], lengths: LengthDistribution | None, told: Mapping[str, Any]
) -> dict[str, Any]:
    """The frames, what the probe said, and what a Generation tells of itself."""
    end = frames[-1].end if frames else None
    probe, cost = told["probe_cost"], told["cost"]
    return {
        "title": told["recipe"],
        "prompt": told["prompt"],
        "text": told["text"],
        "horizon": told["horizon"],
        "finish": told["finish"],
        "end": None if end is None else end + 1,  # a length counts its end token
        "lengths": None if lengths is None else lengths_data(lengths),
        "ledger": {
            "passes": cost["passes"],
            "columns": cost["columns"],
            "probe_passes": probe["passes"],
            "probe_columns": probe["columns"],
            "seconds": told["seconds"],
            "tokens": len(told["tokens"]),
        },
        "frames": [*changes(frames)],
    }


def lengths_data(lengths: LengthDistribution) -> dict[str, Any]:
    """One prompt's survival curve and the numbers that mark it."""
    return {
        "mean": round(lengths.mean.item(), DIGITS),
        "median": int(lengths.quantile(0.5)),
        "q90": int(lengths.quantile(0.9)),
        "tail": round(lengths.tail.item(), DIGITS),
        "survival": [round(value, DIGITS) for value in lengths.survival.tolist()],
    }


def changes(frames: Sequence[Frame]) -> Iterator[dict[str, Any]]:
    """Each frame as what changed since the one before: a run has as many slots as passes, or more."""
    before: list[Slot] = []
    for frame in frames:
        now = [*map(_slot, frame.tokens, frame.texts, frame.fixed, frame.confidence)]
        pairs = enumerate(zip_longest(before, now))
        yield {
            "passes": frame.passes,
            "columns": frame.columns,
            "slots": len(now),
            "end": frame.end,
            "set": [[slot, *new] for slot, (old, new) in pairs if new is not None and old != new],
        }
        before = now


def _slot(token: int | None, text: str, fixed: int | None, confidence: float | None) -> Slot:
    sure = None if confidence is None else round(confidence, DIGITS)
    return (None if token is None else text), fixed, sure
