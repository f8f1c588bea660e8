"""The predicted length of an answer as a discrete survival distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lastword.errors import NumericError, SettingError, WrongTypeError
from lastword.validation import check_int, check_number, short_repr
from lastword.viz.figures import draw_survival
from lastword.viz.html import lengths_html

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Float32 probabilities summed to 1 stray this far; anything beyond is a mistake, not rounding.
INPUT_ROUNDING = 1e-6
# What a thousand float64 operations lose.
ROUNDING = 1e-12

AnyInterpretation = Callable[..., "LengthDistribution"]  # a reading, which comes later


@dataclass(frozen=True, eq=False, repr=False)
class LengthDistribution:
    """The distribution of an answer's length L on slots 1..T: one prompt's, or a row for each of several.

    Length k means that the end token stands in slot k, so a length counts the end token. Whatever
    the probe leaves beyond the last slot is `tail`. Stored as the discrete hazard
    h(k) = P(L = k | L >= k), from which every other view follows:

        survival  S(k) = P(L > k) = prod over i <= k of (1 - h(i)),  S(0) = 1
        density   P(L = k) = h(k) S(k-1)
        mean      E[min(L, T)] = sum over k = 1..T of S(k-1)          (the restricted mean)

    Everything is float64, and products are sums of logarithms, so that a thousand small hazards
    do not drown in rounding. One prompt's mean is a tensor without axes, which compares, formats and
    converts as a number does; of several prompts it has a row for each.

    >>> import torch
    >>> from lastword import LengthDistribution
    >>> coin = LengthDistribution.from_hazard(torch.full((50,), 0.5))
    >>> f"{coin.mean:.1f}", int(coin.quantile(0.9))
    ('2.0', 4)
    >>> coin
    LengthDistribution(mean 2.0, 50% within 1, 90% within 4, 0.0% beyond 50)
    """

    hazard: Float[Tensor, "*B T"]
    # A sentence: which reading was picked, and why; and that reading. Of several prompts one for each.
    explanation: tuple[str, ...] | str | None = None
    interpretation: tuple[AnyInterpretation, ...] | AnyInterpretation | None = None

    def __post_init__(self) -> None:
        hazard = check_probabilities(self.hazard, "hazard", rows=False)
        object.__setattr__(self, "hazard", hazard)
        for name in ("explanation", "interpretation"):
            own = getattr(self, name)
            if hazard.dim() == 1:
                fits = isinstance(own, str) if name == "explanation" else callable(own)
                wanted = "a sentence" if name == "explanation" else "a reading"
            else:
                fits = isinstance(own, tuple) and len(own) == len(hazard)
                wanted = f"a tuple with one for each of the {len(hazard)} rows"
            if own is not None and not fits:
                raise WrongTypeError(
                    f"LengthDistribution({name}={short_repr(own)}) was given; {name} must be None or {wanted}"
                )

    @classmethod
    def from_hazard(cls, hazard: Float[Tensor, "*B T"]) -> LengthDistribution:
        """From h(k) = P(L = k | L >= k): how the paper reads the end-token probability."""
        return cls(hazard)

    @classmethod
    def from_cumulative(cls, cumulative: Float[Tensor, "*B T"]) -> LengthDistribution:
        """From F(k) = P(L <= k), which must not fall along the row."""
        rising = check_probabilities(cumulative, "cumulative probability", rows=False)
        before = torch.nn.functional.pad(rising, (1, 0))[..., :-1]
        step = rising - before
        if bool((step < -INPUT_ROUNDING).any()):
            raise SettingError(
                f"a cumulative probability falls by {-step.min().item():.3g} along the slots; it may "
                "only rise: smooth it first (isotonic regression or a running maximum)"
            )
        return cls(conditional_hazard(step.clamp(min=0), 1 - before))

    @classmethod
    def from_density(cls, density: Float[Tensor, "*B T"]) -> LengthDistribution:
        """From P(L = k); what is missing to 1 is the tail."""
        mass = check_probabilities(density, "density", rows=False)
        total = mass.cumsum(-1)
        if bool((total > 1 + INPUT_ROUNDING).any()):
            raise SettingError(
                f"a density sums to {total.max().item():.6g}; it may sum to at most 1: "
                "normalise it or cap its running sum first"
            )
        before = torch.nn.functional.pad(total, (1, 0))[..., :-1]
        return cls(conditional_hazard(mass, 1 - before))

    @property
    def slots(self) -> int:
        """T: how many slots the probe looked at."""
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
        """S(T): the mass the probe leaves beyond its last slot. A mean means little where it is large."""
        return self.survival[..., -1]

    @cached_property
    def mean(self) -> Float[Tensor, "*B"]:
        """The restricted mean E[min(L, T)]: mass beyond the last slot counts as T."""
        return self.survival[..., :-1].sum(-1)

    def quantile(self, q: float) -> Int[Tensor, "*B"]:
        """The smallest k with P(L <= k) >= q; T where the tail holds more than 1 - q."""
        check_number("quantile", "q", q, above=0, below=1)
        short = self.survival[..., 1:] > 1 - q + ROUNDING
        return (short.sum(-1) + 1).clamp(max=self.slots)

    def row(self, index: int) -> LengthDistribution:
        """One prompt's distribution, of those that have a row."""
        check_int("row", "index", index, minimum=-len(self), maximum=len(self) - 1)
        read_as = self.explanation[index] if isinstance(self.explanation, tuple) else None
        reading = self.interpretation[index] if isinstance(self.interpretation, tuple) else None
        return LengthDistribution(self.hazard[index], read_as, reading)

    def __len__(self) -> int:
        if self.hazard.dim() == 1:
            raise WrongTypeError("this LengthDistribution is one prompt's; it has no rows to count")
        return self.hazard.shape[0]

    def __bool__(self) -> bool:
        return True  # with rows or without: `if answer.lengths` asks whether a probe was read

    def plot(
        self,
        ax: Axes | None = None,
        *,
        horizon: int | float | Tensor | None = None,
        truth: int | float | None = None,
    ) -> Axes:
        """Draw one prompt's survival curve and the end of its canvas: `horizon`, or the mean rounded up.

        Takes an axis of matplotlib, or makes one, and returns it; `truth` marks the length the answer
        really had.
        """
        if self.hazard.dim() > 1:
            raise SettingError(
                f"plot was asked of {len(self)} rows and draws one; choose it: lengths.row(0).plot()"
            )
        return draw_survival(self.survival.tolist(), ax, horizon=horizon, truth=truth)

    def __repr__(self) -> str:
        if self.hazard.dim() == 1:
            within = [f"{q:.0%} within {int(self.quantile(q))}" for q in (0.5, 0.9)]
            told = [f"mean {self.mean:.1f}", *within, f"{self.tail:.1%} beyond {self.slots}"]
        else:
            told = [f"{len(self)} prompts", f"{self.slots} slots"]
        return f"LengthDistribution({', '.join(told)})"

    def _repr_html_(self) -> str:
        return lengths_html(self)


def check_probabilities(values: Tensor, name: str, *, rows: bool = True) -> Tensor:
    """float64 on the CPU, checked to be probabilities of one slot or more: [B, T], else [T] as well."""
    if not isinstance(values, Tensor) or not values.is_floating_point():
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise WrongTypeError(
            f"a {name} of {kind} was given; it must be a tensor of floating-point numbers, [rows, slots]"
        )
    values = values.detach().cpu().double()
    if values.dim() not in ((2,) if rows else (1, 2)) or values.shape[-1] < 1:
        wanted = "[rows, slots]" if rows else "[rows, slots], or [slots] of one prompt,"
        raise SettingError(
            f"a {name} of shape {tuple(values.shape)} was given; it must be {wanted} with at least one slot"
        )
    if bool(values.isnan().any()):
        raise NumericError(
            f"a {name} holds NaN; the model's logits were probably not finite: check its dtype"
        )
    if bool(((values < -INPUT_ROUNDING) | (values > 1 + INPUT_ROUNDING)).any()):
        raise SettingError(
            f"a {name} runs from {values.min().item():.6g} to {values.max().item():.6g}; "
            "probabilities lie between 0 and 1"
        )
    return values.clamp(0, 1)


def conditional_hazard(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole as a hazard; 1 where nothing is left, so that a spent row stays spent."""
    return torch.where(whole > ROUNDING, part / whole.clamp(min=ROUNDING), 1.0).clamp(0, 1)
