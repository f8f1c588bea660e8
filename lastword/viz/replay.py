"""Replay files: one HTML page that plays recorded decodings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any

from lastword.errors import SettingError
from lastword.io.files import check_target, file_errors, user_path, write
from lastword.survival.distribution import LengthDistribution
from lastword.validation import check_type
from lastword.viz.frames import Frame

DIGITS = 4  # of probabilities
START = "<!doctype html>\n<!-- a lastword replay -->"  # the beginning of every replay file
RUNS = "{{runs}}"  # in replay.html, replaced by the JSON of the runs

Slot = tuple[str | None, int | None, float | None]  # text (None: a mask), forward pass, confidence


def run(frames: Sequence[Frame], lengths: LengthDistribution | None, details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of one answer for the player; `details` is `Generation.to_data()`."""
    end = frames[-1].end if frames else None
    probe, cost = details["probe_cost"], details["cost"]
    return {
        "title": details["recipe"],
        "prompt": details["prompt"],
        "text": details["text"],
        "horizon": details["horizon"],
        "finish": details["finish"],
        "end": None if end is None else end + 1,  # a length includes the end token
        "lengths": None
        if lengths is None
        else {
            "mean": round(lengths.mean.item(), DIGITS),
            "median": int(lengths.quantile(0.5)),
            "q90": int(lengths.quantile(0.9)),
            "tail": round(lengths.tail.item(), DIGITS),
            "survival": [round(value, DIGITS) for value in lengths.survival.tolist()],
        },
        "ledger": {
            "forward_passes": cost["forward_passes"],
            "tokens_computed": cost["tokens_computed"],
            "probe_forward_passes": probe["forward_passes"],
            "probe_tokens_computed": probe["tokens_computed"],
            "seconds": details["seconds"],
            "tokens": len(details["tokens"]),
        },
        "frames": [*changes(frames)],
    }


def changes(frames: Sequence[Frame]) -> Iterator[dict[str, Any]]:
    """Yield each frame with only the slots that differ from the frame before, to keep the file small."""
    before: list[Slot] = []
    for frame in frames:
        texts = [None if token is None else text for token, text in zip(frame.tokens, frame.texts)]
        confidence = [None if value is None else round(value, DIGITS) for value in frame.confidence]
        slots = [*zip(texts, frame.filled_at, confidence)]
        pairs = enumerate(zip_longest(before, slots))
        yield {
            "forward_passes": frame.forward_passes,
            "tokens_computed": frame.tokens_computed,
            "slots": len(slots),
            "end": frame.end,
            "set": [[slot, *new] for slot, (old, new) in pairs if new is not None and old != new],
        }
        before = slots


def write_replay(path: Path | str, *runs: dict[str, Any]) -> Path:
    """Write a page that plays runs side by side, and return its path; of existing files, only replays are replaced."""
    check_type("replay", "path", path, (str, Path), "the name of a file")
    target = user_path(path)
    check_target(target)
    start = b""
    if target.is_file():
        with file_errors(f"{target} cannot be read", "give another file"), target.open("rb") as file:
            start = file.read(len(START))
    if start not in (b"", START.encode()):
        raise SettingError(f"{target} exists and is not a replay; give another file, or remove it")
    write(target, replay(*runs))
    return target


def replay(*runs: dict[str, Any]) -> str:
    """Return the HTML page that plays the runs."""
    return inlined().replace(RUNS, for_script({"runs": runs}))


@cache
def inlined(name: str = "replay.html", folder: str = "lastword.viz") -> str:
    """Return an HTML page of a package, with player.css and player.js inserted; a replay has the placeholder RUNS."""
    page = files(folder).joinpath(name).read_text(encoding="utf-8")
    for part in ("player.css", "player.js"):
        content = files("lastword.viz").joinpath(part).read_text(encoding="utf-8")
        page = page.replace(f"/*{part}*/", content)
    return page


def for_script(data: object) -> str:
    """Return ASCII JSON that is safe in a script element: it contains no `<`, `>` or `&`."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
