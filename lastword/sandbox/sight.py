"""Sight: the files a program sees. Python and the system's libraries, but no installed package.

What is installed may hold the answers: ours does. A package lies in a folder of its own under the
interpreter, so that folder is empty in a sandbox; Landlock, which can only allow, is given all around it.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

SYSTEM = ("/usr", "/lib", "/lib64", "/bin")
# Where installers put packages, under a prefix; the last two are conda's.
PACKAGES = ("lib*/py*/site-packages", "lib*/py*/dist-packages", "envs", "pkgs")
OURS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Sight:
    """`visible` paths are seen as a whole but for `hidden` ones; `around` them is for Landlock alone."""

    visible: tuple[str, ...]
    hidden: tuple[str, ...]

    @property
    def whole(self) -> dict[str, str]:
        """For Landlock where what is hidden is out of sight already."""
        return dict.fromkeys(self.visible, "tree")

    @cached_property
    def around(self) -> dict[str, str]:
        """For Landlock alone: every path beside a hidden one, by its kind."""
        hidden = {os.path.realpath(path) for path in self.hidden}
        above = {str(parent) for path in hidden for parent in Path(path).parents}
        trees = dict.fromkeys(os.path.realpath(path) for path in self.visible)
        return dict(pair for path in trees for pair in _around(path, hidden, above))


@lru_cache(maxsize=8)
def sight(prefix: str) -> Sight:
    """What a program run by the interpreter under `prefix` sees."""
    visible = [path for path in SYSTEM if os.path.exists(path)]
    if not any(Path(prefix).is_relative_to(path) for path in visible):
        visible.append(prefix)
    found = {str(OURS), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    for root in dict.fromkeys((prefix, "/usr", "/usr/local")):
        found |= {str(path) for pattern in PACKAGES for path in Path(root).glob(pattern)}
    folders = sorted(os.path.realpath(path) for path in found if os.path.isdir(path))
    inner = [one for one in folders if not any(_beneath(one, other) for other in folders)]
    # /lib may be another name of /usr/lib, and what is mounted under one is not under the other
    names = [
        path + one[len(real) :]
        for path in visible
        for real in [os.path.realpath(path)]
        for one in dict.fromkeys(inner)
        if _beneath(one, real)
    ]
    return Sight(tuple(visible), tuple(names))


def _beneath(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")


def _around(path: str, hidden: set[str], above: set[str]) -> Iterator[tuple[str, str]]:
    if path in hidden:
        return
    if path not in above:
        yield path, "tree" if os.path.isdir(path) else "file"
        return
    yield path, "names"
    for name in sorted(os.listdir(path)):
        inner = f"{path}/{name}"
        if not os.path.islink(inner) and (os.path.isdir(inner) or os.path.isfile(inner)):
            yield from _around(inner, hidden, above)
