"""Root becomes nobody, for good."""

import os

NOBODY = 65534


def become_nobody() -> bool:
    """Leave root and its groups behind, and say so; anyone else stays who they are."""
    if os.geteuid() != 0:
        return False
    os.setgroups([])
    os.setgid(NOBODY)  # for root: real, effective and saved, and no way back
    os.setuid(NOBODY)
    return True
