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
from lastword.models.kernels.vocabulary import Summary, summarise
from lastword.survival.signal import token_probabilities

# Logits are made and lifted to float32 (or float64) this many numbers at a time: 128 MB, not gigabytes.
MAX_CHUNK_NUMBERS = 2**25
EVEN = 256  # columns: many are made by multiples of so many


class Logits:
    """Logits [A, S, V] of the rows that took part, from states [A, S, W] and the head that reads them.

    Few columns make all of them at once, and they are kept. Of many, such as a probe's, a GPU takes its
    views a few columns at a time, and the whole is made only for whoever needs it: 1024 columns of a
    126k vocabulary are 260 MB in bf16.

    States may be those of the columns that are read alone, [1, N, W]; `packed` [A, S] says which is whose.
    """

    def __init__(
        self,
        states: Tensor,
        head: Callable[[Tensor], Tensor],
        vocabulary: int,
        packed: Tensor | None = None,
    ) -> None:
        self.state_shape = states.shape[:2]
        self.shape = (*(self.state_shape if packed is None else packed.shape), vocabulary)
        self._states, self._head, self._packed = states, head, packed

    @classmethod
    def of(cls, logits: Tensor) -> Logits:
        """Those a model returned."""
        return cls(logits, lambda same: same, logits.shape[-1])

    @property
    def device(self) -> torch.device:
        return self._states.device

    @cached_property
    def whole(self) -> Tensor:  # [A, S, V]
        return self.spread(self._made)

    @cached_property
    def _made(self) -> Tensor:  # [N, V]
        return self._head(self._states).flatten(0, 1)

    def spread(self, made: Tensor) -> Tensor:  # [N, ...] -> [A, S, ...]
        """What was made of every state, at the columns that are read."""
        if self._packed is None:
            return made.view(*self.state_shape, *made.shape[1:])
        return made[self._packed]

    def chunks(self) -> Iterator[Tensor]:  # [n, V]
        """Of all states, a few at a time."""
        at_once = max(1, MAX_CHUNK_NUMBERS // self.shape[-1])
        if at_once > EVEN:  # a product of a few columns more takes a whole tile more
            at_once -= at_once % EVEN
        many = self.device.type == "cuda" and self.state_shape.numel() > at_once
        if "_made" in self.__dict__ or not many:
            yield from torch.split(self._made, at_once)
            return
        for states in torch.split(self._states.flatten(0, 1), at_once):
            yield self._head(states[None])[0]


@dataclass(frozen=True, eq=False)
class Prediction:
    """One forward pass. Rules take the view they need; each is computed once, on first use.

    Views are [B, S], where the canvas lives: one number for every column that the pass read, in the order
    of `columns`. Where nothing was read they hold a value no rule would choose. Confidence, margin and
    entropy are judged in float32 whatever the model's dtype: bf16 rounds everything above 0.998 to 1 and
    turns ranking into tie-breaking.
    """

    scores: Logits  # of the rows that were computed, columns.rows
    columns: Columns
    canvas: Canvas  # as the pass saw it
    sampling: Sampling
    generators: RowGenerators
    candidates: Int[Tensor, "..."]  # of every state
    summary: LogitSummary | None  # all views of one read of the logits, where a kernel made them
    invalid_rows: Bool[Tensor, "B"] | None  # rows without a best token, where asking would stop the device

    @classmethod
    def from_logits(
        cls,
        logits: Tensor | Logits,
        columns: Columns,
        canvas: Canvas,
        sampling: Sampling,
        generators: RowGenerators,
    ) -> Prediction:
        """Draw the candidates at once: the authors draw tokens before they draw which masks to fill."""
        scores = Logits.of(logits) if isinstance(logits, Tensor) else logits
        once = LogitSummary.compute(scores, canvas, sampling)
        if once is None:
            drawn, best = _candidates(scores, columns, canvas, sampling, generators)
        else:
            # The sum is not finite either where another token than the best one is NaN.
            best = once.summary.best + once.summary.normaliser
            drawn = once.summary.candidate.view(scores.state_shape)
        prediction = cls(scores, columns, canvas, sampling, generators, drawn, once, None)
        finite = (best - best) == 0  # of NaN and infinities the difference is NaN
        if canvas.static:
            broken = ~scores.spread(finite.flatten()).to(canvas.device) & columns.read
            return replace(prediction, invalid_rows=broken.any(-1))
        if not bool(finite.all()):
            raise invalid_logits_error()
        return prediction

    @property
    def logits(self) -> Float[Tensor, "A S V"]:
        """Of the rows that were computed, `columns.rows`."""
        return self.scores.whole

    @cached_property
    def read_mask(self) -> Bool[Tensor, "B L"]:
        """Columns of the canvas this pass can speak for."""
        return self.columns.scatter(self.columns.read)

    def covers_all(self, wanted: Bool[Tensor, "B L"]) -> Bool[Tensor, "B"]:
        """Rows that took part in this pass and of which it read all these columns."""
        return self.columns.participates & ~(wanted & ~self.read_mask).any(-1)

    @cached_property
    def tokens(self) -> Int[Tensor, "B S"]:
        """The candidate for every column that was read; the mask elsewhere."""
        return self._rows(self.candidates, self.canvas.ids.mask)

    @cached_property
    def tokens_on_canvas(self) -> Int[Tensor, "B L"]:
        """The candidates at their columns of the canvas, to be written; the mask elsewhere."""
        return self.columns.scatter(self.tokens, self.canvas.ids.mask)

    @cached_property
    def argmax_tokens(self) -> Int[Tensor, "B S"]:
        """The model's first choice, whatever sampling allows or draws; the mask elsewhere."""
        if self.summary is not None:
            return self._rows(self.summary.summary.likeliest, self.canvas.ids.mask)
        best = torch.cat([part.argmax(-1) for part in self.scores.chunks()])
        return self._rows(best, self.canvas.ids.mask)

    @cached_property
    def confidence(self) -> Float[Tensor, "B S"]:
        """Probability of the candidate."""

        def view(judged: Tensor, candidate: Tensor) -> Tensor:
            return (judged.gather(1, candidate[:, None])[:, 0] - judged.logsumexp(-1)).exp()

        return self._view("confidence", view)

    @cached_property
    def margin(self) -> Float[Tensor, "B S"]:
        """Largest minus second largest probability."""

        def view(judged: Tensor, candidate: Tensor) -> Tensor:
            best, second = judged.topk(2).values.unbind(-1)
            normaliser = judged.logsumexp(-1)
            return (best - normaliser).exp() - (second - normaliser).exp()

        return self._view("margin", view)

    @cached_property
    def entropy(self) -> Float[Tensor, "B S"]:
        """Entropy of the judged distribution, in nats; infinite where nothing was read."""

        def view(judged: Tensor, candidate: Tensor) -> Tensor:
            chance = judged.softmax(-1)
            return -(chance * (chance + 1e-10).log()).sum(-1)

        return self._view("entropy", view, nothing=torch.inf)

    @cached_property
    def gap(self) -> Float[Tensor, "B S"]:
        """Largest minus second largest raw logit."""
        if self.summary is not None:
            return self._rows(self.summary.summary.gap, -torch.inf)
        leads = []
        for part in self.scores.chunks():
            best, second = part.topk(2).values.float().unbind(-1)
            leads.append(best - second)
        return self._rows(torch.cat(leads), -torch.inf)

    def probability_of(self, *ids: int) -> Float[Tensor, "B S"]:
        """Probability that the token at a column is one of `ids`, in float64; 0 where not read.

        Of the model's own distribution: no sampling setting touches it.
        """
        if self.summary is not None and (known := self.summary.probability_of(ids)) is not None:
            return self._rows(known, 0.0)
        parts = [token_probabilities(part, ids).sum(-1) for part in self.scores.chunks()]
        return self._rows(torch.cat(parts), 0.0)

    @cached_property
    def end_probability(self) -> Float[Tensor, "B S"]:
        """Probability of any end token."""
        return self.probability_of(*self.canvas.ids.ends)

    def _view(
        self,
        name: str,
        view: Callable[[Tensor, Tensor], Tensor],
        nothing: float = -torch.inf,
    ) -> Float[Tensor, "B S"]:
        if self.summary is not None:
            return self._rows(getattr(self.summary.summary, name), nothing)
        values, done = [], 0
        for part in self.scores.chunks():
            chosen = self.candidates.flatten()[done : done + len(part)]
            values.append(view(self.sampling.scored_logits(part, self.canvas.ids), chosen))
            done += len(part)
        found = torch.cat(values)
        if not self.canvas.static and bool(found.isnan().any()):
            raise invalid_logits_error()
        return self._rows(found, nothing)

    def _rows(self, values: Tensor, nothing: int | float) -> Tensor:  # [N] -> [B, S]
        """Values of the rows that were computed, among all rows; `nothing` where no column was read."""
        shape, device = self.columns.index.shape, self.canvas.device
        own = self.scores.spread(values.flatten()).to(device)
        if not self.columns.static:
            every = torch.full(shape, nothing, dtype=values.dtype, device=device)
            every[self.columns.rows] = own
            own = every
        return own.where(self.columns.read, nothing)


class LogitSummary(NamedTuple):
    """What one read of the logits yields of every column, where a kernel makes it."""

    summary: Summary  # [A * S]
    ends: Float[Tensor, "N E"]  # logits of the end tokens
    ids: tuple[int, ...]  # those end tokens

    @classmethod
    def compute(cls, scores: Logits, canvas: Canvas, sampling: Sampling) -> LogitSummary | None:
        """On a GPU, of tokens that are not drawn; elsewhere every view is made when it is asked for."""
        if scores.device.type != "cuda" or sampling.temperature > 0 or sampling.score != "model":
            return None
        banned, unjudged = sampling.banned_ids(canvas.ids), sampling.unscored_ids(canvas.ids)
        ends, parts = canvas.ids.ends, []
        for part in scores.chunks():
            seen = torch.stack([part[:, end] for end in ends], dim=-1)
            parts.append((*summarise(part, banned=banned, unjudged=unjudged), seen))
        *views, seen = (torch.cat(own) if len(parts) > 1 else own[0] for own in zip(*parts))
        return cls(Summary(*views), seen, tuple(ends))

    def probability_of(self, ids: Sequence[int]) -> Tensor | None:
        """Of any of these end tokens, in float64; None: another token was asked for."""
        if not set(ids) <= set(self.ids):
            return None
        own = [self.ends[:, self.ids.index(one)] for one in ids]
        logits = torch.stack(own, dim=-1) if own else self.ends[:, :0]
        return (logits.double() - self.summary.normaliser.double()[:, None]).exp().sum(-1)


def _candidates(
    scores: Logits, columns: Columns, canvas: Canvas, sampling: Sampling, generators: RowGenerators
) -> tuple[Tensor, Tensor]:
    """The candidates [A, S], and the best score of every column."""
    if sampling.temperature == 0:
        found = [first_argmax(sampling.candidate_logits(part, canvas.ids)) for part in scores.chunks()]
        best, index = (torch.cat(values) for values in zip(*found))
        return index.view(scores.state_shape), best
    logits = scores.whole
    _check_best(logits.amax(-1))
    draw = _gumbel_row if sampling.score == "model" else _categorical_row
    drawn = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)
    took_part = columns.participates.tolist()
    for place, row in enumerate(columns.rows.tolist()):
        if took_part[row]:  # who does not take part draws nothing
            drawn[place] = draw(logits[place], row, columns, canvas, sampling, generators)
    return drawn, logits.new_zeros(scores.shape[:2])


def first_argmax(scores: Tensor) -> tuple[Tensor, Tensor]:  # [N, V] -> [N], [N]
    """The highest score and its index; of equal ones the leftmost, which a GPU's `max` does not promise."""
    best = scores.max(-1)
    if scores.is_cpu:
        return best.values, best.indices
    first = (scores == best.values[:, None]).to(torch.uint8).argmax(-1)
    # NaN equals nothing: it is found by its value, and refused.
    return best.values, first


def _gumbel_row(
    logits: Tensor,
    row: int,
    columns: Columns,
    canvas: Canvas,
    sampling: Sampling,
    generators: RowGenerators,
) -> Tensor:  # [S, V] -> [S]
    """One row's candidates by Gumbel-max; noise is drawn for the row's every column, in order."""
    index = columns.index[row].cpu()
    own = canvas.valid[row].cpu().nonzero()[:, 0]
    candidates = torch.empty_like(index)
    for chunk in torch.split(own, _rows_at_once(logits)):
        noise = generators.uniform(row, len(chunk), logits.shape[-1], dtype=torch.float64)
        read_here = (index >= chunk[0]) & (index <= chunk[-1])
        allowed = sampling.candidate_logits(logits[read_here.to(logits.device)], canvas.ids)
        noise = noise[(index[read_here] - chunk[0]).to(noise.device)]
        best = sampling.add_noise(allowed.to(noise.device), noise).max(-1)
        _check_best(best.values)
        candidates[read_here] = best.indices.cpu()
    return candidates.to(logits.device)


def _categorical_row(
    logits: Tensor,
    row: int,
    columns: Columns,
    canvas: Canvas,
    sampling: Sampling,
    generators: RowGenerators,
) -> Tensor:  # [S, V] -> [S]
    """One row's candidates from the tempered, filtered distribution of each column it reads."""
    read = columns.read[row].to(logits.device)
    drawn = []
    for chunk in torch.split(logits[read], _rows_at_once(logits)):
        chances = sampling.distribution(sampling.candidate_logits(chunk, canvas.ids))
        _check_best(chances.amax(-1))
        drawn.append(generators.multinomial(row, chances, 1, replace=True)[:, 0])
    found = torch.cat(drawn).to(logits.device)
    # Where nothing is read no rule looks.
    return found.new_zeros(len(logits)).masked_scatter(read, found)


def _rows_at_once(logits: Tensor) -> int:
    return max(1, MAX_CHUNK_NUMBERS // logits.shape[-1])


def _check_best(values: Tensor) -> None:
    """Refuse a pass that has no best token somewhere: its logits are NaN, or infinite."""
    if not bool(values.isfinite().all()):
        raise invalid_logits_error()


def invalid_logits_error() -> NumericError:
    """What to say of a pass that leaves nothing to choose."""
    return NumericError(
        "the model returned logits that are NaN or infinite, so that no token can be chosen; load it in "
        "float32 or bfloat16 (float16 overflows in large models) and check the checkpoint"
    )
