"""The contract of unmask rules: which masks to fill after a forward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Bool, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.tree import State
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError

UNBOUNDED = 2**62  # passes


@dataclass(frozen=True)
class UnmaskTraits:
    """What a rule says of itself: what other parts have to be ready for."""

    # Does its clock finish a window, even one the model refuses to fill?
    follows_schedule: bool = False
    uses_model: bool = True  # does what the model says decide which masks are filled first?
    hides_columns: bool = False  # may `sees` leave out columns, so that a cache's are out of date?
    # Whether `choose` can run inside a CUDA graph: without host synchronisation, data-dependent shapes or
    # random draws.
    capturable: bool = False


class UnmaskRule(ABC):
    """Which masks to fill after this pass.

    A rule must let decoding end: it fills at least one mask per open row, or follows a schedule
    whose last pass fills all.
    """

    @property
    def traits(self) -> UnmaskTraits:
        return UnmaskTraits()

    def initial_state(self, canvas: Canvas) -> State:
        """The state before the first step; most rules remember nothing."""
        return ()

    def visible_columns(self, canvas: Canvas, clock: Clock, state: State) -> Bool[Tensor, "B L"]:
        """The columns that exist for the next pass: of every open row, at least one open mask.

        A row may lose columns at its end, not between others: positions count what is seen.
        """
        return canvas.valid

    @abstractmethod
    def choose(
        self, prediction: Prediction, open: Bool[Tensor, "B S"], clock: Clock, state: State
    ) -> tuple[Bool[Tensor, "B S"], State]:
        """A subset of `open`, the masks of each row's window among the columns read; the state after."""

    def max_passes(self, masks: int) -> int | None:
        """The most passes a window of so many masks takes, whatever the model says.

        A rule that follows a schedule may idle, so it says so itself; None: it does not say.
        """
        return None if self.traits.follows_schedule else masks


def check_chosen(
    rule: UnmaskRule, chosen: Tensor, open: Bool[Tensor, "B S"], clock: Clock
) -> Bool[Tensor, "B S"]:
    """What a rule chose of the open masks, held to its promise: else decoding would never end."""
    if not isinstance(chosen, Tensor) or (chosen.shape, chosen.dtype) != (open.shape, open.dtype):
        shape = tuple(chosen.shape) if isinstance(chosen, Tensor) else type(chosen).__name__
        raise SettingError(
            f"{type(rule).__name__} chose {shape}; it must return truth values of shape {tuple(open.shape)}, "
            "one for every column that the pass read, and its state"
        )
    chosen = chosen & open
    idle = (open.any(-1) & ~chosen.any(-1)).nonzero()[:, 0].tolist()
    stuck = [row for row in idle if not _may_idle(rule, clock, row)]
    if stuck:
        raise stuck_error(rule, stuck[0], int(clock.step[stuck[0]]))
    return chosen


def stuck_error(rule: UnmaskRule, row: int, step: int) -> SettingError:
    """What to say of a rule that does not let decoding end."""
    return SettingError(
        f"{type(rule).__name__} chose no mask of row {row} in step {step}, and decoding would never end; a "
        "rule without a schedule fills at least one mask of every open row, and one with a schedule fills "
        "all that are left in its last pass"
    )


def stuck_rows(
    chosen: Bool[Tensor, "B S"], open: Bool[Tensor, "B S"], clock: Clock, max_idle: Int[Tensor, "M"]
) -> Bool[Tensor, "B"]:
    """Rows that break that promise, where asking would stop the device; `most` is the rule's `idles`."""
    over = clock.in_window >= max_idle[clock.masks_at_start.clamp(max=len(max_idle) - 1)]
    return open.any(-1) & ~chosen.any(-1) & over


def max_idle_steps(rule: UnmaskRule, masks: int) -> list[int]:
    """In how many passes of a window that opened with 0, 1, ... `masks` masks the rule may fill none."""
    if not rule.traits.follows_schedule:
        return [0] * (masks + 1)
    counts = [rule.max_passes(count) for count in range(masks + 1)]
    return [UNBOUNDED if count is None else count for count in counts]


def _may_idle(rule: UnmaskRule, clock: Clock, row: int) -> bool:
    """A schedule may leave a pass out, as long as it is not over."""
    if not rule.traits.follows_schedule:
        return False
    most = rule.max_passes(int(clock.masks_at_start[row]))
    return most is None or int(clock.in_window[row]) < most
