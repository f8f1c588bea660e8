"""Replay files: one HTML page that plays a recorded run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any

from lastword.errors import SettingError
from lastword.io.files import check_target, os_error_reason, user_path, write
from lastword.survival.distribution import LengthDistribution
from lastword.validation import check_type
from lastword.viz.frames import Frame

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
            "forward_passes": cost["forward_passes"],
            "tokens_computed": cost["tokens_computed"],
            "probe_forward_passes": probe["forward_passes"],
            "probe_tokens_computed": probe["tokens_computed"],
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
        now = [*map(_slot, frame.tokens, frame.texts, frame.filled_at, frame.confidence)]
        pairs = enumerate(zip_longest(before, now))
        yield {
            "forward_passes": frame.forward_passes,
            "tokens_computed": frame.tokens_computed,
            "slots": len(now),
            "end": frame.end,
            "set": [[slot, *new] for slot, (old, new) in pairs if new is not None and old != new],
        }
        before = now


def _slot(token: int | None, text: str, fixed: int | None, confidence: float | None) -> Slot:
    sure = None if confidence is None else round(confidence, DIGITS)
    return (None if token is None else text), fixed, sure


BEGINS = "<!doctype html>\n<!-- a lastword replay -->"  # how we know one of ours
RUNS = "{{runs}}"  # where they stand in a replay that has none yet


def write_replay(path: Path | str, *runs: dict[str, Any]) -> Path:
    """Write runs, to be played side by side, into a file that is new or was a replay before."""
    check_type("replay", "path", path, (str, Path), "the name of a file")
    target = user_path(path)
    check_target(target)
    if _holds_something_else(target):
        raise SettingError(
            f"{target} is there already and is no replay of ours; give another file, or remove it"
        )
    write(target, replay(*runs))
    return target


def replay(*runs: dict[str, Any]) -> str:
    """The file of these runs."""
    return player().replace(RUNS, for_script({"runs": runs}))


@cache
def player() -> str:
    """A replay without its runs, which are put in place of RUNS."""
    return inlined("replay.html")


def inlined(name: str, folder: str = "lastword.viz") -> str:
    """A page of ours with the player's style and script put into it."""
    page = files(folder).joinpath(name).read_text(encoding="utf-8")
    for part in ("player.css", "player.js"):
        own = files("lastword.viz").joinpath(part).read_text(encoding="utf-8")
        page = page.replace(f"/*{part}*/", own)
    return page


def for_script(data: object) -> str:
    """JSON that may stand in a script element whatever its texts hold: it has no `<` and is all ASCII."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _holds_something_else(path: Path) -> bool:
    try:
        if not path.is_file() or not path.stat().st_size:
            return False
        with path.open("rb") as file:
            return file.read(len(BEGINS)) != BEGINS.encode()
    except OSError as refused:
        raise SettingError(
            f"{path} cannot be read ({os_error_reason(refused)}) to see what it holds; give another file"
        ) from refused
