"""Scores of columns for unmask rules (confidence, margin, entropy ...), computed in one read of the logits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from lastword.models.kernels import compile_kernel, power_of_two, uses_triton

if TYPE_CHECKING:
    import triton.language as tl


MAX_NUMBERS = 2**25  # logits that PyTorch converts to float32 at a time: 128 MB instead of gigabytes
BLOCK_TOKENS = 4096  # logits of a column that one program reads


class ColumnScores(NamedTuple):
    """The candidates and scores of N columns. Ties are resolved to the lowest token id.

    If a column has a NaN logit or only infinite ones, its `candidate_logit` or `logsumexp` is not finite.
    """

    candidate: Tensor  # [N] long, the most probable token that is not banned
    candidate_logit: Tensor  # [N] float32
    argmax: Tensor  # [N] long, the most probable token, banned or not
    gap: Tensor  # [N] float32, largest minus second largest logit
    logsumexp: Tensor  # [N] float32, of all logits
    # From the softmax over all tokens except the unscored ones:
    confidence: Tensor  # [N] float32, probability of the candidate
    margin: Tensor  # [N] float32, largest minus second largest probability
    entropy: Tensor  # [N] float32, in nats


def score_columns(
    logits: Tensor,  # [N, V]
    *,
    banned: Sequence[int] = (),  # tokens that cannot be candidates
    unscored: Sequence[int] = (),  # tokens excluded from the softmax
) -> ColumnScores:
    """Return the scores of every column without copying the logits."""
    if not uses_triton(logits):
        chunks = torch.split(logits, max(1, MAX_NUMBERS // logits.shape[-1]))
        parts = [_score_chunk(chunk, banned, unscored) for chunk in chunks]
        return ColumnScores(*(torch.cat(field) for field in zip(*parts)))
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, width = logits.shape
    splits = -(-width // BLOCK_TOKENS)
    banned_ids, unscored_ids = (_ids((*ids,), logits.device) for ids in (banned, unscored))
    numbers = logits.new_empty(8, rows, splits, dtype=torch.float32)
    tokens = logits.new_empty(2, rows, splits, dtype=torch.int32)
    chosen = logits.new_empty(2, rows, dtype=torch.long)  # candidate and argmax
    scores = logits.new_empty(6, rows, dtype=torch.float32)
    compile_kernel(_score_block)[(rows, splits)](
        logits, logits.stride(0), width, banned_ids, unscored_ids, numbers, tokens, rows * splits,
        BANNED=len(banned), UNSCORED=len(unscored), BLOCK=BLOCK_TOKENS, num_warps=8,
    )  # fmt: skip
    compile_kernel(_combine_blocks)[(rows,)](
        numbers, tokens, rows * splits, splits, unscored_ids, chosen, scores,
        UNSCORED=len(unscored), SPLITS=power_of_two(splits), num_warps=1,
    )  # fmt: skip
    return ColumnScores(chosen[0], scores[0], chosen[1], *scores[1:])


def _score_chunk(logits: Tensor, banned: Sequence[int], unscored: Sequence[int]) -> ColumnScores:
    allowed = _mask_out(logits, banned)
    candidate = allowed.argmax(-1)  # torch documents that the first of equal values is returned
    first, second = logits.topk(2).values.float().unbind(-1)
    wide = logits.float()
    scored = _mask_out(wide, unscored)
    logsumexp = scored.logsumexp(-1)
    largest, next_largest = scored.topk(2).values.unbind(-1)
    probability = scored.softmax(-1)
    return ColumnScores(
        candidate,
        allowed.gather(1, candidate[:, None])[:, 0].float(),
        logits.argmax(-1),
        first - second,
        wide.logsumexp(-1) if unscored else logsumexp,
        (scored.gather(1, candidate[:, None])[:, 0] - logsumexp).exp(),
        (largest - logsumexp).exp() - (next_largest - logsumexp).exp(),
        -(probability * (probability + 1e-10).log()).sum(-1),
    )


def _mask_out(logits: Tensor, ids: Sequence[int]) -> Tensor:
    if not ids:
        return logits
    logits = logits.clone()
    logits[:, [*ids]] = -torch.inf
    return logits


@cache
def _ids(ids: tuple[int, ...], device: torch.device) -> Tensor:
    """Return ids, or [-1] if there are none; cached, because a captured pass must not copy from the host."""
    return torch.tensor(ids or (-1,), device=device)


def _score_block(
    logits,
    stride,
    width,
    banned,
    unscored,
    numbers,
    tokens,
    field,
    BANNED: tl.constexpr,
    UNSCORED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Compute the partial scores of one column from `BLOCK` of its logits per program."""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = split * BLOCK + tl.arange(0, BLOCK)
    inside = token < width
    x = tl.load(logits + row * stride + token, mask=inside, other=float("-inf")).to(tl.float32)
    allowed, scored = x, x
    for i in tl.static_range(BANNED):
        allowed = tl.where(token == tl.load(banned + i), float("-inf"), allowed)
    for i in tl.static_range(UNSCORED):
        scored = tl.where(token == tl.load(unscored + i), float("-inf"), scored)
    to = row * tl.num_programs(1) + split

    best = tl.max(allowed, axis=0)
    tl.store(numbers + to, best)
    tl.store(tokens + to, tl.min(tl.where(allowed == best, token, 2147483647), axis=0))

    first = tl.max(x, axis=0)
    argmax = tl.min(tl.where(x == first, token, 2147483647), axis=0)
    tl.store(tokens + field + to, argmax)
    tl.store(numbers + field + to, first)
    others = tl.where(token == argmax, float("-inf"), x)
    tl.store(numbers + 2 * field + to, tl.max(others, axis=0))
    # A maximum may ignore NaN or infinity; with either, this sum is not finite.
    below = x - tl.where(first > float("-inf"), first, 0.0)
    tl.store(numbers + 3 * field + to, tl.sum(tl.exp(below), axis=0))

    largest = tl.max(scored, axis=0)
    leader = tl.min(tl.where(scored == largest, token, 2147483647), axis=0)
    others = tl.where(token == leader, float("-inf"), scored)
    below = scored - tl.where(largest > float("-inf"), largest, 0.0)
    probability = tl.exp(below)
    tl.store(numbers + 4 * field + to, largest)
    tl.store(numbers + 5 * field + to, tl.max(others, axis=0))
    tl.store(numbers + 6 * field + to, tl.sum(probability, axis=0))
    weighted = tl.where(probability == 0.0, 0.0, probability * below)
    tl.store(numbers + 7 * field + to, tl.sum(weighted, axis=0))


def _combine_blocks(
    numbers, tokens, field, splits, unscored, tokens_out, scores, UNSCORED: tl.constexpr, SPLITS: tl.constexpr
) -> None:
    """Combine the partial scores of one column per program; `scores` has the order of `ColumnScores`."""
    row, rows = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    split = tl.arange(0, SPLITS)
    inside = split < splits
    at = row * splits + split

    bests = tl.load(numbers + at, mask=inside, other=float("-inf"))
    chosen_logit = tl.max(bests, axis=0)
    places = tl.load(tokens + at, mask=inside, other=2147483647)
    chosen = tl.min(tl.where(bests == chosen_logit, places, 2147483647), axis=0)
    chosen = tl.where(chosen == 2147483647, 0, chosen)
    tl.store(tokens_out + row, chosen.to(tl.int64))
    tl.store(scores + row, chosen_logit)

    firsts = tl.load(numbers + field + at, mask=inside, other=float("-inf"))
    seconds = tl.load(numbers + 2 * field + at, mask=inside, other=float("-inf"))
    sums = tl.load(numbers + 3 * field + at, mask=inside, other=0.0)
    first = tl.max(firsts, axis=0)
    winner = tl.min(tl.where(firsts == first, split, SPLITS), axis=0)
    places = tl.load(tokens + field + at, mask=inside, other=2147483647)
    leader = tl.min(tl.where(firsts == first, places, 2147483647), axis=0)
    tl.store(tokens_out + rows + row, tl.where(leader == 2147483647, 0, leader).to(tl.int64))
    second = tl.max(tl.where(split == winner, seconds, firsts), axis=0)
    tl.store(scores + rows + row, first - second)
    below = firsts - tl.where(first > float("-inf"), first, 0.0)
    total = tl.sum(sums * tl.exp(below), axis=0)
    tl.store(scores + 2 * rows + row, first + tl.log(total))

    firsts = tl.load(numbers + 4 * field + at, mask=inside, other=float("-inf"))
    seconds = tl.load(numbers + 5 * field + at, mask=inside, other=float("-inf"))
    sums = tl.load(numbers + 6 * field + at, mask=inside, other=0.0)
    weighted = tl.load(numbers + 7 * field + at, mask=inside, other=0.0)
    first = tl.max(firsts, axis=0)
    winner = tl.min(tl.where(firsts == first, split, SPLITS), axis=0)
    second = tl.max(tl.where(split == winner, seconds, firsts), axis=0)
    below = firsts - tl.where(first > float("-inf"), first, 0.0)
    fade = tl.exp(below)
    total = tl.sum(sums * fade, axis=0)
    weighted = tl.where(fade == 0.0, 0.0, fade * (weighted + sums * below))
    probability = tl.exp(chosen_logit - first) / total
    for i in tl.static_range(UNSCORED):
        probability = tl.where(chosen == tl.load(unscored + i), 0.0, probability)
    tl.store(scores + 3 * rows + row, probability)
    tl.store(scores + 4 * rows + row, (1.0 - tl.exp(second - first)) / total)
    tl.store(scores + 5 * rows + row, tl.log(total) - tl.sum(weighted, axis=0) / total)
