"""Prediction: what one forward pass says, read lazily."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.errors import NumericError
from lastword.passes.dice import Dice
from lastword.passes.sampling import Sampling
from lastword.survival.hazard import token_probabilities

# Logits are lifted to float32 (or float64) this many numbers at a time: 128 MB, not gigabytes.
NUMBERS_AT_ONCE = 2**25


@dataclass(frozen=True, eq=False)
class Reading:
    """Which rows took part in a pass and which columns were read in each."""

    rows: Int[Tensor, "A"]
    columns: Int[Tensor, "A S"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """One forward pass. Rules take the view they need; each is computed once, on first use.

    Views are [B, L] on the CPU, one number per canvas column; columns that were not read hold a
    value no rule would choose. Confidence, margin and entropy are judged in float32 whatever the
    model's dtype: bf16 rounds everything above 0.998 to 1 and turns ranking into tie-breaking.
    """

    logits: Float[Tensor, "A S V"]
    reading: Reading
    canvas: Canvas
    sampling: Sampling
    dice: Dice
    candidates: Int[Tensor, "A S"]

    @classmethod
    def of(
        cls, logits: Tensor, reading: Reading, canvas: Canvas, sampling: Sampling, dice: Dice
    ) -> Prediction:
        """Draw the candidates at once: the authors draw tokens before they draw positions."""
        drawn = _candidates(logits, reading, canvas, sampling, dice)
        return cls(logits, reading, canvas, sampling, dice, drawn)

    @cached_property
    def covers(self) -> Bool[Tensor, "B L"]:
        """Columns this pass can speak for."""
        return self._spread(torch.ones_like(self.reading.columns, dtype=torch.bool), False)

    def speaks_for(self, columns: Bool[Tensor, "B L"]) -> Bool[Tensor, "B"]:
        """Rows that took part in this pass and of which it read all these columns."""
        return self.covers.any(-1) & ~(columns & ~self.covers).any(-1)

    @cached_property
    def tokens(self) -> Int[Tensor, "B L"]:
        """The candidate for every column that was read; the mask elsewhere."""
        return self._spread(self.candidates, self.canvas.ids.mask)

    @cached_property
    def likeliest(self) -> Int[Tensor, "B L"]:
        """The model's first choice, whatever sampling allows or draws; the mask elsewhere."""
        return self._spread(self.logits.argmax(-1), self.canvas.ids.mask)

    @cached_property
    def confidence(self) -> Float[Tensor, "B L"]:
        """Probability of the candidate."""

        def view(judged: Tensor, candidate: Tensor) -> Tensor:
            return (judged.gather(1, candidate[:, None])[:, 0] - judged.logsumexp(-1)).exp()

        return self._view(view)

    @cached_property
    def margin(self) -> Float[Tensor, "B L"]:
        """Largest minus second largest probability."""

        def view(judged: Tensor, candidate: Tensor) -> Tensor:
            best, second = judged.topk(2).values.unbind(-1)
            normaliser = judged.logsumexp(-1)
            return (best - normaliser).exp() - (second - normaliser).exp()

        return self._view(view)

    @cached_property
    def entropy(self) -> Float[Tensor, "B L"]:
        """Entropy of the judged distribution, in nats; infinite where nothing was read."""

        def view(judged: Tensor, candidate: Tensor) -> Tensor:
            chance = judged.softmax(-1)
            return -(chance * (chance + 1e-10).log()).sum(-1)

        return self._view(view, nothing=torch.inf)

    @cached_property
    def gap(self) -> Float[Tensor, "B L"]:
        """Largest minus second largest raw logit."""
        best, second = self.logits.topk(2).values.float().unbind(-1)
        return self._spread(best - second, -torch.inf)

    def probability_of(self, *ids: int) -> Float[Tensor, "B L"]:
        """Probability that the token at a column is one of `ids`, in float64; 0 where not read.

        Of the model's own distribution: no sampling setting touches it.
        """
        return self._spread(token_probabilities(self.logits, ids).sum(-1), 0.0)

    @cached_property
    def ending(self) -> Float[Tensor, "B L"]:
        """Probability of any end token."""
        return self.probability_of(*self.canvas.ids.ends)

    def _view(
        self, view: Callable[[Tensor, Tensor], Tensor], nothing: float = -torch.inf
    ) -> Float[Tensor, "B L"]:
        flat, candidates = self.logits.flatten(0, 1), self.candidates.flatten()
        at_once = _rows_at_once(flat)
        parts = [
            view(self.sampling.judged(chunk, self.canvas.ids), chosen)
            for chunk, chosen in zip(torch.split(flat, at_once), torch.split(candidates, at_once))
        ]
        values = torch.cat(parts).view(self.candidates.shape)
        _refuse_nan(values)
        return self._spread(values, nothing)

    def _spread(self, values: Tensor, nothing: bool | int | float) -> Tensor:
        """[A, S] values to their places on a [B, L] canvas."""
        spread = torch.full(self.canvas.tokens.shape, nothing, dtype=values.dtype)
        spread[self.reading.rows[:, None], self.reading.columns] = values.cpu()
        return spread


def _candidates(
    logits: Tensor, reading: Reading, canvas: Canvas, sampling: Sampling, dice: Dice
) -> Tensor:
    if sampling.temperature == 0:
        flat = logits.flatten(0, 1)
        best = [
            sampling.allowed(c, canvas.ids).max(-1) for c in torch.split(flat, _rows_at_once(flat))
        ]
        _refuse_nan(torch.cat([part.values for part in best]))
        return torch.cat([part.indices for part in best]).view(logits.shape[:2])
    _refuse_nan(logits.amax(-1))
    draw = _gumbel_row if sampling.score == "model" else _categorical_row
    rows = [draw(logits, place, reading, canvas, sampling, dice) for place in range(len(logits))]
    return torch.stack(rows)


def _gumbel_row(
    logits: Tensor, place: int, reading: Reading, canvas: Canvas, sampling: Sampling, dice: Dice
) -> Tensor:
    """One row's candidates by Gumbel-max; noise is drawn for the row's every column, in order."""
    row, columns = int(reading.rows[place]), reading.columns[place]
    own = canvas.valid[row].nonzero()[:, 0]
    candidates = torch.empty_like(columns)
    for chunk in torch.split(own, _rows_at_once(logits[place])):
        noise = dice.uniform(row, len(chunk), logits.shape[-1], dtype=torch.float64)
        read_here = (columns >= chunk[0]) & (columns <= chunk[-1])
        allowed = sampling.allowed(logits[place][read_here.to(logits.device)], canvas.ids)
        noise = noise[(columns[read_here] - chunk[0]).to(noise.device)]
        candidates[read_here] = sampling.noisy(allowed.to(noise.device), noise).argmax(-1).cpu()
    return candidates.to(logits.device)


def _categorical_row(
    logits: Tensor, place: int, reading: Reading, canvas: Canvas, sampling: Sampling, dice: Dice
) -> Tensor:
    """One row's candidates from the tempered, filtered distribution of each column it reads."""
    row = int(reading.rows[place])
    columns, first = torch.unique_consecutive(reading.columns[place], return_inverse=True)
    read = logits[place][: len(columns)]
    drawn = [
        dice.choose(
            row, sampling.distribution(sampling.allowed(chunk, canvas.ids)), 1, replace=True
        )[:, 0]
        for chunk in torch.split(read, _rows_at_once(read))
    ]
    return torch.cat(drawn).to(logits.device)[first.to(logits.device)]


def _rows_at_once(flat: Tensor) -> int:
    return max(1, NUMBERS_AT_ONCE // flat.shape[-1])


def _refuse_nan(values: Tensor) -> None:
    if bool(values.isnan().any()):
        raise NumericError(
            "the model returned NaN logits, on which no token can be chosen; load it in float32 or "
            "bfloat16 (float16 overflows in large models) and check the checkpoint"
        )
