"""Run the model on the columns a step needs and count the cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas
from lastword.canvas.columns import Columns, pack_indices
from lastword.canvas.cost import BatchCost
from lastword.canvas.tokens import is_plain_tensor
from lastword.decoding.hooks import LogitsHook
from lastword.decoding.prediction import Logits, Prediction
from lastword.decoding.sampling import RowGenerators, Sampling
from lastword.errors import CapacityError, WrongTypeError
from lastword.models.base import LOGIT_DTYPES, MaskPredictor, check_logits
from lastword.models.storage import CacheStorage, KVStorage
from lastword.validation import short_repr


class Room(NamedTuple):
    """How much a pass in fixed shapes has room for; rows that need less leave some of it empty."""

    columns: int  # of all rows
    read: int  # of these
    slots: int  # of the longest answer


class Forward:
    """The only caller of the model. Every pass goes through here, and is added to the cost it is given."""

    def __init__(
        self,
        model: MaskPredictor,
        sampling: Sampling,
        generators: RowGenerators,
        *,
        hook: LogitsHook | None = None,
        exceed_max_seq_len: bool = False,
    ) -> None:
        self._model, self._sampling, self._hook = model, sampling, hook
        self.generators = generators  # of the rows at work
        self._exceed_max_seq_len = exceed_max_seq_len
        self._before: Canvas | None = None  # what the memory has seen

    def __call__(
        self,
        canvas: Canvas,
        read: Bool[Tensor, "B L"],
        cost: BatchCost,
        *,
        sees: Bool[Tensor, "B L"] | None = None,
        stale: Bool[Tensor, "B L"] | None = None,
        memory: CacheStorage | None = None,
        step: int = 0,
    ) -> tuple[Prediction, BatchCost]:
        """Read the columns `read`. A row with nothing to read takes no part in the pass.

        A pass sees the valid columns, or those of them that `sees` says: for it the others do not
        exist, and they cost nothing.
        """
        if not self._exceed_max_seq_len:
            worst = int((canvas.prompt_length + canvas.horizon).argmax())
            prompt, horizon = int(canvas.prompt_length[worst]), int(canvas.horizon[worst])
            check_context_length(prompt, horizon, self._model.max_seq_len)
        columns = Columns.from_mask(read)
        sees = canvas.valid if sees is None else sees
        seen = sees.sum(-1)
        if memory is None or stale is None:
            logits, computed = self._whole(canvas, columns, sees), seen
        else:
            logits, computed = self._partial(canvas, read, columns, sees, stale, memory)
        cost = cost.add_pass(columns.participates, computed, seen)
        if self._sampling.guidance:
            promptless = self._whole(_without_prompt(canvas), columns, sees).whole
            cost = cost.add_pass(columns.participates, seen, seen, passes=0)
            guided = promptless + (1 + self._sampling.guidance) * (logits.whole - promptless)
            # A token both branches rule out stays ruled out: -inf less -inf is not a number.
            logits = Logits.of(torch.where(logits.whole == promptless, logits.whole, guided))
        if self._hook is not None:
            logits = Logits.of(_hooked(self._hook(step, canvas, columns, logits.whole), logits.whole))
        return Prediction.from_logits(logits, columns, canvas, self._sampling, self.generators), cost

    def within(
        self,
        canvas: Canvas,
        columns: Columns,
        cost: BatchCost,
        *,
        carried: Int[Tensor, "B R"],
        computed: Int[Tensor, "B"],
        memory: KVStorage,
        own: slice | None = None,
    ) -> tuple[Prediction, BatchCost]:
        """The same for columns of fixed windows, and nothing is asked of the device.

        As many columns are carried in every row, those of the window among them; `computed` says how many
        of them are no padding. Every row is computed, also one that has nothing to read: it pays nothing.
        `own` are the columns of a lone row that carries all it has.
        """
        part = memory.carrying(columns.rows, carried, computed, own)
        # Where nothing is to be read the last column is: a model may need another column to read the first.
        read = columns.index.where(columns.read, columns.index[:, -1:])
        logits = self._asked(canvas.tokens, read, valid=canvas.valid, stale=carried, memory=part)
        self._before = canvas
        seen = canvas.prompt_length + canvas.horizon
        cost = cost.add_pass(columns.participates, part.computed, seen)
        return Prediction.from_logits(
            self._logits(logits), columns, canvas, self._sampling, self.generators
        ), cost

    def alone(
        self, canvas: Canvas, columns: Columns, cost: BatchCost, own: slice
    ) -> tuple[Prediction, BatchCost]:
        """The same for all of a lone row, whose columns the host knows."""
        logits = self._asked(canvas.tokens[:, own], columns.index - own.start)
        seen = canvas.prompt_length + canvas.horizon
        cost = cost.add_pass(columns.participates, seen, seen)
        return Prediction.from_logits(
            self._logits(logits), columns, canvas, self._sampling, self.generators
        ), cost

    def together(
        self, canvas: Canvas, columns: Columns, cost: BatchCost, turn: Bool[Tensor, "B"], room: Room
    ) -> tuple[Prediction, BatchCost]:
        """The same for all columns of the rows whose turn it is, for which there is `room`."""
        valid = canvas.valid & turn[:, None]
        model: Any = self._model
        states = model.states(canvas.tokens, columns.index, valid=valid, most=room.columns)
        packed, picked = pack_indices(columns.read.flatten(), room.read)
        logits = Logits(
            states.flatten(0, 1)[picked][None],
            lambda own: check_logits(model.head(own), own.shape[:2], model),
            model.ids.vocab_size,
            packed.view(columns.index.shape),
        )
        seen = canvas.prompt_length + canvas.horizon
        cost = cost.add_pass(columns.participates, seen, seen)
        return Prediction.from_logits(logits, columns, canvas, self._sampling, self.generators), cost

    def _asked(self, tokens: Tensor, read: Tensor, **given: Any) -> Tensor:
        """What the model says: logits [A, S, V], or on a GPU the states its head makes them of."""
        if self._by_states:
            return self._model.states(tokens, read, **given)  # type: ignore[attr-defined]
        return check_logits(self._model(tokens, read, **given), read.shape, self._model)

    @property
    def _by_states(self) -> bool:
        return self._model.device.type == "cuda" and hasattr(self._model, "states")

    def _logits(self, asked: Tensor) -> Logits:
        if not self._by_states:
            return Logits.of(asked)
        model: Any = self._model
        return Logits(
            asked,
            lambda states: check_logits(model.head(states), states.shape[:2], model),
            model.ids.vocab_size,
        )

    def _whole(self, canvas: Canvas, columns: Columns, sees: Bool[Tensor, "B L"]) -> Logits:
        """Compute everything, trimmed to the columns that are seen in some row."""
        rows = columns.rows
        valid = sees[rows]
        used = valid.any(0).nonzero()[:, 0]
        trim = slice(int(used[0]), int(used[-1]) + 1)
        valid, device = valid[:, trim], self._model.device
        asked = self._asked(
            canvas.tokens[rows][:, trim].to(device),
            (columns.index[rows] - trim.start).to(device),
            valid=None if bool(valid.all()) else valid.to(device),
        )
        return self._logits(asked)

    def _partial(
        self,
        canvas: Canvas,
        read: Bool[Tensor, "B L"],
        columns: Columns,
        sees: Bool[Tensor, "B L"],
        stale: Bool[Tensor, "B L"],
        memory: CacheStorage,
    ) -> tuple[Logits, Int[Tensor, "B"]]:
        """Compute what is stale, and say how much that was in each row.

        Rows that refresh everything go in a call of their own, and so do those that refresh their answer: no
        row is padded to the width of another kind.
        """
        memory.fit(canvas.width)
        if self._before is not None:
            # Whatever the cache says, memory of an answer whose tokens moved is memory of another one.
            moved = canvas.changed_since(self._before)[:, None]
            stale = stale | (canvas.answer & sees & moved)
        self._before = canvas
        everything = (stale == sees).all(-1)[columns.rows]
        answer = (stale | ~(canvas.answer & sees)).all(-1)[columns.rows] & ~everything
        rest = ~(everything | answer)
        groups = [some.nonzero()[:, 0] for some in (everything, answer, rest)]
        computed, device = torch.zeros_like(canvas.horizon), self._model.device
        parts: list[Tensor] = []
        for group in groups:
            rows = columns.rows[group]
            if not len(rows):
                continue
            part = memory.at(rows, stale[rows], read[rows], canvas.answer[rows], sees[rows])
            asked = self._asked(
                canvas.tokens[rows].to(device),
                columns.index[rows].to(device),
                valid=sees[rows].to(device),
                stale=None if part.carried is None else part.carried.to(device),
                memory=part,
            )
            parts.append(asked)
            computed[rows] = part.computed.to(computed.device)
        if len(parts) == 1:
            return self._logits(parts[0]), computed
        order = torch.cat(groups).argsort().to(device)  # where each row that took part ended up
        return self._logits(torch.cat(parts).index_select(0, order)), computed


def _hooked(given: object, logits: Tensor) -> Tensor:
    if not is_plain_tensor(given):
        raise WrongTypeError(
            f"the logits hook returned {short_repr(given)}; it must return logits of shape "
            f"{tuple(logits.shape)}"
        )
    if given.shape != logits.shape or given.dtype not in LOGIT_DTYPES:
        raise WrongTypeError(
            f"the logits hook returned {given.dtype} {tuple(given.shape)}; it must return floating-point "
            f"logits of shape {tuple(logits.shape)}"
        )
    return given


def _without_prompt(canvas: Canvas) -> Canvas:
    """The canvas of the unconditional branch: the prompt masked, what was written kept."""
    return replace(canvas, tokens=torch.where(canvas.answer, canvas.tokens, canvas.ids.mask))


def check_context_length(prompt: int, horizon: int, max_seq_len: int) -> None:
    """Refuse a canvas that is longer than the model."""
    if prompt + horizon <= max_seq_len:
        return
    room = max_seq_len - prompt
    advice = "the prompt alone is too long: shorten it"
    if room > 0:
        advice = f"lower the length limit to {room}, or shorten the prompt"
    raise CapacityError(
        f"horizon {horizon} + prompt {prompt} exceeds the model's {max_seq_len} positions; {advice} "
        "(exceed_max_seq_len=True, on the command line --exceed-max-seq-len, goes on all "
        "the same, as the authors' code does)"
    )
