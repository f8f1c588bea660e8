"""Resizer: the shape shared by policies that start small and resize the canvas in any pass."""

from __future__ import annotations

from dataclasses import dataclass

from lastword.checks import check_whole
from lastword.errors import SettingError
from lastword.length.policy import LengthPolicy, Resizes


@dataclass(frozen=True)
class Resizer(LengthPolicy):
    """Begins with `initial` slots and never has more than `limit`; decides by the whole answer."""

    initial: int = 64
    limit: int = 2048

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_whole(name, "initial", self.initial, least=1)
        check_whole(name, "limit", self.limit, least=1)
        if self.initial > self.limit:
            raise SettingError(
                f"{name}(initial={self.initial}, limit={self.limit}) was given; it starts at "
                "`initial` and grows to `limit`: raise the limit or start with fewer slots"
            )

    @property
    def reads_answer(self) -> bool:
        return True

    @property
    def resizes(self) -> Resizes:
        return "any time"

    @property
    def grows(self) -> bool:
        return True

    @property
    def goes_by_confidence(self) -> bool:
        return True
