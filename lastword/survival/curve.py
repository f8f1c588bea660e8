"""LengthDistribution: what one probe says about the length of the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lastword.checks import check_number, check_whole, shown
from lastword.errors import NumericError, SettingError, WrongTypeError

# Float32 probabilities summed to 1 stray this far; anything beyond is a mistake, not rounding.
INPUT_ROUNDING = 1e-6
# What a thousand float64 operations lose.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class LengthDistribution:
    """The distribution of an answer's length L on slots 1..T, one row per prompt.

    Length k means that the end token stands in slot k, so a length counts the end token. Whatever
    the probe leaves beyond the last slot is `tail`. Stored as the discrete hazard
    h(k) = P(L = k | L >= k), from which every other view follows:

        survival  S(k) = P(L > k) = prod over i <= k of (1 - h(i)),  S(0) = 1
        density   P(L = k) = h(k) S(k-1)
        mean      E[min(L, T)] = sum over k = 1..T of S(k-1)          (the restricted mean)

    Everything is float64, and products are sums of logarithms, so that a thousand small hazards
    do not drown in rounding.

    >>> import torch
    >>> from lastword.survival import LengthDistribution
    >>> coin = LengthDistribution.from_hazard(torch.full((1, 50), 0.5))
    >>> round(coin.mean.item(), 6), coin.quantile(0.9).item()
    (2.0, 4)
    """

    hazard: Float[Tensor, "B T"]
    read_as: tuple[str, ...] | None = None  # a sentence a row: which reading was picked, and why
    readings: tuple[Callable[..., LengthDistribution], ...] | None = None  # those that were picked

    def __post_init__(self) -> None:
        object.__setattr__(self, "hazard", checked_probabilities(self.hazard, "hazard"))
        for name in ("read_as", "readings"):
            own = getattr(self, name)
            if own is not None and (not isinstance(own, tuple) or len(own) != len(self)):
                raise WrongTypeError(
                    f"LengthDistribution({name}={shown(own)}) was given; {name} must be None or a tuple with "
                    f"one for each of the {len(self)} rows"
                )

    @classmethod
    def from_hazard(cls, hazard: Float[Tensor, "B T"]) -> LengthDistribution:
        """From h(k) = P(L = k | L >= k): how the paper reads the end-token probability."""
        return cls(hazard)

    @classmethod
    def from_cumulative(cls, cumulative: Float[Tensor, "B T"]) -> LengthDistribution:
        """From F(k) = P(L <= k), which must not fall along the row."""
        rising = checked_probabilities(cumulative, "cumulative probability")
        before = torch.nn.functional.pad(rising, (1, 0))[:, :-1]
        step = rising - before
        if bool((step < -INPUT_ROUNDING).any()):
            raise SettingError(
                f"a cumulative probability falls by {-step.min().item():.3g} along the slots; it may "
                "only rise: smooth it first (isotonic regression or a running maximum)"
            )
        return cls(hazard_from(step.clamp(min=0), 1 - before))

    @classmethod
    def from_density(cls, density: Float[Tensor, "B T"]) -> LengthDistribution:
        """From P(L = k); what is missing to 1 is the tail."""
        mass = checked_probabilities(density, "density")
        total = mass.cumsum(-1)
        if bool((total > 1 + INPUT_ROUNDING).any()):
            raise SettingError(
                f"a density sums to {total.max().item():.6g}; it may sum to at most 1: "
                "normalise it or cap its running sum first"
            )
        before = torch.nn.functional.pad(total, (1, 0))[:, :-1]
        return cls(hazard_from(mass, 1 - before))

    @property
    def slots(self) -> int:
        """T: how many slots the probe looked at."""
        return self.hazard.shape[-1]

    @cached_property
    def survival(self) -> Float[Tensor, "B K"]:
        """S(k) = P(L > k) for the K = T + 1 values k = 0..T."""
        logs = torch.log1p(-self.hazard).cumsum(-1)
        return torch.nn.functional.pad(logs, (1, 0)).exp()

    @cached_property
    def density(self) -> Float[Tensor, "B T"]:
        """P(L = k) for k = 1..T; with `tail` it sums to 1."""
        return self.hazard * self.survival[:, :-1]

    @cached_property
    def cumulative(self) -> Float[Tensor, "B T"]:
        """P(L <= k) for k = 1..T."""
        return 1 - self.survival[:, 1:]

    @cached_property
    def tail(self) -> Float[Tensor, "B"]:
        """S(T): the mass the probe leaves beyond its last slot. A mean means little where it is large."""
        return self.survival[:, -1]

    @cached_property
    def mean(self) -> Float[Tensor, "B"]:
        """The restricted mean E[min(L, T)]: mass beyond the last slot counts as T."""
        return self.survival[:, :-1].sum(-1)

    def quantile(self, q: float) -> Int[Tensor, "B"]:
        """The smallest k with P(L <= k) >= q; T where the tail holds more than 1 - q."""
        check_number("quantile", "q", q, above=0, below=1)
        short = self.survival[:, 1:] > 1 - q + ROUNDING
        return (short.sum(-1) + 1).clamp(max=self.slots)

    def row(self, index: int) -> LengthDistribution:
        """One prompt's distribution, still as a batch of one."""
        check_whole("row", "index", index, least=-len(self), most=len(self) - 1)
        read_as = None if self.read_as is None else (self.read_as[index],)
        readings = None if self.readings is None else (self.readings[index],)
        return LengthDistribution(self.hazard[index][None], read_as, readings)

    def __len__(self) -> int:
        return self.hazard.shape[0]


def checked_probabilities(values: Tensor, name: str) -> Tensor:
    """float64 on the CPU, checked to be [B, T] probabilities with at least one slot."""
    if not isinstance(values, Tensor) or not values.is_floating_point():
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise WrongTypeError(
            f"a {name} of {kind} was given; it must be a tensor of floating-point numbers, [rows, slots]"
        )
    values = values.detach().cpu().double()
    if values.dim() != 2 or values.shape[-1] < 1:
        raise SettingError(
            f"a {name} of shape {tuple(values.shape)} was given; it must be [rows, slots] with at "
            "least one slot: add a row with values[None] if you have one prompt"
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


def hazard_from(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole as a hazard; 1 where nothing is left, so that a spent row stays spent."""
    return torch.where(whole > ROUNDING, part / whole.clamp(min=ROUNDING), 1.0).clamp(0, 1)
