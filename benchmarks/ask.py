"""Put held-out examples to a model, a batch at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lastword
from lastword.length import LengthPolicy
from lastword.tasks import Example


@dataclass(frozen=True)
class Reply:
    """What came back for one example."""

    place: int  # of the example in the list that was asked
    answer: lastword.Generation
    seconds: float  # its share of the batch's wall time


def ask(
    model: Any,
    examples: Sequence[Example],
    length: LengthPolicy,
    rows: int,
    *,
    chat: bool | None = None,
) -> Iterator[Reply]:
    """Replies in order of prompt length: like with like, so that little of a batch is padding.

    `chat=None` uses the chat template where the tokenizer has one.
    """
    if chat is None:
        chat = getattr(model.tokenizer, "chat_template", None) is not None
    prompts = [
        model.tokenizer.chat([{"role": "user", "content": e.prompt}])
        if chat
        else model.tokenizer.encode(e.prompt)
        for e in examples
    ]
    order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    for first in range(0, len(order), rows):
        places = order[first : first + rows]
        began = time.perf_counter()
        answers = lastword.generate(model, [prompts[place] for place in places], length=length)
        seconds = (time.perf_counter() - began) / len(places)
        for place, answer in zip(places, answers):
            yield Reply(place, answer, seconds)
