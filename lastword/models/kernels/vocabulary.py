"""summarise: all that rules ask of a column's logits, in one read of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from lastword.models.kernels.compiled import compiled, compiles, power_of_two

if TYPE_CHECKING:
    import triton.language as tl


# Plain torch lifts logits to float32 this many numbers at a time: 128 MB, not gigabytes.
NUMBERS_AT_ONCE = 2**25
AT_ONCE = 4096  # tokens of a column that a program reads


class Summary(NamedTuple):
    """What the logits of N columns say. Of equals, the leftmost token.

    Where logits are NaN, or all of them infinite, `best` or `normaliser` is not finite.
    """

    candidate: Tensor  # [N] long, the likeliest token that is not banned
    best: Tensor  # [N] float32, the candidate's logit
    likeliest: Tensor  # [N] long, the likeliest of all tokens
    gap: Tensor  # [N] float32, largest minus second largest logit
    normaliser: Tensor  # [N] float32, logsumexp of all logits
    # By the softmax over the tokens that are judged:
    confidence: Tensor  # [N] float32, probability of the candidate
    margin: Tensor  # [N] float32, largest minus second largest probability
    entropy: Tensor  # [N] float32, in nats


def summarise(
    logits: Tensor,  # [N, V]
    *,
    banned: Sequence[int] = (),  # tokens that are no candidates
    unjudged: Sequence[int] = (),  # tokens without a probability
) -> Summary:
    """Of every column; no copy of the logits is made."""
    if not compiles(logits):
        return summarise_plain(logits, banned=banned, unjudged=unjudged)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, width = logits.shape
    splits = -(-width // AT_ONCE)
    banned_ids, unjudged_ids = (_ids((*ids,), logits.device) for ids in (banned, unjudged))
    numbers = logits.new_empty(8, rows, splits, dtype=torch.float32)
    tokens = logits.new_empty(2, rows, splits, dtype=torch.int32)
    found = Summary(
        *(
            logits.new_empty(rows, dtype=torch.long if name in TOKENS else torch.float32)
            for name in Summary._fields
        )
    )
    lists = {"BANNED": len(banned), "UNJUDGED": len(unjudged)}
    compiled(_read)[(rows, splits)](
        logits, logits.stride(0), width, banned_ids, unjudged_ids, numbers, tokens, rows * splits,
        **lists, BLOCK=AT_ONCE, num_warps=8,
    )  # fmt: skip
    compiled(_combine)[(rows,)](
        numbers, tokens, rows * splits, splits, unjudged_ids, *found,
        UNJUDGED=len(unjudged), SPLITS=power_of_two(splits), num_warps=1,
    )  # fmt: skip
    return found


TOKENS = ("candidate", "likeliest")


def summarise_plain(logits: Tensor, *, banned: Sequence[int] = (), unjudged: Sequence[int] = ()) -> Summary:
    """The same in torch, some rows at a time."""
    at_once = max(1, NUMBERS_AT_ONCE // logits.shape[-1])
    parts = [_summary(chunk, banned, unjudged) for chunk in torch.split(logits, at_once)]
    return Summary(*(torch.cat(field) for field in zip(*parts)))


def _summary(logits: Tensor, banned: Sequence[int], unjudged: Sequence[int]) -> Summary:
    allowed = _without(logits, banned)
    candidate = allowed.argmax(-1)  # the first of equals, as torch documents
    first, second = logits.topk(2).values.float().unbind(-1)
    wide = logits.float()
    judged = _without(wide, unjudged)
    normaliser = judged.logsumexp(-1)
    largest, next_largest = judged.topk(2).values.unbind(-1)
    chance = judged.softmax(-1)
    return Summary(
        candidate,
        allowed.gather(1, candidate[:, None])[:, 0].float(),
        logits.argmax(-1),
        first - second,
        wide.logsumexp(-1) if unjudged else normaliser,
        (judged.gather(1, candidate[:, None])[:, 0] - normaliser).exp(),
        (largest - normaliser).exp() - (next_largest - normaliser).exp(),
        -(chance * (chance + 1e-10).log()).sum(-1),
    )


def _without(logits: Tensor, ids: Sequence[int]) -> Tensor:
    if not ids:
        return logits
    logits = logits.clone()
    logits[:, [*ids]] = -torch.inf
    return logits


@cache
def _ids(ids: tuple[int, ...], device: torch.device) -> Tensor:
    """Copied to a device once: a captured pass may copy nothing from the host."""
    return torch.tensor(ids or (-1,), device=device)


def _read(
    logits: tl.tensor,
    stride: tl.tensor,
    width: tl.tensor,
    banned: tl.tensor,
    unjudged: tl.tensor,
    numbers: tl.tensor,
    tokens: tl.tensor,
    field: tl.tensor,
    BANNED: tl.constexpr,
    UNJUDGED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Some tokens of a column a program."""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = split * BLOCK + tl.arange(0, BLOCK)
    inside = token < width
    x = tl.load(logits + row * stride + token, mask=inside, other=float("-inf")).to(tl.float32)
    allowed, judged = x, x
    for i in tl.static_range(BANNED):
        allowed = tl.where(token == tl.load(banned + i), float("-inf"), allowed)
    for i in tl.static_range(UNJUDGED):
        judged = tl.where(token == tl.load(unjudged + i), float("-inf"), judged)
    to = row * tl.num_programs(1) + split

    best = tl.max(allowed, axis=0)
    tl.store(numbers + to, best)
    tl.store(tokens + to, tl.min(tl.where(allowed == best, token, 2147483647), axis=0))

    first = tl.max(x, axis=0)
    likeliest = tl.min(tl.where(x == first, token, 2147483647), axis=0)
    tl.store(tokens + field + to, likeliest)
    tl.store(numbers + field + to, first)
    others = tl.where(token == likeliest, float("-inf"), x)
    tl.store(numbers + 2 * field + to, tl.max(others, axis=0))
    # NaN and infinity are in no maximum for sure, but always in the sum.
    below = x - tl.where(first > float("-inf"), first, 0.0)
    tl.store(numbers + 3 * field + to, tl.sum(tl.exp(below), axis=0))

    largest = tl.max(judged, axis=0)
    leader = tl.min(tl.where(judged == largest, token, 2147483647), axis=0)
    others = tl.where(token == leader, float("-inf"), judged)
    below = judged - tl.where(largest > float("-inf"), largest, 0.0)
    chance = tl.exp(below)
    tl.store(numbers + 4 * field + to, largest)
    tl.store(numbers + 5 * field + to, tl.max(others, axis=0))
    tl.store(numbers + 6 * field + to, tl.sum(chance, axis=0))
    weighed = tl.where(chance == 0.0, 0.0, chance * below)
    tl.store(numbers + 7 * field + to, tl.sum(weighed, axis=0))


def _combine(
    numbers: tl.tensor,
    tokens: tl.tensor,
    field: tl.tensor,
    splits: tl.tensor,
    unjudged: tl.tensor,
    candidate: tl.tensor,
    best: tl.tensor,
    likeliest: tl.tensor,
    gap: tl.tensor,
    normaliser: tl.tensor,
    confidence: tl.tensor,
    margin: tl.tensor,
    entropy: tl.tensor,
    UNJUDGED: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """A column a program."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    inside = split < splits
    at = row * splits + split

    bests = tl.load(numbers + at, mask=inside, other=float("-inf"))
    chosen_logit = tl.max(bests, axis=0)
    places = tl.load(tokens + at, mask=inside, other=2147483647)
    chosen = tl.min(tl.where(bests == chosen_logit, places, 2147483647), axis=0)
    chosen = tl.where(chosen == 2147483647, 0, chosen)
    tl.store(candidate + row, chosen.to(tl.int64))
    tl.store(best + row, chosen_logit)

    firsts = tl.load(numbers + field + at, mask=inside, other=float("-inf"))
    seconds = tl.load(numbers + 2 * field + at, mask=inside, other=float("-inf"))
    sums = tl.load(numbers + 3 * field + at, mask=inside, other=0.0)
    first = tl.max(firsts, axis=0)
    winner = tl.min(tl.where(firsts == first, split, SPLITS), axis=0)
    places = tl.load(tokens + field + at, mask=inside, other=2147483647)
    leader = tl.min(tl.where(firsts == first, places, 2147483647), axis=0)
    tl.store(likeliest + row, tl.where(leader == 2147483647, 0, leader).to(tl.int64))
    second = tl.max(tl.where(split == winner, seconds, firsts), axis=0)
    tl.store(gap + row, first - second)
    below = firsts - tl.where(first > float("-inf"), first, 0.0)
    total = tl.sum(sums * tl.exp(below), axis=0)
    tl.store(normaliser + row, first + tl.log(total))

    firsts = tl.load(numbers + 4 * field + at, mask=inside, other=float("-inf"))
    seconds = tl.load(numbers + 5 * field + at, mask=inside, other=float("-inf"))
    sums = tl.load(numbers + 6 * field + at, mask=inside, other=0.0)
    weighed = tl.load(numbers + 7 * field + at, mask=inside, other=0.0)
    first = tl.max(firsts, axis=0)
    winner = tl.min(tl.where(firsts == first, split, SPLITS), axis=0)
    second = tl.max(tl.where(split == winner, seconds, firsts), axis=0)
    below = firsts - tl.where(first > float("-inf"), first, 0.0)
    fade = tl.exp(below)
    total = tl.sum(sums * fade, axis=0)
    weighed = tl.where(fade == 0.0, 0.0, fade * (weighed + sums * below))
    chance = tl.exp(chosen_logit - first) / total
    for i in tl.static_range(UNJUDGED):
        chance = tl.where(chosen == tl.load(unjudged + i), 0.0, chance)
    tl.store(confidence + row, chance)
    tl.store(margin + row, (1.0 - tl.exp(second - first)) / total)
    tl.store(entropy + row, tl.log(total) - tl.sum(weighed, axis=0) / total)
