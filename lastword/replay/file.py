"""A replay: one HTML file with the player and the runs it plays."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from lastword.checks import check_type
from lastword.errors import SettingError
from lastword.outside.files import check_target, user_path, why, write

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


def inlined(name: str, folder: str = "lastword.replay") -> str:
    """A page of ours with the player's style and script put into it."""
    page = files(folder).joinpath(name).read_text(encoding="utf-8")
    for part in ("player.css", "player.js"):
        own = files("lastword.replay").joinpath(part).read_text(encoding="utf-8")
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
            f"{path} cannot be read ({why(refused)}) to see what it holds; give another file"
        ) from refused
