"""The command that installs a missing optional dependency."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from shutil import which
from urllib.parse import unquote, urlsplit

CLONE = Path(__file__).parent.parent  # if it is one


def install(*extras: str) -> str:
    """Return the command that adds extras to this installation: `pip install -e '.[plot]'` in a clone.

    An installed package records its source (PEP 610), unless it came from a package index.
    """
    names = f"[{','.join(extras)}]"
    if (CLONE / "pyproject.toml").is_file():
        return f"{pip()} install -e {_quoted(_relative(CLONE) + names)}"
    source = _source()
    url, vcs = str(source.get("url", "")), source.get("vcs_info")
    if url and isinstance(source.get("dir_info"), dict):
        folder = Path(unquote(urlsplit(url).path))
        return f"{pip()} install {_quoted(_relative(folder) + names)}"
    if url:
        how = f"{vcs.get('vcs', 'git')}+" if isinstance(vcs, dict) else ""
        return f"{pip()} install {_quoted(f'lastword{names} @ {how}{url}')}"
    return f"{pip()} install {_quoted('lastword' + names)}"


def pip() -> str:
    """Return how to call the pip of this Python: `pip` if the shell finds that one, or `python -m pip`."""
    python = Path(sys.executable)
    on_path = which("pip")
    if not sys.executable or (on_path and Path(on_path).parent == python.parent):
        return "pip"
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return f"{shlex.quote(str(python))} -m pip"


def _source() -> dict[str, object]:
    """Return the recorded source of the installed package; empty if there is none."""
    try:
        source = json.loads(distribution("lastword").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, OSError, ValueError):
        return {}
    return source if isinstance(source, dict) else {}


def _relative(folder: Path) -> str:
    """Return a dot for the current folder, or the path."""
    try:
        return "." if folder.samefile(Path.cwd()) else str(folder)
    except OSError:  # a folder was deleted
        return str(folder)


def _quoted(text: str) -> str:
    """Return text in quotes, because a shell would expand the brackets."""
    quoted = shlex.quote(text)
    return quoted if quoted != text else f"'{text}'"
