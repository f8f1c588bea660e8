"""A length policy that replays measured lengths, because random weights never write an end token.

`replay.json` holds pairs of lengths, predicted and written, by one of the embedded models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock, State
from lastword.decoding.prediction import Prediction
from lastword.errors import SettingError
from lastword.io.schema import STRICT, PositiveSlots, Text, read_json_object, validate
from lastword.policies.length.policy import LengthPolicy, LengthTraits, Plan, Probe

FILE = Path(__file__).parent / "replay.json"


Pair = Annotated[list[PositiveSlots], Field(min_length=2, max_length=2)]


class Pairs(BaseModel):
    """Pairs of predicted and written lengths, and the records they are from."""

    model_config = STRICT

    source: Text
    pairs: Annotated[list[Pair], Field(min_length=1)]


class Lengths(NamedTuple):
    """The planned slots of a row, and the tokens that it writes before its end."""

    predicted: int
    written: int

    @property
    def useful(self) -> int:
        """Number of tokens before the row's end."""
        return min(self.predicted, self.written)


class Written(NamedTuple):
    """The state of the policy: the number of tokens that each row writes."""

    tokens: Tensor  # [B]


def kept_pairs() -> Pairs:
    """Return the pairs in `replay.json`."""
    return validate(Pairs, read_json_object(FILE))


def lengths_for(rows: int, slots: int) -> list[Lengths]:
    """Return evenly chosen pairs for `rows` rows, scaled to `slots` predicted slots on average."""
    pairs = kept_pairs().pairs
    if rows > len(pairs):
        raise SettingError(
            f"{rows} prompts were requested for mixed batches; {len(pairs)} pairs of lengths are kept: give fewer"
        )
    picked = [pairs[at * len(pairs) // rows] for at in range(rows)]
    scale = slots * rows / sum(predicted for predicted, _ in picked)
    return [Lengths(*(max(1, round(scale * length)) for length in pair)) for pair in picked]


@dataclass(frozen=True)
class Replay(LengthPolicy):
    """Plans the predicted length and ends a row with the block in which it reaches its written length.

    A row is identified by the length of its prompt, which follows from the cost of a probe, so rows can be
    planned together, in groups or one by one, in any order.
    """

    lengths: tuple[tuple[int, Lengths], ...]  # by length of the prompt

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], lengths: Sequence[Lengths]) -> Replay:
        known = dict(zip(map(len, prompts), lengths, strict=True))
        if len(known) < len(prompts):
            raise SettingError(
                f"{len(prompts)} prompts of {len(known)} lengths were given for mixed batches, where the length of the "
                "prompt identifies a row: give fewer prompts, or prompts of more lengths"
            )
        return cls(tuple(known.items()))

    @property
    def traits(self) -> LengthTraits:
        limit = max(length.predicted for _, length in self.lengths)
        return LengthTraits(resizes="between blocks", needs_blocks=True, max_slots=limit)

    def plan(self, probe: Probe) -> Plan:
        one = torch.ones(probe.num_rows, dtype=torch.long)
        tokens = probe.max_cost(one).tokens_computed  # one forward pass over each prompt and one slot
        known = dict(self.lengths)
        rows = [known[int(count) - 1] for count in tokens.tolist()]
        predicted, written = torch.tensor(rows, device=tokens.device).unbind(1)
        return Plan(predicted, state=Written(written))

    def revise(self, canvas: Canvas, prediction: Prediction, clock: Clock, state: State) -> tuple[Canvas, State]:
        last = clock.window.last - canvas.start
        block = clock.window.columns(canvas.width) & canvas.answer
        done = ~(block & canvas.masked).any(-1) & (last >= Written(*state).tokens)
        return canvas.crop(torch.where(done, last, canvas.horizon)), state
