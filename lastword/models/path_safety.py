"""Refuse files that leave a checkpoint folder."""

from __future__ import annotations

import os
from pathlib import Path

from lastword.embedded import FOLDER as EMBEDDED_FOLDER
from lastword.errors import CheckpointError


def check_inside(path: Path) -> None:
    """Refuse a file of a checkpoint that lies elsewhere; the folder itself may be a link."""
    folder = os.path.realpath(path.parent)
    if path.parent.parent == EMBEDDED_FOLDER:  # ours, however the package was installed
        return
    homes = [folder]
    snapshots = os.path.dirname(folder)
    if os.path.basename(snapshots) == "snapshots":
        homes.append(os.path.join(os.path.dirname(snapshots), "blobs"))
    real = os.path.realpath(path)
    if os.path.dirname(real) not in homes:
        raise CheckpointError(
            f"{path} is a link to {real}, outside of its folder; a checkpoint's files lie in one "
            "folder: copy the file there in place of the link"
        )


def is_plain_file(path: Path) -> bool:
    """Is it there? CheckpointError if something is there that is no file, or lies elsewhere."""
    if not os.path.lexists(path):
        return False
    check_inside(path)
    if not os.path.isfile(path):
        raise CheckpointError(f"{path} is no plain file; download it again")
    return True
