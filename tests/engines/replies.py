"""Requests and tasks for the toy model, and replies without what may differ between workers."""

from collections import Counter

import torch

from lastword.engines.base import GenerationRequest
from lastword.evaluate.tasks import Sample
from lastword.models.toy import Toy

POISON = 25  # the id of "z"
TIMES = ("seconds", "seconds_share", "rows")


class Spelling:
    """A task of short prompts."""

    name, group, version = "spelling", "spelling", "1"

    def __init__(self, *turns, count=9):
        self.turns, self.count = turns, count

    def samples(self, limit=None):
        prompts = ["abc"[: 1 + at % 3] * (1 + at % 5) for at in range(self.count)]
        return [Sample("spelling", at, prompt, turns=self.turns) for at, prompt in enumerate(prompts)]

    def score(self, samples, texts):
        return [float(len(text) % 2) for text in texts]


class Poisoned(Toy):
    """Returns NaN for a whole batch if one of its prompts starts with POISON."""

    def __init__(self):
        super().__init__()
        self.batch_sizes = []

    def __call__(self, tokens, read, **more):
        self.batch_sizes.append(len(tokens))
        logits = super().__call__(tokens, read, **more)
        return torch.full_like(logits, torch.nan) if bool((tokens[:, 0] == POISON).any()) else logits


def make_requests(count):
    return {f"q{n}": GenerationRequest([n % 7, n % 5, *range(n % 4)], seed=n) for n in range(count)}


def generate(engine, requests, recipe, max_batch_size=2, without=TIMES):
    """Return (text, details, error) by key; each key must be returned exactly once."""
    batches = engine.generate(requests, recipe, max_batch_size=max_batch_size)
    replies = [reply for batch in batches for reply in batch]
    assert Counter(reply.key for reply in replies) == Counter([*requests])
    return {
        reply.key: (
            reply.text,
            {name: value for name, value in reply.details.items() if name not in without},
            reply.error,
        )
        for reply in replies
    }
