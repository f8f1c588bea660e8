"""Sampling settings and per-row random generators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor

from lastword.canvas.tokens import TokenIds, as_token_id, is_array
from lastword.errors import SettingError, WrongTypeError
from lastword.models.base import check_device
from lastword.validation import (
    MAX_SEED,
    MIN_SEED,
    check_choice,
    check_int,
    check_list,
    check_number,
    check_temperature,
    short_repr,
)


def check_seed(owner: str, value: object) -> int:
    """A whole number of any library that a generator takes for a seed."""
    try:
        seed = as_token_id(value)
    except TypeError as wrong:
        raise WrongTypeError(
            f"{owner}(seed={short_repr(value)}) was given, of type {type(value).__name__}; a seed must be "
            "a whole "
            "number"
        ) from wrong
    check_int(owner, "seed", seed, minimum=MIN_SEED, maximum=MAX_SEED)
    return seed


def check_seeds(owner: str, name: str, values: object, wanted: str) -> list[int]:
    """A list or an array of seeds."""
    listed: Any = values.tolist() if is_array(values) else values  # type: ignore[attr-defined]
    check_list(owner, name, listed, wanted)
    return [check_seed(owner, seed) for seed in listed]


class RowGenerators:
    """One random generator per row, so that a row draws the same numbers in any batch.

    Rows draw over their own columns, prompt included and padding excluded, in the order the
    authors' loops draw: with one prompt, `Dice([seed])` repeats their runs.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device | str = "cpu") -> None:
        # Apple's GPU has no float64 noise; its rows draw on the CPU.
        where = check_device("RowGenerators", device)
        home = "cpu" if where.type == "mps" else where
        whole = check_seeds("RowGenerators", "seeds", seeds, "a list of whole numbers, one a row")
        self._generators = [Generator(home).manual_seed(seed) for seed in whole]

    def __len__(self) -> int:
        return len(self._generators)

    def select(self, rows: Sequence[int]) -> RowGenerators:
        """The dice of some rows."""
        own = RowGenerators.__new__(RowGenerators)  # these seeds were checked
        own._generators = [self._generators[row] for row in rows]
        return own

    @classmethod
    def concat(cls, generators: Sequence[RowGenerators]) -> RowGenerators:
        """The dice of several as those of one batch."""
        whole = cls.__new__(cls)
        whole._generators = [generator for own in generators for generator in own._generators]
        return whole

    def uniform(self, row: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        generator = self._generators[row]
        return torch.rand(*shape, generator=generator, device=generator.device, dtype=dtype)

    def uniform_at(self, where: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """A number for every true column of `where` [B, L]; 0 elsewhere.

        Rows draw one by one, and what they drew crosses to where it is asked for once.
        """
        numbers = torch.zeros(where.shape, dtype=dtype, device=where.device)
        counts = where.sum(-1).tolist()
        drawn = [self.uniform(row, n, dtype=dtype) for row, n in enumerate(counts) if n]
        if drawn:
            numbers[where] = torch.cat(drawn).to(where.device)
        return numbers

    def multinomial(self, row: int, weights: Tensor, count: int, *, replace: bool) -> Tensor:
        """`count` indices along the last axis, drawn in proportion to the weights."""
        generator = self._generators[row]
        return torch.multinomial(weights.to(generator.device), count, replace, generator=generator)


@dataclass(frozen=True)
class Sampling:
    """What may be proposed, how it is drawn, and which probabilities the rules judge it by.

    With `temperature` 0 the candidate is the likeliest token. Above 0 it is drawn, in one of two
    ways the field knows: `score="model"` (LLaDA) adds float64 Gumbel noise and lets rules judge
    the candidate by the model's own probabilities; `score="draw"` (Dream) draws from the tempered,
    filtered distribution and lets rules judge by that one. `top_p` and `top_k` filter the draw: at
    temperature 0 nothing is drawn, and they are refused unless rules judge by what they keep (`draw`).

    `guidance` is LLaDA's classifier-free guidance scale: a second pass without the prompt, so
    twice the columns. `forbid_end` never proposes the document end (LLaDA `logits_eos_inf`).
    `end_last` proposes end tokens but fills everything else first (`confidence_eos_eot_inf`; the
    authors' code does so at temperature 0 only, ours at any). A model may propose the mask token
    itself; the authors then write a mask over a mask and may finish with masks left. Ours takes
    the next best token unless `propose_mask` asks for theirs.
    """

    name: ClassVar[str] = "sampling"
    cost_summary: ClassVar[str] = "nothing; guidance doubles the columns"
    source: ClassVar[str] = "LLaDA (Nie et al., 2025), Dream (Ye et al., 2025)"

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    score: Literal["model", "draw"] = "model"
    guidance: float = 0.0
    forbid_end: bool = False
    end_last: bool = False
    propose_mask: bool = False

    def __post_init__(self) -> None:
        check_temperature("Sampling", "temperature", self.temperature)
        check_number("Sampling", "guidance", self.guidance, minimum=0)
        check_choice("Sampling", "score", self.score, "model", "draw")
        if self.top_p is not None:
            check_number("Sampling", "top_p", self.top_p, above=0, maximum=1)
        if self.top_k is not None:
            check_int("Sampling", "top_k", self.top_k, minimum=1)
        for name in ("forbid_end", "end_last", "propose_mask"):
            check_choice("Sampling", name, getattr(self, name), True, False)
        filters = self.top_k is not None or (self.top_p is not None and self.top_p < 1)
        if filters and self.temperature == 0 and self.score == "model":
            given = f"top_p={self.top_p}" if self.top_k is None else f"top_k={self.top_k}"
            raise SettingError(
                f"Sampling({given}) was given at temperature 0, where the likeliest token is taken and "
                "nothing is left to filter: give a temperature above 0, leave top_p and top_k out, or let "
                'the rules judge by what is kept (score="draw", as Dream does)'
            )

    def candidate_logits(self, logits: Tensor, ids: TokenIds) -> Tensor:  # [N, V] -> [N, V]
        """The logits a candidate is taken from."""
        return _without(logits, self.banned_ids(ids))

    def banned_ids(self, ids: TokenIds) -> list[int]:
        """What is never a candidate."""
        banned = [ids.end] if self.forbid_end else []
        return banned + ([] if self.propose_mask else [ids.mask])

    def unscored_ids(self, ids: TokenIds) -> list[int]:
        """What the rules take for impossible."""
        banned = [ids.end] if self.forbid_end else []
        return banned + (list(ids.ends) if self.end_last else [])

    def scored_logits(self, logits: Tensor, ids: TokenIds) -> Tensor:  # [N, V] -> [N, V] float32
        """The logits whose softmax the rules judge candidates by."""
        if self.score == "draw":
            logits = self._filter(self._scale(self.candidate_logits(logits.float(), ids)))
        return _without(logits.float(), self.unscored_ids(ids))

    def add_noise(self, logits: Tensor, noise: Tensor) -> Tensor:  # both [N, V], noise uniform
        """Gumbel-max at this temperature, in float64: float32 noise measurably changes samples."""
        logits = self._filter(logits.double()) if self.temperature else logits.double()
        return logits - self.temperature * torch.log(-torch.log(noise))

    def distribution(self, logits: Tensor) -> Tensor:  # [N, V] -> [N, V]
        """What `score="draw"` draws from."""
        return self._filter(self._scale(logits.float())).softmax(-1)

    def _scale(self, logits: Tensor) -> Tensor:
        return logits / self.temperature if self.temperature > 0 else logits

    def _filter(self, logits: Tensor) -> Tensor:
        """Nucleus first, then the k best: Dream's order."""
        lowest = torch.finfo(logits.dtype).min
        if self.top_p is not None and self.top_p < 1:
            ordered, order = logits.sort(descending=True)
            beyond = ordered.softmax(-1).cumsum(-1) > self.top_p
            # The token that crosses the bound stays, and so does the best one.
            beyond = torch.nn.functional.pad(beyond, (1, 0))[..., :-1]
            logits = logits.masked_fill(beyond.scatter(-1, order, beyond), lowest)
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            worst_kept = logits.topk(self.top_k).values[..., -1:]
            logits = logits.masked_fill(logits < worst_kept, lowest)
        return logits


def _without(logits: Tensor, banned: Sequence[int]) -> Tensor:
    if not banned:
        return logits
    logits = logits.clone()
    logits[..., list(banned)] = -torch.inf
    return logits
