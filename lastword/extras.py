"""What to type for an optional dependency that is missing, given where this package came from."""

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
    """The command that adds extras to this installation: `pip install -e '.[plot]'` in a clone.

    An installer writes down where it found a package (PEP 610); a package of an index has nothing written.
    """
    names = f"[{','.join(extras)}]"
    if (CLONE / "pyproject.toml").is_file():
        return f"{pip()} install -e {_quoted(_here(CLONE) + names)}"
    source = _source()
    url, vcs = str(source.get("url", "")), source.get("vcs_info")
    if url and isinstance(source.get("dir_info"), dict):
        folder = Path(unquote(urlsplit(url).path))
        return f"{pip()} install {_quoted(_here(folder) + names)}"
    if url:
        how = f"{vcs.get('vcs', 'git')}+" if isinstance(vcs, dict) else ""
        return f"{pip()} install {_quoted(f'lastword{names} @ {how}{url}')}"
    return f"{pip()} install {_quoted('lastword' + names)}"


def pip() -> str:
    """The pip of the Python that runs this: `pip` where a shell finds that one, else by way of its path."""
    python = Path(sys.executable)
    found = which("pip")
    if not sys.executable or (found and Path(found).parent == python.parent):
        return "pip"
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return f"{shlex.quote(str(python))} -m pip"


def _source() -> dict[str, object]:
    """What was written down at the installation; nothing where nobody did."""
    try:
        found = json.loads(distribution("lastword").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _here(folder: Path) -> str:
    """A folder as a user would write it: the one they are in is a dot."""
    try:
        return "." if folder.samefile(Path.cwd()) else str(folder)
    except OSError:  # one of them is gone
        return str(folder)


def _quoted(text: str) -> str:
    """In quotes, for a shell would take the brackets for a pattern."""
    quoted = shlex.quote(text)
    return quoted if quoted != text else f"'{text}'"
