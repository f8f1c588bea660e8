"""The decoding loop: from token ids to finished canvases, one `Step` per forward pass."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas, validate_prompts
from lastword.canvas.clock import Clock
from lastword.canvas.cost import BatchCost, TokenCost
from lastword.canvas.tokens import PromptIds
from lastword.decoding.forward import Forward
from lastword.decoding.hooks import Hooks
from lastword.decoding.layout import CanvasLayout, supports_static_shapes
from lastword.decoding.planning import PlannedRequest
from lastword.decoding.prediction import Prediction
from lastword.decoding.running_batch import FinishedRow, PromptQueue, RequestQueue, RunningBatch
from lastword.decoding.sampling import RowGenerators
from lastword.decoding.static_shapes import PhaseScheduler
from lastword.decoding.step import StepDetails, Stepper
from lastword.errors import SettingError, WrongTypeError
from lastword.models.base import MaskPredictor, check_model
from lastword.policies.length.policy import Plan
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.validation import (
    check_choice,
    check_int,
    check_list,
    check_type,
    short_repr,
)

__all__ = ["Step", "decode"]


@dataclass(frozen=True, eq=False)
class Step:
    """The state after one step of decoding: a forward pass, a choice, a write, a revision.

    Rows are slots: those of the prompts, unless there are fewer slots than prompts, and then `prompts`
    says whose each slot is. `prediction` holds the pass's logits: keep the steps you need, not a list of
    all of them.
    """

    clock: Clock
    canvas: Canvas
    requests: tuple[PlannedRequest, ...]  # what each row began with; of a free slot, the row that left it
    cost: BatchCost
    recipe: Recipe  # as it was settled
    request_ids: tuple[int | None, ...]  # the index of the prompt in each slot; None: the slot is free
    finished: tuple[FinishedRow, ...]  # rows that this step finished
    details: StepDetails | None  # None: the pass was replayed as a captured graph

    @property
    def plan(self) -> Plan:
        """What was planned for the rows."""
        return Plan.concat([ticket.plan for ticket in self.requests])

    @property
    def probe_cost(self) -> BatchCost:
        """What that cost."""
        return BatchCost.stack([ticket.probe_cost for ticket in self.requests])

    @property
    def chosen(self) -> Bool[Tensor, "B L"]:
        """Masks of prediction.canvas the rules chose to fill in this step."""
        return self._details.chosen

    @property
    def prediction(self) -> Prediction:
        """What the pass said."""
        return self._details.prediction

    @property
    def _details(self) -> StepDetails:
        if self.details is None:
            raise SettingError(
                "this pass was replayed as a captured graph, which leaves nothing to look at but the rows "
                "after it; decode with use_cuda_graphs=False"
            )
        return self.details


def decode(
    model: MaskPredictor,
    prompts: Sequence[PromptIds],
    recipe: Recipe = Recipe(),
    *,
    generators: RowGenerators | None = None,
    hooks: Hooks = Hooks(),
    exceed_max_seq_len: bool = False,
    in_chat: Collection[bool | None] = (),
    max_batch_size: int | None = None,
    max_new_tokens: Sequence[int] | None = None,
    plans: Sequence[tuple[Plan, TokenCost] | None] | None = None,
    use_cuda_graphs: bool = False,
) -> Iterator[Step]:
    """Decode prompts, given as token ids. Each row decodes as if it were alone.

    All of them at once, or `slots` at a time: a row that is done leaves its slot to the next. `most` says
    of each prompt how many slots its answer may have at most, whatever was planned. `plans`
    are those that were made before, with what they cost: that prompt is not probed again. `in_chat`
    says whether the prompts went through the chat template, for a calibration to agree with. With `replay`
    passes within a block are replayed as a captured graph where the model's device has such (CUDA), the
    recipe keeps its shapes and none of its parts asks the host anything.
    """
    check_model(model)
    recipe = Recipe.coerce(recipe)
    Hooks.check("decode", hooks)
    check_choice("decode", "exceed_max_seq_len", exceed_max_seq_len, True, False)
    if generators is not None:
        check_type(
            "decode",
            "generators",
            generators,
            RowGenerators,
            "lastword.RowGenerators(seeds), or None",
        )
    check_choice("decode", "use_cuda_graphs", use_cuda_graphs, True, False)
    if max_batch_size is not None:
        check_int("decode", "max_batch_size", max_batch_size, minimum=1)
        if hooks != Hooks():
            raise SettingError(
                f"decode(max_batch_size={max_batch_size}) was given with hooks, which see all rows at "
                "once; leave either out"
            )
    prompts = validate_prompts(prompts, model.ids)
    if max_new_tokens is not None:
        check_list("decode", "max_new_tokens", max_new_tokens, "a list of whole numbers, one a prompt")
        for own in max_new_tokens:
            check_int("decode", "max_new_tokens", own, minimum=1)
        if len(max_new_tokens) != len(prompts):
            raise SettingError(
                f"{len(max_new_tokens)} bounds were given for {len(prompts)} prompts; give one each"
            )
    if plans is not None:
        _check_plans(plans, len(prompts))
    recipe = resolve(recipe, model, prompts, in_chat=in_chat, exceed_max_seq_len=exceed_max_seq_len)
    generators = generators or RowGenerators(range(len(prompts)), model.device)
    if len(generators) != len(prompts):
        raise SettingError(
            f"{len(generators)} generators were given for {len(prompts)} prompts; give one each"
        )
    count = min(max_batch_size or len(prompts), len(prompts))
    queue = PromptQueue(
        model,
        recipe,
        prompts,
        generators,
        count=count,
        max_new_tokens=max_new_tokens,
        plans=plans,
        exceed_max_seq_len=exceed_max_seq_len,
    )
    yield from decode_steps(
        model,
        recipe,
        queue,
        max_batch_size=count,
        max_prompt_tokens=max(map(len, prompts)),
        hooks=hooks,
        exceed_max_seq_len=exceed_max_seq_len,
        use_cuda_graphs=use_cuda_graphs,
    )


def _check_plans(plans: Sequence[object], prompts: int) -> None:
    """One for each prompt, or None where there is none."""
    check_list("decode", "plans", plans, "a list of plans and their costs, one a prompt")
    for own in plans:
        made = isinstance(own, tuple) and [*map(type, own)] == [Plan, TokenCost]
        if own is not None and not made:
            raise WrongTypeError(
                f"decode(plans=...) was given {short_repr(own)}; a plan comes with its cost, as "
                "lastword.decoding.planning.planned returns them, or None"
            )
    if len(plans) != prompts:
        raise SettingError(f"{len(plans)} plans were given for {prompts} prompts; give one each")


def decode_steps(
    model: MaskPredictor,
    recipe: Recipe,  # as it was settled
    queue: RequestQueue,
    *,
    max_batch_size: int,
    max_prompt_tokens: int,
    hooks: Hooks = Hooks(),
    exceed_max_seq_len: bool = False,
    use_cuda_graphs: bool = False,
    pool_tokens: int | None = None,
) -> Generator[Step, None, None]:
    """Decode whoever waits in the queue, prompts of up to `longest` tokens, until nobody is at work.

    With `columns`, a cache whose passes have fixed shapes keeps rows in a pool of so many, each in as many as
    its ticket reserves.
    """
    forward = Forward(
        model,
        recipe.sampling,
        RowGenerators([]),
        hook=hooks.logits,
        exceed_max_seq_len=exceed_max_seq_len,
    )
    packs = getattr(model, "is_packed", False) is True
    # Nobody has captured a pass of several ranks yet.
    alone = getattr(model, "ranks", None) is None
    fixed = alone and supports_static_shapes(model.device, recipe, hooks, max_batch_size, packs=packs)
    layout = CanvasLayout.of(recipe, max_prompt_tokens) if fixed else CanvasLayout(max_prompt_tokens)
    rows = RunningBatch(model, recipe, queue, layout, hooks, count=max_batch_size)
    stepper = Stepper(recipe, forward, hooks)
    turns = PhaseScheduler(stepper, model, replay=use_cuda_graphs, columns=pool_tokens) if fixed else None
    step = turns or (lambda now, *_: stepper(now))
    try:
        while rows.admit():
            forward.generators, tickets = rows.generators, tuple(rows.requests)
            before = rows.state
            rows.state, seen = step(before, rows.phases, tickets)
            rows.sync_phases()
            prompts = rows.request_ids
            yield Step(
                before.clock,
                rows.state.canvas,
                tickets,
                rows.state.cost,
                recipe,
                prompts,
                rows.evict_finished(),
                seen,
            )
    finally:
        if turns is not None:
            turns.close()
