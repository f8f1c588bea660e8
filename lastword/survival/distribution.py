"""The predicted length of an answer as a discrete survival distribution."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lastword.errors import NumericError, SettingError, WrongTypeError
from lastword.validation import Part, check_int, check_number, check_type, checked_field, short_repr
from lastword.viz.figures import draw_survival
from lastword.viz.html import lengths_html

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INPUT_ROUNDING = 1e-6  # the error of float32 probabilities that should sum to 1; a larger one is a mistake
ROUNDING = 1e-12  # the rounding error of a thousand float64 operations

AnyInterpretation = Callable[..., "LengthDistribution"]  # defined in survival.interpretation


@dataclass(frozen=True, eq=False, repr=False)
class LengthDistribution:
    """The distribution of an answer's length L on slots 1..T: for one prompt, or one row for each prompt.

    Length k means that the end token stands in slot k, so a length counts the end token. The mass beyond the last slot
    of the probe is the `tail`. Stored as the discrete hazard h(k) = P(L = k | L >= k), from which every other quantity
    follows:

        survival  S(k) = P(L > k) = prod over i <= k of (1 - h(i)),  S(0) = 1
        density   P(L = k) = h(k) S(k-1)
        mean      E[min(L, T)] = sum over k = 1..T of S(k-1)          (the restricted mean)

    Everything is float64, and products are sums of logarithms, so that a thousand small hazards are not lost to
    rounding. The mean of one prompt is a 0-dimensional tensor, which compares, formats and converts like a number; for
    several prompts it has one entry per row.

    >>> import torch
    >>> from lastword import LengthDistribution
    >>> coin = LengthDistribution.from_hazard(torch.full((50,), 0.5))
    >>> f"{coin.mean:.1f}", int(coin.quantile(0.9))
    ('2.0', 4)
    >>> coin
    LengthDistribution(mean 2.0, 50% within 1, 90% within 4, 0.0% beyond 50)
    """

    hazard: Float[Tensor, "*B T"]
    # The interpretation that was used and a sentence with the reason; for several prompts, one per row.
    explanation: tuple[str, ...] | str | None = None
    interpretation: tuple[AnyInterpretation, ...] | AnyInterpretation | None = None

    def __post_init__(self) -> None:
        hazard = check_probabilities(self.hazard, "hazard", rows=False)
        object.__setattr__(self, "hazard", hazard)
        for name in ("explanation", "interpretation"):
            value = getattr(self, name)
            if hazard.dim() == 1:
                fits = isinstance(value, str) if name == "explanation" else callable(value)
                expected = "a sentence" if name == "explanation" else "an interpretation"
            else:
                fits = isinstance(value, tuple) and len(value) == len(hazard)
                expected = f"a tuple with one for each of the {len(hazard)} rows"
            if value is not None and not fits:
                raise WrongTypeError(
                    f"LengthDistribution({name}={short_repr(value)}) was given; {name} must be None or {expected}"
                )

    @classmethod
    def from_hazard(cls, hazard: Float[Tensor, "*B T"]) -> LengthDistribution:
        """Build from h(k) = P(L = k | L >= k), the probability of an end in slot k if there was none before."""
        return cls(hazard)

    @classmethod
    def from_cumulative(cls, cumulative: Float[Tensor, "*B T"]) -> LengthDistribution:
        """Build from F(k) = P(L <= k), which must not fall along a row."""
        rising = check_probabilities(cumulative, "cumulative probability", rows=False)
        before = torch.nn.functional.pad(rising, (1, 0))[..., :-1]
        step = rising - before
        if bool((step < -INPUT_ROUNDING).any()):
            raise SettingError(
                f"a cumulative probability falls by {-step.min().item():.3g} along the slots; it may only rise: "
                "smooth it first (isotonic regression or a running maximum)"
            )
        return cls(conditional_hazard(step.clamp(min=0), 1 - before))

    @classmethod
    def from_density(cls, density: Float[Tensor, "*B T"]) -> LengthDistribution:
        """Build from P(L = k); the mass missing to 1 is the tail."""
        mass = check_probabilities(density, "density", rows=False)
        total = mass.cumsum(-1)
        if bool((total > 1 + INPUT_ROUNDING).any()):
            raise SettingError(
                f"a density sums to {total.max().item():.6g}; it may sum to at most 1: normalise it or cap its "
                "running sum first"
            )
        before = torch.nn.functional.pad(total, (1, 0))[..., :-1]
        return cls(conditional_hazard(mass, 1 - before))

    @property
    def slots(self) -> int:
        """T, the number of slots of the probe."""
        return self.hazard.shape[-1]

    @cached_property
    def survival(self) -> Float[Tensor, "*B K"]:
        """S(k) = P(L > k) for the K = T + 1 values k = 0..T."""
        logs = torch.log1p(-self.hazard).cumsum(-1)
        return torch.nn.functional.pad(logs, (1, 0)).exp()

    @cached_property
    def density(self) -> Float[Tensor, "*B T"]:
        """P(L = k) for k = 1..T; with `tail` it sums to 1."""
        return self.hazard * self.survival[..., :-1]

    @cached_property
    def cumulative(self) -> Float[Tensor, "*B T"]:
        """P(L <= k) for k = 1..T."""
        return 1 - self.survival[..., 1:]

    @cached_property
    def tail(self) -> Float[Tensor, "*B"]:
        """S(T), the mass beyond the last slot. If it is large, the mean says little about the length."""
        return self.survival[..., -1]

    @cached_property
    def mean(self) -> Float[Tensor, "*B"]:
        """The restricted mean E[min(L, T)]: mass beyond the last slot counts as T."""
        return self.survival[..., :-1].sum(-1)

    def quantile(self, q: float) -> Int[Tensor, "*B"]:
        """Return the smallest k with P(L <= k) >= q, or T if the tail holds more than 1 - q."""
        check_number("quantile", "q", q, above=0, below=1)
        short = self.survival[..., 1:] > 1 - q + ROUNDING
        return (short.sum(-1) + 1).clamp(max=self.slots)

    def row(self, index: int) -> LengthDistribution:
        """Return the distribution of one prompt."""
        check_int("row", "index", index, minimum=-len(self), maximum=len(self) - 1)
        explanation = self.explanation[index] if isinstance(self.explanation, tuple) else None
        interpretation = self.interpretation[index] if isinstance(self.interpretation, tuple) else None
        return LengthDistribution(self.hazard[index], explanation, interpretation)

    def __len__(self) -> int:
        if self.hazard.dim() == 1:
            raise WrongTypeError("this LengthDistribution is that of one prompt; it has no rows to count")
        return self.hazard.shape[0]

    def __bool__(self) -> bool:
        return True  # also without rows: `if answer.lengths` tests whether there was a probe

    def plot(
        self, ax: Axes | None = None, *, horizon: int | float | Tensor | None = None, truth: int | float | None = None
    ) -> Axes:
        """Draw the survival curve of one prompt and its horizon (default: the mean, rounded up).

        Draws on the matplotlib axes `ax`, or on new ones, and returns them. `truth` marks the real length.
        """
        if self.hazard.dim() > 1:
            raise SettingError(f"plot draws one row and was called with {len(self)}; choose one: lengths.row(0).plot()")
        return draw_survival(self.survival.tolist(), ax, horizon=horizon, truth=truth)

    def __repr__(self) -> str:
        if self.hazard.dim() == 1:
            within = [f"{q:.0%} within {int(self.quantile(q))}" for q in (0.5, 0.9)]
            parts = [f"mean {self.mean:.1f}", *within, f"{self.tail:.1%} beyond {self.slots}"]
        else:
            parts = [f"{len(self)} prompts", f"{self.slots} slots"]
        return f"LengthDistribution({', '.join(parts)})"

    def _repr_html_(self) -> str:
        return lengths_html(self)


def check_probabilities(values: Tensor, name: str, *, rows: bool = True) -> Tensor:
    """Return valid probabilities as float64 on the CPU, of shape [B, T] or, if `rows` is False, also [T]."""
    if not isinstance(values, Tensor) or not values.is_floating_point():
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise WrongTypeError(
            f"a {name} of {kind} was given; it must be a tensor of floating-point numbers, [rows, slots]"
        )
    values = values.detach().cpu().double()
    if values.dim() not in ((2,) if rows else (1, 2)) or values.shape[-1] < 1:
        expected = "[rows, slots]" if rows else "[rows, slots], or [slots] for one prompt,"
        raise SettingError(
            f"a {name} of shape {tuple(values.shape)} was given; it must be {expected} with at least one slot"
        )
    if bool(values.isnan().any()):
        raise NumericError(f"a {name} contains NaN; the model's logits were probably not finite: check its dtype")
    if bool(((values < -INPUT_ROUNDING) | (values > 1 + INPUT_ROUNDING)).any()):
        raise SettingError(
            f"a {name} ranges from {values.min().item():.6g} to {values.max().item():.6g}; probabilities lie between "
            "0 and 1"
        )
    return values.clamp(0, 1)


def conditional_hazard(part: Tensor, whole: Tensor) -> Tensor:
    """Return the hazard `part` / `whole`, and 1 where `whole` is 0."""
    return torch.where(whole > ROUNDING, part / whole.clamp(min=ROUNDING), 1.0).clamp(0, 1)


class Estimate(Part):
    """A rule that turns each row of a distribution into a number of slots."""

    cost_summary: ClassVar[str] = "nothing beyond the probe"

    @abstractmethod
    def __call__(self, lengths: LengthDistribution) -> Float[Tensor, "*B"]:
        """Return the number of slots of each row; it need not be a whole number."""


@dataclass(frozen=True)
class Mean(Estimate):
    """The paper's estimate: the expected length, restricted to the slots of the probe."""

    name = "mean"
    source = "Kobyzev et al., 2026 (arXiv 2608.26374), Algorithm 1"

    def __call__(self, lengths: LengthDistribution) -> Float[Tensor, "*B"]:
        return lengths.mean


@dataclass(frozen=True)
class Quantile(Estimate):
    """The length that a share `q` of answers does not exceed; SmartCrop uses q = 0.95.

    If every missing slot and every extra slot has a cost, `Quantile.from_costs` minimises the expected cost:

    >>> Quantile.from_costs(missing=9.0, extra=1.0)
    Quantile(q=0.9)
    """

    name = "quantile"
    source = "SmartCrop (arXiv 2603.06123)"

    q: float = checked_field(0.95, check_number, above=0, below=1)

    def __call__(self, lengths: LengthDistribution) -> Float[Tensor, "*B"]:
        return lengths.quantile(self.q).double()

    @classmethod
    def from_costs(cls, missing: float, extra: float) -> Quantile:
        """Return the quantile missing / (missing + extra), the solution of the newsvendor problem."""
        check_number("Quantile.from_costs", "missing", missing, above=0)
        check_number("Quantile.from_costs", "extra", extra, above=0)
        return cls(missing / (missing + extra))


@dataclass(frozen=True)
class Cheapest(Estimate):
    """The length n with the lowest expected cost: n slots, plus `truncation_cost` if the answer is truncated.

    A truncated answer is usually wrong, however few slots were missing, so its cost does not depend on their number:
    300, for example, if a right answer is worth 300 slots to you. The estimate minimises n + truncation_cost * P(L > n)
    in every row. It ignores the last few percent of a row's mass if they belong to much greater lengths.
    """

    name = "cheapest"

    truncation_cost: float = checked_field(300.0, check_number, above=0)

    def __call__(self, lengths: LengthDistribution) -> Float[Tensor, "*B"]:
        slots = torch.arange(1, lengths.slots + 1)
        return ((slots + self.truncation_cost * lengths.survival[..., 1:]).argmin(-1) + 1).double()


@dataclass(frozen=True)
class Scaled(Estimate):
    """An estimate times a factor, plus `margin` slots.

    Calibration finds the factor (`survival.upper_bound`). The margin does not depend on the length: cropping to the
    last word costs accuracy even if the answer fits, because models use the slots of the end tokens after it as scratch
    space (arXiv 2603.05197).

    >>> import torch
    >>> coin = LengthDistribution.from_hazard(torch.full((50,), 0.5))
    >>> round(Scaled(1.5, margin=16)(coin).item(), 6)
    19.0
    """

    name = "scaled"
    source = "ours; split conformal prediction (Vovk et al., 2005)"

    factor: float = checked_field(1.0, check_number, above=0)
    estimate: Mean | Quantile | Cheapest = checked_field(
        Mean(), check_type, (Mean, Quantile, Cheapest), "Mean(), Quantile(q) or Cheapest()"
    )
    margin: int = checked_field(0, check_int, minimum=0)

    def __call__(self, lengths: LengthDistribution) -> Float[Tensor, "*B"]:
        return self.factor * self.estimate(lengths) + self.margin
