"""The sampling settings of a recipe, and random generators per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from lastword.canvas.tokens import TokenIds
from lastword.errors import SettingError, WrongTypeError
from lastword.models.base import check_device
from lastword.validation import (
    MAX_SEED,
    MIN_SEED,
    Part,
    as_int,
    check_choice,
    check_int,
    check_list,
    check_number,
    check_temperature,
    checked_field,
    is_array,
    short_repr,
)


def check_seed(owner: str, value: object) -> int:
    """Return a seed, given as an integer of any library, as an int; raise an error for other values."""
    try:
        seed = as_int(value)
    except TypeError as error:
        raise WrongTypeError(
            f"{owner}(seed={short_repr(value)}) was given, of type {type(value).__name__}; a seed must be a "
            "whole number"
        ) from error
    check_int(owner, "seed", seed, minimum=MIN_SEED, maximum=MAX_SEED)
    return seed


def check_seeds(owner: str, name: str, values: object, expected: str) -> list[int]:
    """Return a list or an array of seeds as ints; `expected` describes it in the error for other values."""
    seeds: Any = values.tolist() if is_array(values) else values  # type: ignore[attr-defined]
    check_list(owner, name, seeds, expected)
    return [check_seed(owner, seed) for seed in seeds]


class RowGenerators:
    """Random generators, one per row, so that a row draws the same numbers in any batch.

    A row draws numbers for its prompt and answer columns, not for padding, in the order of the reference
    code: with one prompt, `RowGenerators([seed])` reproduces a run of that code with this seed.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device | str = "cpu") -> None:
        target = check_device("RowGenerators", device)
        if target.type == "mps":  # MPS has no float64, which Gumbel noise needs
            target = torch.device("cpu")
        seeds = check_seeds("RowGenerators", "seeds", seeds, "a list of whole numbers, one per row")
        self._generators = [Generator(target).manual_seed(seed) for seed in seeds]

    def __len__(self) -> int:
        return len(self._generators)

    def select(self, rows: Sequence[int]) -> RowGenerators:
        """Return the generators of the given rows, shared and not copied."""
        return self._of([self._generators[row] for row in rows])

    @classmethod
    def concat(cls, generators: Sequence[RowGenerators]) -> RowGenerators:
        """Return the generators of several batches joined into one object."""
        return cls._of([generator for rows in generators for generator in rows._generators])

    @classmethod
    def _of(cls, generators: list[Generator]) -> RowGenerators:
        self = cls.__new__(cls)
        self._generators = generators
        return self

    def uniform(self, row: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return uniform random numbers in [0, 1), drawn with the generator of a row."""
        generator = self._generators[row]
        return torch.rand(*shape, generator=generator, device=generator.device, dtype=dtype)

    def uniform_at(self, where: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return uniform random numbers in [0, 1) where `where` [B, L] is true, and 0 elsewhere."""
        numbers = torch.zeros(where.shape, dtype=dtype, device=where.device)
        counts = where.sum(-1).tolist()
        drawn = [self.uniform(row, n, dtype=dtype) for row, n in enumerate(counts) if n]
        if drawn:
            numbers[where] = torch.cat(drawn).to(where.device)
        return numbers

    def multinomial(self, row: int, weights: Tensor, count: int, *, replace: bool) -> Tensor:
        """Return `count` indices along the last axis, drawn for a row in proportion to the weights."""
        generator = self._generators[row]
        return torch.multinomial(weights.to(generator.device), count, replace, generator=generator)


@dataclass(frozen=True)
class Sampling(Part):
    """The way candidate tokens are drawn, and the probabilities that unmask rules compare.

    At temperature 0 the candidate is the most likely token. Above 0 there are two methods: `score="model"` (LLaDA) adds
    float64 Gumbel noise, and rules compare the probabilities of the model; `score="draw"` (Dream) draws from the
    tempered, filtered distribution, and rules compare that distribution. `top_p` and `top_k` limit the tokens that can
    be drawn; at temperature 0 they are refused unless `score="draw"`.

    `guidance` is LLaDA's scale of classifier-free guidance, which computes every token twice. With `forbid_end` the
    document end is never a candidate (LLaDA's `logits_eos_inf`). With `end_last` end tokens are filled after all other
    tokens (`confidence_eos_eot_inf`, which above temperature 0 lowers only one end token in the reference code). By
    default the mask token is never a candidate. With `propose_mask` it may be one, as in the reference code, and an
    answer may finish with masks left.
    """

    name = "sampling"
    cost_summary = "nothing; guidance doubles the tokens computed"
    source = "LLaDA, Dream"

    temperature: float = checked_field(0.0, check_temperature)
    top_p: float | None = checked_field(None, check_number, above=0, maximum=1)
    top_k: int | None = checked_field(None, check_int, minimum=1)
    score: Literal["model", "draw"] = checked_field("model", check_choice, "model", "draw")
    guidance: float = checked_field(0.0, check_number, minimum=0)
    forbid_end: bool = checked_field(False, check_choice, True, False)
    end_last: bool = checked_field(False, check_choice, True, False)
    propose_mask: bool = checked_field(False, check_choice, True, False)

    def __post_init__(self) -> None:
        super().__post_init__()
        filters = self.top_k is not None or (self.top_p is not None and self.top_p < 1)
        if filters and self.temperature == 0 and self.score == "model":
            setting = f"top_p={self.top_p}" if self.top_k is None else f"top_k={self.top_k}"
            raise SettingError(
                f"Sampling({setting}) was given at temperature 0, where the most likely token is taken and "
                "nothing is filtered: give a temperature above 0, leave top_p and top_k out, or let the "
                'rules compare the filtered distribution (score="draw", as Dream does)'
            )

    def candidate_logits(self, logits: Tensor, ids: TokenIds) -> Tensor:  # [N, V] -> [N, V]
        """Return the logits from which candidates are drawn: -inf at banned tokens."""
        return _without(logits, self.banned_ids(ids))

    def banned_ids(self, ids: TokenIds) -> list[int]:
        """Return the ids of the tokens that are never candidates."""
        banned = [ids.end] if self.forbid_end else []
        return banned + ([] if self.propose_mask else [ids.mask])

    def unscored_ids(self, ids: TokenIds) -> list[int]:
        """Return the ids of the tokens that get probability 0 in the scores that rules compare."""
        banned = [ids.end] if self.forbid_end else []
        return banned + (list(ids.ends) if self.end_last else [])

    def scored_logits(self, logits: Tensor, ids: TokenIds) -> Tensor:  # [N, V] -> [N, V] float32
        """Return the logits whose softmax the rules compare."""
        if self.score == "draw":
            logits = self._filter(self._scale(self.candidate_logits(logits.float(), ids)))
        return _without(logits.float(), self.unscored_ids(ids))

    def add_noise(self, logits: Tensor, noise: Tensor) -> Tensor:  # both [N, V], noise uniform
        """Return filtered logits plus Gumbel noise times temperature, in float64: float32 would change samples."""
        logits = self._filter(logits.double()) if self.temperature else logits.double()
        return logits - self.temperature * torch.log(-torch.log(noise))

    def distribution(self, logits: Tensor) -> Tensor:  # [N, V] -> [N, V]
        """Return the distribution from which `score="draw"` draws."""
        return self._filter(self._scale(logits.float())).softmax(-1)

    def _scale(self, logits: Tensor) -> Tensor:
        return logits / self.temperature if self.temperature > 0 else logits

    def _filter(self, logits: Tensor) -> Tensor:
        """Return logits with the lowest float at filtered tokens: first by `top_p`, then by `top_k`, as in Dream."""
        lowest = torch.finfo(logits.dtype).min
        if self.top_p is not None and self.top_p < 1:
            ordered, order = logits.sort(descending=True)
            beyond = ordered.softmax(-1).cumsum(-1) > self.top_p
            # The token whose cumulative probability first exceeds top_p is kept, so the best one always is.
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
