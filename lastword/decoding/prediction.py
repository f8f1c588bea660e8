"""Candidate tokens and confidence scores of one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.columns import Columns
from lastword.decoding.sampling import RowGenerators, Sampling
from lastword.errors import NumericError
from lastword.models.kernels.vocabulary import ColumnScores, score_columns
from lastword.survival.interpretation import token_probabilities

# Logits are computed and converted to float32 or float64 in chunks of at most this many numbers (128 MB).
MAX_CHUNK_NUMBERS = 2**25
COLUMN_MULTIPLE = 256  # larger chunks have a multiple of this many columns, a tile of a matrix product


class Logits:
    """Logits [A, S, V] of A participating rows, S columns and V tokens, computed from hidden states [A, S, W].

    Logits of few columns are computed at once and cached. For many columns, such as those of a probe, a GPU computes
    them chunk by chunk, and the whole tensor only on request: 1024 columns of a vocabulary of 126k take 260 MB in bf16.

    States may be packed [1, N, W]; then `packed` [A, S] holds the index of each column's state.
    """

    def __init__(
        self, states: Tensor, head: Callable[[Tensor], Tensor], vocab_size: int, packed: Tensor | None = None
    ) -> None:
        self.state_shape = states.shape[:2]
        self.shape = (*(self.state_shape if packed is None else packed.shape), vocab_size)
        self._states, self._head, self._packed = states, head, packed

    @classmethod
    def of(cls, logits: Tensor) -> Logits:
        """Return `Logits` that hold computed logits [A, S, V], as a model without `states` or a hook returns them."""
        return cls(logits, lambda same: same, logits.shape[-1])

    @property
    def device(self) -> torch.device:
        return self._states.device

    @cached_property
    def whole(self) -> Tensor:  # [A, S, V]
        return self.unpack(self._by_state)

    @cached_property
    def _by_state(self) -> Tensor:  # [N, V]
        return self._head(self._states).flatten(0, 1)

    def unpack(self, values: Tensor) -> Tensor:  # [N, ...] -> [A, S, ...]
        """Return values computed per hidden state, arranged by row and column."""
        if self._packed is None:
            return values.view(*self.state_shape, *values.shape[1:])
        return values[self._packed]

    def chunks(self) -> Iterator[Tensor]:  # [n, V]
        """Yield the logits of all hidden states, one chunk of states at a time."""
        size = max(1, MAX_CHUNK_NUMBERS // self.shape[-1])
        if size > COLUMN_MULTIPLE:
            size -= size % COLUMN_MULTIPLE
        is_large = self.device.type == "cuda" and self.state_shape.numel() > size
        if "_by_state" in self.__dict__ or not is_large:
            yield from torch.split(self._by_state, size)
            return
        for states in torch.split(self._states.flatten(0, 1), size):
            yield self._head(states[None])[0]


@dataclass(frozen=True, eq=False)
class Prediction:
    """The result of one forward pass: candidate tokens and scores of the columns that were read.

    Scores are tensors [B, S] on the device of the canvas, in the order of `columns`; each is computed on first use.
    Entries that were not read hold the worst value of a score. The scored distribution is the softmax of
    `Sampling.scored_logits`, in float32: bf16 rounds all numbers above 0.998 to 1, which would create ties.
    """

    scores: Logits  # logits of the rows in columns.rows
    columns: Columns
    canvas: Canvas  # before the pass
    sampling: Sampling
    generators: RowGenerators
    candidates: Int[Tensor, "..."]  # one token per hidden state, of shape scores.state_shape
    summary: LogitSummary | None  # all scores, if a GPU kernel computed them in one read
    invalid_rows: Bool[Tensor, "B"] | None  # rows whose logits are NaN or infinite; None: dynamic pass

    @classmethod
    def from_logits(
        cls, logits: Tensor | Logits, columns: Columns, canvas: Canvas, sampling: Sampling, generators: RowGenerators
    ) -> Prediction:
        """Draw the candidate tokens and return the prediction; invalid logits raise NumericError in a dynamic pass.

        Rules that choose masks at random draw after this, as in the reference code.
        """
        scores = Logits.of(logits) if isinstance(logits, Tensor) else logits
        summary = LogitSummary.compute(scores, canvas, sampling)
        if summary is None:
            candidates, best = _candidates(scores, columns, canvas, sampling, generators)
        else:
            # `logsumexp` is added because it is not finite if the logit of any token is NaN.
            best = summary.summary.candidate_logit + summary.summary.logsumexp
            candidates = summary.summary.candidate.view(scores.state_shape)
        prediction = cls(scores, columns, canvas, sampling, generators, candidates, summary, None)
        finite = (best - best) == 0  # False for NaN, inf and -inf, since inf - inf is NaN
        if canvas.static:
            invalid = ~scores.unpack(finite.flatten()).to(canvas.device) & columns.read
            return replace(prediction, invalid_rows=invalid.any(-1))
        if not bool(finite.all()):
            raise invalid_logits_error()
        return prediction

    @property
    def logits(self) -> Float[Tensor, "A S V"]:
        """The logits of the rows in `columns.rows`, computed as a whole and kept."""
        return self.scores.whole

    @cached_property
    def read_mask(self) -> Bool[Tensor, "B L"]:
        """The columns of the canvas that were read, as booleans."""
        return self.columns.scatter(self.columns.read)

    def covers_all(self, wanted: Bool[Tensor, "B L"]) -> Bool[Tensor, "B"]:
        """Return for each row whether it participated in the pass and all its `wanted` columns were read."""
        return self.columns.participates & ~(wanted & ~self.read_mask).any(-1)

    @cached_property
    def tokens(self) -> Int[Tensor, "B S"]:
        """The candidate token of every column that was read; the mask token elsewhere."""
        return self._rows(self.candidates, self.canvas.ids.mask)

    @cached_property
    def tokens_on_canvas(self) -> Int[Tensor, "B L"]:
        """The candidates at their columns of the canvas; the mask token elsewhere."""
        return self.columns.scatter(self.tokens, self.canvas.ids.mask)

    @cached_property
    def argmax_tokens(self) -> Int[Tensor, "B S"]:
        """The token with the largest raw logit, before sampling settings; the mask token where not read."""
        if self.summary is not None:
            return self._rows(self.summary.summary.argmax, self.canvas.ids.mask)
        best = torch.cat([part.argmax(-1) for part in self.scores.chunks()])
        return self._rows(best, self.canvas.ids.mask)

    @cached_property
    def confidence(self) -> Float[Tensor, "B S"]:
        """The probability of the candidate in the scored distribution; -inf where not read."""

        def score(logits: Tensor, candidate: Tensor) -> Tensor:
            return (logits.gather(1, candidate[:, None])[:, 0] - logits.logsumexp(-1)).exp()

        return self._score("confidence", score)

    @cached_property
    def margin(self) -> Float[Tensor, "B S"]:
        """The largest minus the second largest probability of the scored distribution; -inf where not read."""

        def score(logits: Tensor, candidate: Tensor) -> Tensor:
            best, second = (logits.topk(2).values - logits.logsumexp(-1, keepdim=True)).exp().unbind(-1)
            return best - second

        return self._score("margin", score)

    @cached_property
    def entropy(self) -> Float[Tensor, "B S"]:
        """The entropy of the scored distribution, in nats; inf where not read."""

        def score(logits: Tensor, candidate: Tensor) -> Tensor:
            probability = logits.softmax(-1)
            return -(probability * (probability + 1e-10).log()).sum(-1)

        return self._score("entropy", score, unread=torch.inf)

    @cached_property
    def gap(self) -> Float[Tensor, "B S"]:
        """The largest minus the second largest raw logit; -inf where not read."""
        if self.summary is not None:
            return self._rows(self.summary.summary.gap, -torch.inf)
        best, second = torch.cat([part.topk(2).values.float() for part in self.scores.chunks()]).unbind(-1)
        return self._rows(best - second, -torch.inf)

    def probability_of(self, *ids: int) -> Float[Tensor, "B S"]:
        """Return the probability that the token of a column is one of `ids`, in float64; 0 where not read.

        It is computed from the raw logits, before sampling settings.
        """
        if self.summary is not None and (probability := self.summary.probability_of(ids)) is not None:
            return self._rows(probability, 0.0)
        parts = [token_probabilities(part, ids).sum(-1) for part in self.scores.chunks()]
        return self._rows(torch.cat(parts), 0.0)

    @cached_property
    def end_probability(self) -> Float[Tensor, "B S"]:
        """The probability that the token of a column is an end token, in float64; 0 where not read."""
        return self.probability_of(*self.canvas.ids.ends)

    def _score(
        self, name: str, score: Callable[[Tensor, Tensor], Tensor], unread: float = -torch.inf
    ) -> Float[Tensor, "B S"]:
        """Return the score `name` from `summary`, or computed by `score` from scored logits and candidates."""
        if self.summary is not None:
            return self._rows(getattr(self.summary.summary, name), unread)
        values, start = [], 0
        for chunk in self.scores.chunks():
            candidates = self.candidates.flatten()[start : start + len(chunk)]
            values.append(score(self.sampling.scored_logits(chunk, self.canvas.ids), candidates))
            start += len(chunk)
        scores = torch.cat(values)
        if not self.canvas.static and bool(scores.isnan().any()):
            raise invalid_logits_error()
        return self._rows(scores, unread)

    def _rows(self, values: Tensor, unread: int | float) -> Tensor:  # [N] -> [B, S]
        """Return values given per hidden state as a tensor over all rows, with `unread` where not read."""
        shape, device = self.columns.index.shape, self.canvas.device
        rows = self.scores.unpack(values.flatten()).to(device)
        if not self.columns.static:
            all_rows = torch.full(shape, unread, dtype=values.dtype, device=device)
            all_rows[self.columns.rows] = rows
            rows = all_rows
        return rows.where(self.columns.read, unread)


class LogitSummary(NamedTuple):
    """The scores of every column, computed by a GPU kernel in one read of the logits."""

    summary: ColumnScores  # [A * S]
    ends: Float[Tensor, "N E"]  # logits of the end tokens
    ids: tuple[int, ...]  # the end tokens

    @classmethod
    def compute(cls, scores: Logits, canvas: Canvas, sampling: Sampling) -> LogitSummary | None:
        """Score columns by a GPU kernel; None without a GPU, at a temperature above 0, or if `score` is not "model"."""
        if scores.device.type != "cuda" or sampling.temperature > 0 or sampling.score != "model":
            return None
        banned, unscored = sampling.banned_ids(canvas.ids), sampling.unscored_ids(canvas.ids)
        end_ids, parts = canvas.ids.ends, []
        for chunk in scores.chunks():
            ends = torch.stack([chunk[:, end] for end in end_ids], dim=-1)
            parts.append((*score_columns(chunk, banned=banned, unscored=unscored), ends))
        *values, ends = (torch.cat(part) if len(parts) > 1 else part[0] for part in zip(*parts))
        return cls(ColumnScores(*values), ends, tuple(end_ids))

    def probability_of(self, ids: Sequence[int]) -> Tensor | None:
        """Return the probability that a token is one of `ids`, in float64; None unless all `ids` are end tokens."""
        if not set(ids) <= set(self.ids):
            return None
        columns = [self.ends[:, self.ids.index(end)] for end in ids]
        logits = torch.stack(columns, dim=-1) if columns else self.ends[:, :0]
        return (logits.double() - self.summary.logsumexp.double()[:, None]).exp().sum(-1)


def _candidates(
    scores: Logits, columns: Columns, canvas: Canvas, sampling: Sampling, generators: RowGenerators
) -> tuple[Tensor, Tensor]:
    """Return the candidates, one per hidden state, and numbers that are not finite where logits are invalid."""
    if sampling.temperature == 0:
        parts = [first_argmax(sampling.candidate_logits(chunk, canvas.ids)) for chunk in scores.chunks()]
        best, index = (torch.cat(values) for values in zip(*parts))
        return index.view(scores.state_shape), best
    logits = scores.whole
    _check_best(logits.amax(-1))
    draw = _gumbel_row if sampling.score == "model" else _categorical_row
    tokens = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)
    participates = columns.participates.tolist()
    for place, row in enumerate(columns.rows.tolist()):
        if participates[row]:  # an idle row must not advance its generator
            tokens[place] = draw(logits[place], row, columns, canvas, sampling, generators)
    return tokens, logits.new_zeros(scores.shape[:2])


def first_argmax(scores: Tensor) -> tuple[Tensor, Tensor]:  # [N, V] -> [N], [N]
    """Return the highest score of every row and its index, the lowest index among equal scores.

    On a GPU, `max` may return any index among equal scores.
    """
    best = scores.max(-1)
    if scores.is_cpu:
        return best.values, best.indices
    # If the best value is NaN, the index is 0, since NaN equals nothing; the caller rejects the value.
    first = (scores == best.values[:, None]).to(torch.uint8).argmax(-1)
    return best.values, first


def _gumbel_row(
    logits: Tensor, row: int, columns: Columns, canvas: Canvas, sampling: Sampling, generators: RowGenerators
) -> Tensor:  # [S, V] -> [S]
    """Return the candidates of a row, drawn by Gumbel-max; all valid columns get noise, as in the reference code."""
    index = columns.index[row].cpu()
    valid = canvas.valid[row].cpu().nonzero()[:, 0]
    candidates = torch.empty_like(index)
    for chunk in torch.split(valid, _chunk_rows(logits)):
        noise = generators.uniform(row, len(chunk), logits.shape[-1], dtype=torch.float64)
        in_chunk = (index >= chunk[0]) & (index <= chunk[-1])
        allowed = sampling.candidate_logits(logits[in_chunk.to(logits.device)], canvas.ids)
        noise = noise[(index[in_chunk] - chunk[0]).to(noise.device)]
        best = sampling.add_noise(allowed.to(noise.device), noise).max(-1)
        _check_best(best.values)
        candidates[in_chunk] = best.indices.cpu()
    return candidates.to(logits.device)


def _categorical_row(
    logits: Tensor, row: int, columns: Columns, canvas: Canvas, sampling: Sampling, generators: RowGenerators
) -> Tensor:  # [S, V] -> [S]
    """Return a row's candidates, drawn from the tempered, filtered distributions; 0 where not read."""
    read = columns.read[row].to(logits.device)
    parts = []
    for chunk in torch.split(logits[read], _chunk_rows(logits)):
        probabilities = sampling.distribution(sampling.candidate_logits(chunk, canvas.ids))
        _check_best(probabilities.amax(-1))
        parts.append(generators.multinomial(row, probabilities, 1, replace=True)[:, 0])
    tokens = torch.cat(parts).to(logits.device)
    return tokens.new_zeros(len(logits)).masked_scatter(read, tokens)


def _chunk_rows(logits: Tensor) -> int:
    return max(1, MAX_CHUNK_NUMBERS // logits.shape[-1])


def _check_best(values: Tensor) -> None:
    """Raise NumericError if a column has no best token because its logits are NaN or infinite."""
    if not bool(values.isfinite().all()):
        raise invalid_logits_error()


def invalid_logits_error() -> NumericError:
    """Return the error for logits from which no token can be chosen."""
    return NumericError(
        "the model returned logits that are NaN or infinite, so that no token can be chosen; load it in "
        "float32 or bfloat16 (float16 overflows in large models) and check the checkpoint"
    )
