"""Observer: who is told what an engine does; nobody, unless a child of this class says otherwise."""

from __future__ import annotations

from lastword.serve.job import Answer
from lastword.serve.schedule import Predicted


class Observer:
    """Told from the engine's thread: metrics for Prometheus, or what a benchmark counts."""

    def text(self) -> bytes:
        """All that is known, as /metrics says it."""
        return b""

    def now(self, running: int, waiting: int, slots: int) -> None:
        """How many answers have a slot, how many wait, and how many slots there are."""

    def arrived(self, prompt: int) -> None:
        """A job came, with so many tokens."""

    def probed(self, rows: int, seconds: float) -> None:
        """A batch of probes."""

    def passed(self, rows: int, columns: int, computed: int, seconds: float) -> None:
        """A pass over so many rows and columns; `computed` counts padding, too."""

    def outgrown(self) -> None:
        """A row has more columns than were reserved for it."""

    def answered(self, answer: Answer, predicted: Predicted, first: float | None) -> None:
        """An answer was given; `first`: seconds to its first text."""

    def ended(self, how: str) -> None:
        """A job ended: answered, cancelled, expired, refused or failed."""
