"""Forward: one pass over the rows that still have work, turned into a Prediction and paid for."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.columns import columns_of
from lastword.canvas.cost import Cost
from lastword.errors import CapacityError, SettingError
from lastword.memory.memory import Memory
from lastword.models.predictor import MaskPredictor
from lastword.passes.dice import Dice
from lastword.passes.hooks import LogitsHook
from lastword.passes.prediction import Prediction, Reading
from lastword.passes.sampling import Sampling


class Forward:
    """The only caller of the model. Every pass goes through here, so `cost` misses none."""

    def __init__(
        self,
        model: MaskPredictor,
        sampling: Sampling,
        dice: Dice,
        *,
        hook: LogitsHook | None = None,
        beyond_positions: bool = False,
    ) -> None:
        self.cost = Cost.nothing(len(dice))
        self._model, self._sampling, self._dice, self._hook = model, sampling, dice, hook
        self._beyond_positions = beyond_positions
        self._before: Canvas | None = None  # what the memory has seen

    def __call__(
        self,
        canvas: Canvas,
        read: Bool[Tensor, "B L"],
        *,
        sees: Bool[Tensor, "B L"] | None = None,
        stale: Bool[Tensor, "B L"] | None = None,
        memory: Memory | None = None,
        step: int = 0,
    ) -> Prediction:
        """Read the columns `read`. A row with nothing to read takes no part in the pass.

        A pass sees the valid columns, or those of them that `sees` says: for it the others do not
        exist, and they cost nothing.
        """
        self.check_room(canvas)
        rows = read.any(-1).nonzero()[:, 0]
        reading = Reading(rows, columns_of(read[rows]))
        sees = canvas.valid if sees is None else sees
        seen = sees.sum(-1)
        if memory is None or stale is None:
            logits, computed = self._whole(canvas, reading, sees), seen
        else:
            logits, computed = self._partial(canvas, read, reading, sees, stale, memory)
        self.cost = self.cost.plus_pass(rows, computed, seen)
        if self._sampling.guidance:
            promptless = self._whole(_without_prompt(canvas), reading, sees)
            self.cost = self.cost.plus_pass(rows, seen, seen, passes=0)
            guided = promptless + (1 + self._sampling.guidance) * (logits - promptless)
            # A token both branches rule out stays ruled out: -inf less -inf is not a number.
            logits = torch.where(logits == promptless, logits, guided)
        if self._hook is not None:
            logits = _hooked(self._hook(step, canvas, reading, logits), logits)
        return Prediction.of(logits, reading, canvas, self._sampling, self._dice)

    def check_room(self, canvas: Canvas) -> None:
        """Refuse a canvas that is longer than the model, unless told to go on all the same."""
        if not self._beyond_positions:
            _check_capacity(canvas, self._model.positions)

    def _whole(self, canvas: Canvas, reading: Reading, sees: Bool[Tensor, "B L"]) -> Tensor:
        """Compute everything, trimmed to the columns that are seen in some row."""
        valid = sees[reading.rows]
        used = valid.any(0).nonzero()[:, 0]
        trim = slice(int(used[0]), int(used[-1]) + 1)
        valid, device = valid[:, trim], self._model.device
        return self._model(
            canvas.tokens[reading.rows][:, trim].to(device),
            (reading.columns - trim.start).to(device),
            valid=None if bool(valid.all()) else valid.to(device),
        )

    def _partial(
        self,
        canvas: Canvas,
        read: Bool[Tensor, "B L"],
        reading: Reading,
        sees: Bool[Tensor, "B L"],
        stale: Bool[Tensor, "B L"],
        memory: Memory,
    ) -> tuple[Tensor, Int[Tensor, "B"]]:
        """Compute what is stale, and say how much that was in each row.

        Rows that refresh everything go in a call of their own, so that no other row waits for them.
        """
        memory.fit(canvas.width)
        if self._before is not None:
            # Whatever the cache says, memory of an answer whose tokens moved is memory of another one.
            moved = canvas.moved_since(self._before)[:, None]
            stale = stale | (canvas.answer & sees & moved)
        self._before = canvas
        everything = (stale == sees).all(-1)[reading.rows]
        groups = (everything.nonzero()[:, 0], (~everything).nonzero()[:, 0])
        computed, device = torch.zeros_like(canvas.horizon), self._model.device
        parts: list[Tensor] = []
        for group in groups:
            rows = reading.rows[group]
            if not len(rows):
                continue
            masks = (mask[rows] for mask in (stale, read, canvas.answer, sees))
            part = memory.at(rows, *masks)
            logits = self._model(
                canvas.tokens[rows].to(device),
                reading.columns[group].to(device),
                valid=sees[rows].to(device),
                stale=None if part.carried is None else part.carried.to(device),
                memory=part,
            )
            parts.append(logits)
            computed[rows] = part.computed.cpu()
        if len(parts) == 1:
            return parts[0], computed
        place = torch.cat(groups).argsort().to(device)  # where each row of the reading ended up
        return torch.cat(parts).index_select(0, place), computed


def _hooked(given: object, logits: Tensor) -> Tensor:
    if not isinstance(given, Tensor) or given.shape != logits.shape:
        shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise SettingError(
            f"the logits hook returned {shape}; it must return logits of shape {tuple(logits.shape)}"
        )
    return given


def _without_prompt(canvas: Canvas) -> Canvas:
    """The canvas of the unconditional branch: the prompt masked, what was written kept."""
    return replace(canvas, tokens=torch.where(canvas.answer, canvas.tokens, canvas.ids.mask))


def _check_capacity(canvas: Canvas, positions: int) -> None:
    needed = canvas.prompt_length + canvas.horizon
    worst = int(needed.argmax())
    if int(needed[worst]) <= positions:
        return
    prompt, horizon = int(canvas.prompt_length[worst]), int(canvas.horizon[worst])
    room = positions - prompt
    advice = "the prompt alone is too long: shorten it"
    if room > 0:
        advice = f"lower the length limit to {room}, or shorten the prompt"
    raise CapacityError(
        f"horizon {horizon} + prompt {prompt} exceeds the model's {positions} positions; {advice} "
        "(beyond_positions=True, on the command line --beyond-positions, goes on all "
        "the same, as the authors' code does)"
    )
