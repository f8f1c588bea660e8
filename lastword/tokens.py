"""The handful of token ids decoding has to know."""

from __future__ import annotations

from dataclasses import dataclass

from lastword.errors import SettingError


@dataclass(frozen=True)
class TokenIds:
    """Special ids of one checkpoint, and how many ids its vocabulary has.

    `end` closes a document and, in most checkpoints, also fills what lies behind it. A chat model
    may close its turn with another token first: `turn_end`. Either one ends an answer.
    """

    mask: int
    end: int
    pad: int
    vocabulary: int
    turn_end: int | None = None

    def __post_init__(self) -> None:
        for name in ("mask", "end", "pad", "turn_end"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < self.vocabulary:
                raise SettingError(
                    f"token id {name}={value} lies outside the vocabulary of {self.vocabulary} ids; "
                    f"give an id from 0 to {self.vocabulary - 1}"
                )
        if self.mask in (self.end, self.pad, self.turn_end):
            raise SettingError(
                f"the mask id {self.mask} is also an end or pad id, so finished positions would look "
                "like work to do; give the mask an id of its own"
            )

    @property
    def ends(self) -> tuple[int, ...]:
        """Every id that ends an answer; the document end comes first."""
        if self.turn_end is None or self.turn_end == self.end:
            return (self.end,)
        return (self.end, self.turn_end)
