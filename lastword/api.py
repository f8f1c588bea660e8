"""Generate answers and predict their lengths: the entry points most users need."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, overload

from lastword.canvas.canvas import Canvas
from lastword.canvas.cost import TokenCost
from lastword.decoding.hooks import Hooks
from lastword.decoding.loop import Step, decode
from lastword.decoding.planning import ModelProbe
from lastword.decoding.running_batch import FinishedRow
from lastword.decoding.sampling import RowGenerators, Sampling, check_seed, check_seeds
from lastword.errors import PromptError, SettingError
from lastword.models.base import MaskPredictor, check_model, decode_text
from lastword.models.load import load
from lastword.policies.cache import Cache
from lastword.policies.commit import CommitRule
from lastword.policies.length.policy import LengthPolicy, Plan
from lastword.policies.length.survival import Survival
from lastword.policies.unmask.rule import UnmaskRule
from lastword.prompts import Prompt, is_batch, prompts_in_chat, tokenize_prompts
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import group_by_limit, resolve
from lastword.recipe.text import parse_part
from lastword.survival.distribution import LengthDistribution
from lastword.survival.interpretation import Auto, Interpretation
from lastword.validation import MAX_SLOTS, check_callable, check_choice, check_int
from lastword.viz.frames import BatchTrace, Frame, FrameRecorder
from lastword.viz.html import answer_html, answer_line
from lastword.viz.replay import run, write_replay

__all__ = ["Finish", "Generation", "generate", "predict_length"]

MAX_ROWS = 512  # decoded at once where nobody says how many
MAX_LOGITS = 2**32  # of one pass over them

# A model that was loaded, or its name or folder.
Model = MaskPredictor | str | Path


class Finish(Enum):
    """Why an answer stopped, as a sentence that says what to change if it should not have."""

    ENDED = "The model ended its answer."
    TRUNCATED = (
        "Every slot was filled and no end token came: the answer may be cut. Give it more room, with "
        "a larger estimate (Survival(estimate=Quantile(0.95))) or a larger limit."
    )
    MASKS_LEFT = (
        "The model kept proposing the mask token, so some slots stayed empty. "
        "Decode with Sampling(propose_mask=False)."
    )


@dataclass(frozen=True, eq=False, repr=False)
class Generation:
    """One answer and what it cost."""

    text: str | None  # None for a model without a tokenizer
    tokens: list[int]  # up to the first end token, which is left out
    canvas: list[int]  # the whole answer canvas, end tokens and what follows included
    prompt: list[int]
    recipe: Recipe  # what ran: nothing in it is unsaid
    horizon: int  # slots planned; the canvas may have been revised since
    lengths: LengthDistribution | None  # what the probe said, if the policy read one
    probe_cost: TokenCost
    cost: TokenCost
    seconds: float  # until this row was done, probe included
    finish: Finish
    frames: tuple[Frame, ...] | None = None  # the answer after every pass, of generate(frames=True)
    prompt_text: str | None = None  # the prompt as text, where frames were kept

    def replay(self, path: Path | str) -> Path:
        """Write the run as one HTML file that plays it in any browser; nothing is loaded from elsewhere.

        It needs the frames of `generate(..., frames=True)`. A file that is there is replaced if it is a
        replay as well.
        """
        if self.frames is None:
            raise SettingError(
                "this answer was made without frames, so there is nothing to replay; ask with "
                "generate(..., frames=True)"
            )
        told = {**self.to_data(), "finish": self.finish.value, "prompt": self.prompt_text}
        return write_replay(path, run(self.frames, self.lengths, told))

    def __repr__(self) -> str:
        return f"Generation({answer_line(self.to_data())})"

    def _repr_html_(self) -> str:
        pieces = None
        if self.frames:
            last = self.frames[-1]
            pieces = [*zip(last.texts, last.filled_at)][: last.end]
        return answer_html(self.to_data(), self.finish.value, len(self.canvas), pieces)

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        lengths = self.lengths
        return {
            "text": self.text,
            "tokens": self.tokens,
            "prompt_tokens": len(self.prompt),
            "recipe": self.recipe.label(),
            "horizon": self.horizon,
            "expected_length": None if lengths is None else lengths.mean.item(),
            "tail": None if lengths is None else lengths.tail.item(),
            "probe_cost": self.probe_cost._asdict(),
            "cost": self.cost._asdict(),
            "seconds": round(self.seconds, 6),
            "finish": self.finish.name.lower(),
        }


# One prompt gives one Generation, a list of prompts a list of them. A flat list of ids or of chat messages
# is one prompt.
@overload
def generate(  # type: ignore[overload-overlap]  # text is a sequence of texts, too
    model: Model,
    prompt: Prompt,
    *,
    length: LengthPolicy | str | None = None,
    unmask: UnmaskRule | str | None = None,
    commit: CommitRule | str | None = None,
    cache: Cache | str | None = None,
    block: int | None = None,
    sampling: Sampling | str | None = None,
    recipe: Recipe | str | None = None,
    hooks: Hooks = Hooks(),
    seed: int | Sequence[int] = 0,
    exceed_max_seq_len: bool = False,
    on_step: Callable[[Step], None] | None = None,
    max_batch_size: int | None = None,
    frames: bool = False,
) -> Generation: ...
@overload
def generate(
    model: Model,
    prompt: Sequence[Prompt],
    *,
    length: LengthPolicy | str | None = None,
    unmask: UnmaskRule | str | None = None,
    commit: CommitRule | str | None = None,
    cache: Cache | str | None = None,
    block: int | None = None,
    sampling: Sampling | str | None = None,
    recipe: Recipe | str | None = None,
    hooks: Hooks = Hooks(),
    seed: int | Sequence[int] = 0,
    exceed_max_seq_len: bool = False,
    on_step: Callable[[Step], None] | None = None,
    max_batch_size: int | None = None,
    frames: bool = False,
) -> list[Generation]: ...
def generate(
    model: Model,
    prompt: Prompt | Sequence[Prompt],
    *,
    length: LengthPolicy | str | None = None,
    unmask: UnmaskRule | str | None = None,
    commit: CommitRule | str | None = None,
    cache: Cache | str | None = None,
    block: int | None = None,
    sampling: Sampling | str | None = None,
    recipe: Recipe | str | None = None,
    hooks: Hooks = Hooks(),
    seed: int | Sequence[int] = 0,
    exceed_max_seq_len: bool = False,
    on_step: Callable[[Step], None] | None = None,
    max_batch_size: int | None = None,
    frames: bool = False,
) -> Generation | list[Generation]:
    """Answer a prompt, or a batch of them: one Generation for one prompt, a list for a list.

    The model is one that was loaded, or the name or folder of one, which is then loaded for this call
    alone: to ask more than once, load it once (`lastword.load`). A prompt is text, chat messages
    ([{"role": ..., "content": ...}]) or token ids. Every choice is a part or its name and overrides
    `recipe`. Rows of a batch may differ in prompt and horizon; each equals its solo run. Where no limit was
    said and some prompts leave less room than the model's own, those decode apart. A whole-number `seed`
    gives row i the seed + i. `on_step` is shown every Step. At most `slots` rows are decoded at once; the
    next prompt takes the slot of a row that is done. Without a number as many as a model of this size has
    room for: 512 of an embedded one, 33 of LLaDA-8B. With `frames` every Generation keeps how it looked
    after every pass, for `Generation.replay`; to see it while it is made, use `lastword.stream`.

    >>> import lastword
    >>> answer = lastword.generate(lastword.load("toy"), "abc", length="fixed:5")
    >>> answer.text, answer.horizon, answer.cost.forward_passes
    ('defgh', 5, 5)
    """
    choices = {
        "length": length,
        "unmask": unmask,
        "commit": commit,
        "cache": cache,
        "block": block,
        "sampling": sampling,
    }
    Hooks.check("generate", hooks)
    check_choice("generate", "exceed_max_seq_len", exceed_max_seq_len, True, False)
    check_choice("generate", "frames", frames, True, False)
    if max_batch_size is not None:
        check_int("generate", "max_batch_size", max_batch_size, minimum=1)
    if on_step is not None:
        check_callable("generate", "on_step", on_step, ("step",))
    model = as_model(model)
    batch = tokenize_prompts(model, prompt)
    seeds = _seeds(seed, len(batch))
    chosen = Recipe.coerce(recipe).with_choices(**choices)
    found = generate_ids(
        model,
        batch,
        chosen,
        seeds,
        hooks=hooks,
        exceed_max_seq_len=exceed_max_seq_len,
        in_chat=prompts_in_chat(prompt),
        on_step=on_step,
        max_batch_size=max_batch_size,
        frames=frames,
    )
    return found if is_batch(prompt) else found[0]


def generate_ids(
    model: MaskPredictor,
    prompts: Sequence[list[int]],
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    hooks: Hooks = Hooks(),
    exceed_max_seq_len: bool = False,
    in_chat: Collection[bool | None] = (),
    on_step: Callable[[Step], None] | None = None,
    max_batch_size: int | None = None,
    max_new_tokens: Sequence[int | None] | None = None,
    plans: Sequence[tuple[Plan, TokenCost] | None] | None = None,
    frames: bool = False,
    on_answer: Callable[[int, Generation], None] | None = None,
) -> list[Generation]:
    """What `generate` does once prompts are ids; `most` bounds the slots of each answer, where it says so.

    `plans` are those of `decode`. `on_answer` is shown every answer with its row, as soon as it is there.
    """
    bounds = (
        None
        if max_new_tokens is None or not any(max_new_tokens)
        else [own or MAX_SLOTS for own in max_new_tokens]
    )
    together = [[*range(len(prompts))]]
    if prompts and not exceed_max_seq_len:
        together = group_by_limit(recipe, model, prompts)
    found: dict[int, Generation] = {}
    for rows in together:
        steps = decode(
            model,
            [prompts[row] for row in rows],
            recipe,
            generators=RowGenerators([seeds[row] for row in rows], model.device),
            hooks=hooks,
            exceed_max_seq_len=exceed_max_seq_len,
            in_chat=in_chat,
            max_batch_size=None if hooks != Hooks() else max_batch_size or default_batch_size(model),
            max_new_tokens=None if bounds is None else [bounds[row] for row in rows],
            plans=None if plans is None else [plans[row] for row in rows],
            use_cuda_graphs=on_step is None and not frames,
        )
        kept = FrameRecorder(model.tokenizer, model.ids) if frames else None
        for done, seconds, resolved in _run(steps, on_step, kept):
            row = rows[done.request_id]
            found[row] = build_generation(model, done, resolved, prompts[row], seconds)
            if on_answer is not None:
                on_answer(row, found[row])
        for place, shown in enumerate(kept.frames if kept else ()):
            row = rows[place]
            asked = decode_text(model.tokenizer, prompts[row])
            found[row] = replace(found[row], frames=shown, prompt_text=asked)
    return [found[row] for row in range(len(prompts))]


def predict_length(
    model: Model,
    prompt: Prompt | Sequence[Prompt],
    *,
    limit: int | None = None,
    ends: str = "document",
    reading: Interpretation | str = Auto(),
    exceed_max_seq_len: bool = False,
) -> LengthDistribution:
    """How long the answer will be, from one forward pass over `limit` masks; of a list a row per prompt.

    Without a limit it is that of the model (`model.slots`, 1024 where a checkpoint does not say), or what the
    longest prompt leaves of its positions. `limit`, `ends` and `reading` are those of `Survival`;
    `reading=Hazard()`, or its name, is the paper's. The model may be a name, as in `generate`.

    >>> import lastword
    >>> lastword.predict_length(lastword.load("toy"), "abc", limit=64)
    LengthDistribution(mean 10.5, 50% within 10, 90% within 18, 0.0% beyond 64)
    """
    check_choice("predict_length", "exceed_max_seq_len", exceed_max_seq_len, True, False)
    model = as_model(model)
    batch = tokenize_prompts(model, prompt)
    read_as = parse_part("reading", reading) if isinstance(reading, str) else reading
    survival = Survival(limit=limit, ends=ends, reading=read_as)
    longest = [max(batch, key=len)] if batch else []
    resolved = resolve(Recipe(length=survival), model, longest, exceed_max_seq_len=exceed_max_seq_len)
    probe = ModelProbe(model, batch, exceed_max_seq_len=exceed_max_seq_len)
    found = replace(survival, limit=resolved.length.traits.max_slots).lengths(probe)
    return found if is_batch(prompt) else found.row(0)


def _run(
    steps: Iterator[Step], *watching: Callable[[Step], None] | None
) -> Iterator[tuple[FinishedRow, float, Recipe]]:
    """Every row that is done, the seconds until then, and the recipe as it was settled."""
    began = time.perf_counter()
    step: Step | None = None
    for step in steps:
        for done in step.finished:
            yield done, time.perf_counter() - began, step.recipe
        for watcher in watching:
            if watcher is not None:
                watcher(step)
    if step is None:
        raise SettingError(
            "the tokens hook filled every slot before the first pass, so there was nothing to decode; "
            "leave it some masks"
        )


def default_batch_size(model: MaskPredictor) -> int:
    """So many rows that a full pass over their canvases has no more logits than fit anywhere."""
    return min(MAX_ROWS, max(1, MAX_LOGITS // (model.ids.vocab_size * model.default_max_new_tokens)))


def as_model(model: Model) -> MaskPredictor:
    """A model, or the one of that name or folder."""
    ready = load(model) if isinstance(model, (str, Path)) else model
    check_model(ready)
    return ready


def _seeds(seed: int | Sequence[int], rows: int) -> list[int]:
    """One for each row: those given, or so many from the one given on."""
    if hasattr(seed, "__index__") and not getattr(seed, "ndim", 0):
        first = check_seed("generate", seed)
        return [check_seed("generate", first + row) for row in range(rows)]
    wanted = "a whole number, or a list with one for each prompt"
    seeds = check_seeds("generate", "seed", seed, wanted)
    if len(seeds) != rows:
        raise SettingError(f"{len(seeds)} seeds were given for {rows} prompts; give one each")
    return seeds


def build_generation(
    model: MaskPredictor, done: FinishedRow, recipe: Recipe, prompt: list[int], seconds: float
) -> Generation:
    """What a row came to that has left its slot."""
    answer = done.canvas.answer_ids(0)
    tokens, finish = trimmed(done.canvas, 0, answer)
    text = None if model.tokenizer is None else decode_text(model.tokenizer, tokens)
    return Generation(
        text=text,
        tokens=tokens,
        canvas=answer,
        prompt=prompt,
        recipe=recipe,
        horizon=done.horizon,
        lengths=done.lengths,
        probe_cost=done.probe_cost,
        cost=done.cost,
        seconds=seconds,
        finish=finish,
    )


def trimmed(canvas: Canvas, row: int, answer: list[int]) -> tuple[list[int], Finish]:
    """The row's answer up to its first end token, and why it stopped."""
    ends = [index for index, token in enumerate(answer) if token in canvas.ids.ends]
    kept = answer[: ends[0]] if ends else answer
    if canvas.ids.mask in kept:
        return kept, Finish.MASKS_LEFT
    return kept, Finish.ENDED if bool(canvas.ended[row].any()) else Finish.TRUNCATED


__all__ = ["stream"]


def stream(
    model: Model,
    prompt: Prompt,
    *,
    length: LengthPolicy | str | None = None,
    unmask: UnmaskRule | str | None = None,
    commit: CommitRule | str | None = None,
    cache: Cache | str | None = None,
    block: int | None = None,
    sampling: Sampling | str | None = None,
    recipe: Recipe | str | None = None,
    hooks: Hooks = Hooks(),
    seed: int = 0,
    exceed_max_seq_len: bool = False,
) -> Iterator[Frame]:
    """Answer one prompt and show it after every pass; choices are those of `generate`.

    The first frame is the empty canvas that was planned, the last one has the whole answer. Decoding goes on
    only while somebody asks for the next frame: whoever stops asking has stopped it.

    >>> import lastword
    >>> for frame in lastword.stream(lastword.load("toy"), "abc", length="fixed:3"):
    ...     print(frame.forward_passes, "".join(text or "_" for text in frame.texts), frame.filled_at)
    0 ___ (None, None, None)
    1 d__ (1, None, None)
    2 de_ (1, 2, None)
    3 def (1, 2, 3)
    """
    choices: dict[str, Any] = {
        "length": length,
        "unmask": unmask,
        "commit": commit,
        "cache": cache,
        "block": block,
        "sampling": sampling,
    }
    Hooks.check("watch", hooks)
    check_choice("watch", "exceed_max_seq_len", exceed_max_seq_len, True, False)
    first = check_seed("watch", seed)
    model = as_model(model)
    if is_batch(prompt):
        raise PromptError(
            f"watch was given {len(prompt)} prompts and shows one; watch one, or keep the frames of all "
            "with generate(..., frames=True)"
        )
    steps = decode(
        model,
        tokenize_prompts(model, prompt),
        Recipe.coerce(recipe).with_choices(**choices),
        generators=RowGenerators([first], model.device),
        hooks=hooks,
        exceed_max_seq_len=exceed_max_seq_len,
        in_chat=prompts_in_chat(prompt),
    )
    return _frames(steps, BatchTrace(model.tokenizer, model.ids))


def _frames(steps: Iterator[Step], traces: BatchTrace) -> Iterator[Frame]:
    shown = False
    for step in steps:
        for _, frame in traces.of(step):
            shown = True
            yield frame
    if not shown:
        raise SettingError(
            "the tokens hook filled every slot before the first pass, so there was nothing to decode; "
            "leave it some masks"
        )
