"""How code was kept in, in a sentence for people."""

from __future__ import annotations

from collections.abc import Mapping


def report(kept: Mapping[str, object], answers: int, refused: int) -> str:
    """`kept` is what a record says under `sandbox`; `refused` answers of so many were not run.

    >>> report({"level": "namespaces", "walls": "landlock 7, seccomp"}, 8, 0)
    'Code of 8 answers: sandbox namespaces, with landlock 7, seccomp.'
    """
    walls = kept.get("walls", "walls that were not recorded")
    unrun = (
        f"; {refused} of them were not run, being more than plain Python where no sandbox works, and count "
        "as wrong"
    )
    return f"Code of {answers} answers: sandbox {kept.get('level')}, with {walls}{unrun * bool(refused)}."
