"""Continuous batching: planning of requests, admission to free rows, eviction of finished rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock, tree_map, tree_to
from lastword.canvas.columns import Columns
from lastword.canvas.contracts import check_canvas, check_state, name_of
from lastword.canvas.tokens import PromptIds, check_tensor
from lastword.decoding.detokenizer import decided_prefix, find_stop
from lastword.decoding.forward import BatchCost, Forward, Hooks, PassInputs, TokenCost
from lastword.decoding.prediction import Prediction, invalid_logits_error
from lastword.decoding.sampling import RowGenerators, Sampling
from lastword.decoding.step import BatchState, CanvasLayout, Phase, check_max_slots, max_slots, phase_of
from lastword.errors import SettingError
from lastword.models.base import MaskPredictor, decode_text
from lastword.policies.length.policy import Plan, plan_with
from lastword.recipe.recipe import Recipe
from lastword.survival.distribution import LengthDistribution
from lastword.validation import MAX_SLOTS, check_int


class RequestQueue(ABC):
    """A source of requests that wait for a row, read between steps; decoding ends when no row is running."""

    @abstractmethod
    def take(self, free_rows: int) -> Sequence[PlannedRequest]:
        """Return at most `free_rows` requests to start now; empty if none waits or none may start yet."""

    def cancelled(self) -> Collection[int]:
        """Return the ids of running requests whose rows must be freed before they finish."""
        return ()


@dataclass(frozen=True, eq=False)
class DecodeRequest:
    """A prompt to decode, with the options that may differ between prompts."""

    prompt_ids: Tensor
    generators: RowGenerators  # of one row
    max_new_tokens: int | None = None  # a cap on the slots of the answer
    stop: tuple[str, ...] = ()  # strings that end the answer
    plan: tuple[Plan, TokenCost] | None = None  # a result of `plan_lengths`; None: planned by the queue


@dataclass(eq=False)
class PromptQueue(RequestQueue):
    """A queue of a given list of prompts.

    Prompts are planned in groups of `max_batch_size`, except those with a given plan. Within a group the
    longest row starts first, so that the batch ends with short rows.
    """

    model: MaskPredictor
    recipe: Recipe
    requests: Sequence[DecodeRequest]
    max_batch_size: int
    exceed_max_seq_len: bool = False

    def __post_init__(self) -> None:
        self._waiting = list(enumerate(self.requests))
        self._planned: list[PlannedRequest] = []

    def take(self, free_rows: int) -> Sequence[PlannedRequest]:
        if not self._planned and self._waiting:
            self._planned = self._plan_next()
        taken, self._planned = self._planned[:free_rows], self._planned[free_rows:]
        return taken

    def _plan_next(self) -> list[PlannedRequest]:
        count = self.max_batch_size
        chosen, self._waiting = self._waiting[:count], self._waiting[count:]
        unplanned = [request for _, request in chosen if request.plan is None]
        computed: list[tuple[Plan, TokenCost]] = []
        if unplanned:
            computed = plan_lengths(
                self.model,
                self.recipe,
                [request.prompt_ids for request in unplanned],
                max_new_tokens=[request.max_new_tokens for request in unplanned],
                exceed_max_seq_len=self.exceed_max_seq_len,
            )
        plans = iter(computed)
        requests = [
            PlannedRequest(index, request.prompt_ids, *(request.plan or next(plans)), request.generators, request.stop)
            for index, request in chosen
        ]
        if count < len(self.requests):
            requests.sort(key=lambda request: len(request.prompt_ids) + request.plan.max_horizon, reverse=True)
        return requests


CPU = torch.device("cpu")
PHASES = [*Phase]  # indexed by the number of a phase
# A row whose hook masks filled slots again may take as many passes as this number of answers, and some more.
MAX_REFILLS, MIN_PASSES = 16, 64


@dataclass(frozen=True, eq=False, kw_only=True)
class RowReport:
    """The plan, costs and times of a row that has finished."""

    horizon: int  # planned number of slots; length revisions may have changed it later
    lengths: LengthDistribution | None  # as predicted; None: the length policy predicts none
    probe_cost: TokenCost
    cost: TokenCost
    seconds: float  # of the steps in which this row ran, probe included; rows of a batch run at the same time
    seconds_share: float = 0.0  # the same, the seconds of a step divided equally among its rows
    stop_reason: str | None = None  # the stop string that ended the answer


@dataclass(frozen=True, eq=False, kw_only=True)
class FinishedRow(RowReport):
    """The canvas of a row that has finished, with its report."""

    request_id: int
    canvas: Canvas  # one row, on the CPU


class RunningBatch:
    """The rows being decoded. A waiting request takes the place of a finished row."""

    def __init__(
        self,
        model: MaskPredictor,
        recipe: Recipe,
        queue: RequestQueue,
        layout: CanvasLayout,
        hooks: Hooks,
        *,
        max_batch_size: int,
    ) -> None:
        self._model, self._recipe, self._queue = model, recipe, queue
        self._layout, self._hooks = layout, hooks
        self._running: list[PlannedRequest | None] = [None] * max_batch_size
        self._seconds, self._shares = [0.0] * max_batch_size, [0.0] * max_batch_size
        self._steps, self._max_steps = [0] * max_batch_size, [0] * max_batch_size
        self.requests: list[PlannedRequest] = []  # the latest request of every row
        self.state: BatchState
        self.phases: list[Phase] = []

    @property
    def request_ids(self) -> tuple[int | None, ...]:
        """The id of the request in every row; None for a free row."""
        return tuple(None if request is None else request.request_id for request in self._running)

    def admit(self) -> bool:
        """Free cancelled rows, start waiting requests in free rows, and return whether any row is running."""
        cancelled = self._queue.cancelled()
        if cancelled:
            self._free([row for row, request_id in enumerate(self.request_ids) if request_id in cancelled])
        while free := [row for row, request in enumerate(self._running) if request is None]:
            requests = self._queue.take(len(free))
            if not requests:
                break
            self._start(free[: len(requests)], list(requests))
        return any(self.phases)

    def _start(self, rows: list[int], requests: list[PlannedRequest]) -> None:
        for row, request in zip(rows, requests):
            self._running[row] = request
            self._seconds[row] = self._shares[row] = 0.0
            slots = max(max_slots(self._recipe) or self._model.default_max_new_tokens, request.plan.max_horizon)
            self._steps[row], self._max_steps[row] = 0, MAX_REFILLS * (self._recipe.max_passes(slots) + MIN_PASSES)
        device, is_first = self._model.device, not self.requests
        if is_first:  # rows without a request hold a copy of the first request, ended below
            self.requests = requests + requests[:1] * (len(self._running) - len(requests))
            rows = list(range(len(self._running)))
        else:
            for row, request in zip(rows, requests):
                self.requests[row] = request
        new = self._initial_state([self.requests[row] for row in rows])
        self.state = new if is_first else self.state.with_rows(torch.tensor(rows, device=device), new)
        self.sync_phases()
        if is_first:
            self._free([row for row in rows if self._running[row] is None])

    def _initial_state(self, requests: Sequence[PlannedRequest]) -> BatchState:
        """Return the state of newly started rows before their first forward pass."""
        recipe, plan = self._recipe, Plan.concat([request.plan for request in requests])
        canvas = plan.canvas([request.prompt_ids for request in requests], self._model.ids, self._layout.start)
        canvas = check_canvas(name_of(recipe.commit, "prepare"), recipe.commit.prepare(canvas), canvas)
        canvas = self._hooks.after(None, canvas)
        clock = Clock.start(canvas).tick(canvas, recipe.block)
        rule_state = recipe.unmask.initial_state(canvas)
        check_state(name_of(recipe.unmask, "initial_state"), rule_state, len(requests))
        check_max_slots(canvas, recipe)
        cost, phase = BatchCost.zeros(len(requests)), phase_of(canvas, clock)
        state = BatchState(canvas, clock, rule_state, plan.state, plan.max_new_tokens, cost, phase)
        return tree_to(state.widened(self._layout.width or canvas.width), self._model.device)

    def _free(self, rows: list[int]) -> None:
        """End rows that have not finished, and free them."""
        if rows:
            self.state = self.state.with_rows_ended(torch.tensor(rows, device=self._model.device))
        for row in rows:
            self._running[row] = None
            self.phases[row] = Phase.DONE

    def sync_phases(self) -> None:
        """Copy the phase of every row to the host: in a static step, the only synchronisation.

        Raise NumericError or SettingError if the phase of a row is an error.
        """
        self.phases = [PHASES[code] for code in self.state.phase.tolist()]
        for row, phase in enumerate(self.phases):
            if phase is Phase.INVALID_LOGITS:
                raise invalid_logits_error()
            if phase is Phase.NO_CHOICE:
                rule, step = type(self._recipe.unmask).__name__, int(self.state.clock.step[row]) - 1
                raise SettingError(
                    f"{rule} chose no mask of row {row} in step {step}, and decoding would never end; a rule without "
                    "a schedule must fill at least one mask of every row that has open masks, and one with a schedule "
                    "must fill all that are left in its last pass"
                )

    def add_seconds(self, seconds: float) -> None:
        """Add a step and its seconds, admission included, to every running row; SettingError after too many steps."""
        running = [row for row, request in enumerate(self._running) if request is not None]
        for row in running:
            self._seconds[row] += seconds
            self._shares[row] += seconds / len(running)
            self._steps[row] += 1
            if self._steps[row] > self._max_steps[row] < int(self.state.clock.step[row]):
                raise SettingError(
                    f"row {row} still has masks after {self._max_steps[row]} passes, {MAX_REFILLS} times the number "
                    "that its recipe needs, so decoding would never end: a tokens hook must not mask slots again "
                    "without end, a length policy that grows needs LengthTraits(max_slots=...), and an unmask rule "
                    "with a schedule a method max_passes"
                )

    def evict_finished(self) -> tuple[FinishedRow, ...]:
        """Free the rows that have finished or contain a stop string, and return their results, on the CPU."""
        stops = {row: match for row, request in enumerate(self._running) if (match := self._find_stop(row, request))}
        finished = {
            row: request
            for row, (phase, request) in enumerate(zip(self.phases, self._running))
            if request is not None and (phase is Phase.DONE or row in stops)
        }
        if not finished:
            return ()
        index = torch.tensor(list(finished), device=self._model.device)
        results = (self.state.canvas, self.state.cost)
        canvas, cost = tree_to(tree_map(lambda tensor: tensor.index_select(0, index), results), CPU)
        check_max_slots(canvas, self._recipe)
        for row in finished:
            self._running[row] = None
        self._free([row for row in stops if self.phases[row] is not Phase.DONE])
        return tuple(
            FinishedRow(
                request_id=request.request_id,
                canvas=canvas.row(index),
                horizon=request.plan.max_horizon,
                lengths=request.plan.lengths,
                probe_cost=request.probe_cost,
                cost=cost.row(index),
                seconds=self._seconds[row],
                seconds_share=self._shares[row],
                stop_reason=stops.get(row),
            )
            for index, (row, request) in enumerate(finished.items())
        )

    def _find_stop(self, row: int, request: PlannedRequest | None) -> str | None:
        """Return the stop string that the decided text of a row contains, or None."""
        if request is None or not request.stop or self._model.tokenizer is None:
            return None
        token_ids = decided_prefix(self.state.canvas.answer_ids(row), self._model.ids)
        text = decode_text(self._model.tokenizer, token_ids)
        match = find_stop(text, request.stop)
        return None if match is None else match[1]


class ModelProbe:
    """The probe of a length policy: a forward pass over prompts followed by masks, with its cost added up.

    Guidance, hooks and end-token settings are not applied to the probe: they change the answer, not the length
    that the model predicts. `recipe` is used by `max_cost` only.
    """

    def __init__(
        self,
        model: MaskPredictor,
        prompts: Sequence[PromptIds],
        recipe: Recipe = Recipe(),
        *,
        exceed_max_seq_len: bool = False,
    ) -> None:
        self.num_rows = len(prompts)
        self.cost = BatchCost.zeros(self.num_rows)
        self._prompts, self._ids, self._recipe = prompts, model.ids, recipe
        generators = RowGenerators([0] * self.num_rows)  # unused: a probe takes the most likely token
        self._forward = Forward(model, Sampling(), generators, exceed_max_seq_len=exceed_max_seq_len)

    def __call__(self, slots: int | Int[Tensor, "B"], rows: Bool[Tensor, "B"] | None = None) -> Prediction:
        horizon: Any = slots
        if not isinstance(slots, Tensor):
            check_int("probe", "slots", slots, minimum=1)
            horizon = torch.full((self.num_rows,), slots)
        if rows is not None:
            check_tensor("probe(rows=...) is", rows, horizon.shape, torch.bool)
            if not bool(rows.any()):
                raise SettingError("probe(rows=...) names no row; probe at least one")
        canvas = Canvas.blank(self._prompts, horizon, self._ids)
        read = canvas.answer if rows is None else canvas.answer & rows[:, None]
        prediction, self.cost = self._forward(canvas, PassInputs(Columns.from_mask(read)), self.cost)
        return prediction

    def max_cost(self, slots: Int[Tensor, "B"]) -> BatchCost:
        """Return an upper bound, per row, of the cost of decoding `slots` slots, whatever the model predicts."""
        check_tensor("probe.max_cost(slots) is", slots, torch.Size((self.num_rows,)), torch.long, CPU)
        passes = torch.tensor([self._recipe.max_passes(count) for count in slots.tolist()])
        width = torch.tensor([len(prompt) for prompt in self._prompts]) + slots
        tokens = passes * width * (2 if self._recipe.sampling.guidance else 1)
        return BatchCost(passes, tokens, tokens * width)


@dataclass(frozen=True, eq=False)
class PlannedRequest:
    """A prompt with its planned length, ready to join the running batch."""

    request_id: int
    prompt_ids: Tensor
    plan: Plan  # of one row
    probe_cost: TokenCost
    generators: RowGenerators  # of one row
    stop: tuple[str, ...] = ()  # strings that end the answer


def plan_lengths(
    model: MaskPredictor,
    recipe: Recipe,
    prompts: Sequence[Tensor],
    *,
    max_new_tokens: Sequence[int | None] | None = None,
    exceed_max_seq_len: bool = False,
) -> list[tuple[Plan, TokenCost]]:
    """Plan the lengths of all prompts in one batch of probes; return a plan and the probe cost per prompt.

    `max_new_tokens` caps the slots of each row, both in the plan and when its length policy adds slots; None: no cap.
    """
    probe = ModelProbe(model, prompts, recipe, exceed_max_seq_len=exceed_max_seq_len)
    plan = plan_with(recipe.length, probe)
    if max_new_tokens is not None and any(max_new_tokens):
        plan = plan.capped(torch.tensor([cap or MAX_SLOTS for cap in max_new_tokens]))
    return [(plan.row(row), probe.cost.row(row)) for row in range(len(prompts))]
