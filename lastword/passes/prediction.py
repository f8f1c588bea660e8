"""Prediction: what one forward pass says, read lazily."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.columns import Columns
from lastword.errors import NumericError
from lastword.passes.dice import Dice
from lastword.passes.sampling import Sampling
from lastword.survival.probabilities import token_probabilities

# Logits are lifted to float32 (or float64) this many numbers at a time: 128 MB, not gigabytes.
NUMBERS_AT_ONCE = 2**25


@dataclass(frozen=True, eq=False)
class Prediction:
    """One forward pass. Rules take the view they need; each is computed once, on first use.

    Views are [B, S] on the CPU: one number for every column that the pass read, in the order of `columns`.
    Where nothing was read they hold a value no rule would choose. Confidence, margin and entropy are judged
    in float32 whatever the model's dtype: bf16 rounds everything above 0.998 to 1 and turns ranking into
    tie-breaking.
    """

    logits: Float[Tensor, "A S V"]  # of the rows that took part, columns.rows
    columns: Columns
    canvas: Canvas  # as the pass saw it
    sampling: Sampling
    dice: Dice
    candidates: Int[Tensor, "A S"]

    @classmethod
    def of(
        cls, logits: Tensor, columns: Columns, canvas: Canvas, sampling: Sampling, dice: Dice
    ) -> Prediction:
        """Draw the candidates at once: the authors draw tokens before they draw which masks to fill."""
        drawn = _candidates(logits, columns, canvas, sampling, dice)
        return cls(logits, columns, canvas, sampling, dice, drawn)

    @cached_property
    def covers(self) -> Bool[Tensor, "B L"]:
        """Columns of the canvas this pass can speak for."""
        return self.columns.spread(self.columns.read)

    def speaks_for(self, wanted: Bool[Tensor, "B L"]) -> Bool[Tensor, "B"]:
        """Rows that took part in this pass and of which it read all these columns."""
        return self.columns.read.any(-1) & ~(wanted & ~self.covers).any(-1)

    @cached_property
    def tokens(self) -> Int[Tensor, "B S"]:
        """The candidate for every column that was read; the mask elsewhere."""
        return self._rows(self.candidates, self.canvas.ids.mask)

    @cached_property
    def written(self) -> Int[Tensor, "B L"]:
        """The candidates at their columns of the canvas, to be written; the mask elsewhere."""
        return self.columns.spread(self.tokens, self.canvas.ids.mask)

    @cached_property
    def likeliest(self) -> Int[Tensor, "B S"]:
        """The model's first choice, whatever sampling allows or draws; the mask elsewhere."""
        return self._rows(self.logits.argmax(-1), self.canvas.ids.mask)

    @cached_property
    def confidence(self) -> Float[Tensor, "B S"]:
        """Probability of the candidate."""

        def view(judged: Tensor, candidate: Tensor) -> Tensor:
            return (judged.gather(1, candidate[:, None])[:, 0] - judged.logsumexp(-1)).exp()

        return self._view(view)

    @cached_property
    def margin(self) -> Float[Tensor, "B S"]:
        """Largest minus second largest probability."""

        def view(judged: Tensor, candidate: Tensor) -> Tensor:
            best, second = judged.topk(2).values.unbind(-1)
            normaliser = judged.logsumexp(-1)
            return (best - normaliser).exp() - (second - normaliser).exp()

        return self._view(view)

    @cached_property
    def entropy(self) -> Float[Tensor, "B S"]:
        """Entropy of the judged distribution, in nats; infinite where nothing was read."""

        def view(judged: Tensor, candidate: Tensor) -> Tensor:
            chance = judged.softmax(-1)
            return -(chance * (chance + 1e-10).log()).sum(-1)

        return self._view(view, nothing=torch.inf)

    @cached_property
    def gap(self) -> Float[Tensor, "B S"]:
        """Largest minus second largest raw logit."""
        best, second = self.logits.topk(2).values.float().unbind(-1)
        return self._rows(best - second, -torch.inf)

    def probability_of(self, *ids: int) -> Float[Tensor, "B S"]:
        """Probability that the token at a column is one of `ids`, in float64; 0 where not read.

        Of the model's own distribution: no sampling setting touches it.
        """
        return self._rows(token_probabilities(self.logits, ids).sum(-1), 0.0)

    @cached_property
    def ending(self) -> Float[Tensor, "B S"]:
        """Probability of any end token."""
        return self.probability_of(*self.canvas.ids.ends)

    def _view(
        self, view: Callable[[Tensor, Tensor], Tensor], nothing: float = -torch.inf
    ) -> Float[Tensor, "B S"]:
        flat, candidates = self.logits.flatten(0, 1), self.candidates.flatten()
        at_once = _rows_at_once(flat)
        parts = [
            view(self.sampling.judged(chunk, self.canvas.ids), chosen)
            for chunk, chosen in zip(torch.split(flat, at_once), torch.split(candidates, at_once))
        ]
        values = torch.cat(parts).view(self.candidates.shape)
        if bool(values.isnan().any()):
            raise _no_choice()
        return self._rows(values, nothing)

    def _rows(self, values: Tensor, nothing: int | float) -> Tensor:  # [A, S] -> [B, S]
        """Values of the rows that took part, among all rows; `nothing` where no column was read."""
        every = torch.full(self.columns.index.shape, nothing, dtype=values.dtype)
        every[self.columns.rows] = values.cpu()
        return every.masked_fill(~self.columns.read, nothing)


def _candidates(
    logits: Tensor, columns: Columns, canvas: Canvas, sampling: Sampling, dice: Dice
) -> Tensor:
    if sampling.temperature == 0:
        flat = logits.flatten(0, 1)
        best = [
            sampling.allowed(c, canvas.ids).max(-1) for c in torch.split(flat, _rows_at_once(flat))
        ]
        _check_best(torch.cat([part.values for part in best]))
        return torch.cat([part.indices for part in best]).view(logits.shape[:2])
    _check_best(logits.amax(-1))
    draw = _gumbel_row if sampling.score == "model" else _categorical_row
    rows = columns.rows.tolist()
    drawn = [draw(own, row, columns, canvas, sampling, dice) for own, row in zip(logits, rows)]
    return torch.stack(drawn)


def _gumbel_row(
    logits: Tensor, row: int, columns: Columns, canvas: Canvas, sampling: Sampling, dice: Dice
) -> Tensor:  # [S, V] -> [S]
    """One row's candidates by Gumbel-max; noise is drawn for the row's every column, in order."""
    index = columns.index[row]
    own = canvas.valid[row].nonzero()[:, 0]
    candidates = torch.empty_like(index)
    for chunk in torch.split(own, _rows_at_once(logits)):
        noise = dice.uniform(row, len(chunk), logits.shape[-1], dtype=torch.float64)
        read_here = (index >= chunk[0]) & (index <= chunk[-1])
        allowed = sampling.allowed(logits[read_here.to(logits.device)], canvas.ids)
        noise = noise[(index[read_here] - chunk[0]).to(noise.device)]
        best = sampling.noisy(allowed.to(noise.device), noise).max(-1)
        _check_best(best.values)
        candidates[read_here] = best.indices.cpu()
    return candidates.to(logits.device)


def _categorical_row(
    logits: Tensor, row: int, columns: Columns, canvas: Canvas, sampling: Sampling, dice: Dice
) -> Tensor:  # [S, V] -> [S]
    """One row's candidates from the tempered, filtered distribution of each column it reads."""
    count = int(columns.read[row].sum())
    drawn = []
    for chunk in torch.split(logits[:count], _rows_at_once(logits)):
        chances = sampling.distribution(sampling.allowed(chunk, canvas.ids))
        _check_best(chances.amax(-1))
        drawn.append(dice.choose(row, chances, 1, replace=True)[:, 0])
    repeated = drawn[-1][-1:].expand(
        len(logits) - count
    )  # the last column, where the row has no more
    return torch.cat([*drawn, repeated]).to(logits.device)


def _rows_at_once(flat: Tensor) -> int:
    return max(1, NUMBERS_AT_ONCE // flat.shape[-1])


def _check_best(values: Tensor) -> None:
    """Refuse a pass that has no best token somewhere: its logits are NaN, or infinite."""
    if not bool(values.isfinite().all()):
        raise _no_choice()


def _no_choice() -> NumericError:
    return NumericError(
        "the model returned logits that are NaN or infinite, so that no token can be chosen; load it in "
        "float32 or bfloat16 (float16 overflows in large models) and check the checkpoint"
    )
