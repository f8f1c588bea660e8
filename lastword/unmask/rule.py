"""What an unmask rule is."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.errors import SettingError
from lastword.passes.prediction import Prediction


class UnmaskRule(ABC):
    """Which masks to fill after this pass.

    A rule must let decoding end: it fills at least one mask per open row, or follows a schedule
    whose last pass fills all.
    """

    @abstractmethod
    def choose(
        self, prediction: Prediction, open: Bool[Tensor, "B L"], clock: Clock
    ) -> Bool[Tensor, "B L"]:
        """A subset of `open`, the masks of each row's window."""

    def pick(
        self, prediction: Prediction, open: Bool[Tensor, "B L"], clock: Clock
    ) -> Bool[Tensor, "B L"]:
        """What `choose` says, held to the rule's promise: else decoding would never end."""
        chosen = self.choose(prediction, open, clock) & open
        idle = (open.any(-1) & ~chosen.any(-1)).nonzero()[:, 0].tolist()
        stuck = [row for row in idle if not self._may_idle(clock, row)]
        if stuck:
            raise SettingError(
                f"{type(self).__name__} chose no mask of row {stuck[0]} in pass {clock.step}, and decoding "
                "would never end; a rule without a schedule fills at least one mask of every open row, and "
                "one with a schedule fills all that are left in its last pass"
            )
        return chosen

    def _may_idle(self, clock: Clock, row: int) -> bool:
        """A schedule may leave a pass out, as long as it is not over."""
        if not self.follows_schedule or not self.counts_passes:
            return self.follows_schedule
        return int(clock.in_window[row]) < self.most_passes(int(clock.opened[row]))

    @property
    def follows_schedule(self) -> bool:
        """Does its clock finish a window, even one whose masks the model refuses to fill?"""
        return False

    def most_passes(self, masks: int) -> int:
        """The most passes a window of so many masks takes, whatever the model says.

        A rule that follows a schedule may idle, so it says so itself.
        """
        return masks

    @property
    def counts_passes(self) -> bool:
        """Does `most_passes` hold? A budget relies on it."""
        own = type(self).most_passes is not UnmaskRule.most_passes
        return own or not self.follows_schedule

    @property
    def heeds_model(self) -> bool:
        """Does what the model says decide which masks are filled first?"""
        return True

    @property
    def drops_columns(self) -> bool:
        """May `sees` leave out columns? What a cache keeps of them would then be out of date."""
        return False

    def sees(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        """The columns that exist for the next pass: of every open row, at least one open mask.

        A row may lose columns at its end, not between others: positions count what is seen.
        """
        return canvas.valid

    def fresh(self) -> UnmaskRule:
        """A rule with memory returns a new twin that carries it; a rule without is its own twin."""
        return self
