"""Resizer: the shape shared by policies that start small and resize the canvas in any pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lastword.errors import SettingError
from lastword.length.policy import LengthPolicy, LengthTraits, Terms
from lastword.length.said import check_said

USUAL = 64  # slots to begin with, of both papers


@dataclass(frozen=True)
class Resizer(LengthPolicy):
    """Begins with `initial` slots and never has more than `limit`; decides by the whole answer.

    Without numbers: 64, and as many as the model is made for.
    """

    initial: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_said(name, "initial", self.initial)
        check_said(name, "limit", self.limit)
        if self.initial is not None and self.limit is not None and self.initial > self.limit:
            raise SettingError(
                f"{name}(initial={self.initial}, limit={self.limit}) was given; it starts at "
                "`initial` and grows to `limit`: raise the limit or start with fewer slots"
            )

    @property
    def traits(self) -> LengthTraits:
        return LengthTraits(
            resizes="any time", reads="answer", grows=True, by_confidence=True, limit=self.limit
        )

    def settled(self, terms: Terms) -> Resizer:
        limit = max(terms.of(self.limit), 0 if self.limit else terms.of(self.initial or 1))
        initial = min(USUAL, limit) if self.initial is None else terms.of(self.initial)
        return replace(self, initial=initial, limit=limit)
