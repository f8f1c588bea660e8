"""The entry points that most users need: generation of answers and prediction of their lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any, cast, overload

from typing_extensions import TypedDict, Unpack

from lastword.canvas.canvas import Canvas
from lastword.decoding.detokenizer import count_tokens, decided_prefix, find_stop
from lastword.decoding.forward import Hooks
from lastword.decoding.loop import DecodeSettings, Step, decode_prompts, make_requests
from lastword.decoding.running_batch import DecodeRequest, FinishedRow, ModelProbe, RowReport
from lastword.decoding.sampling import Sampling
from lastword.errors import PromptError, SettingError
from lastword.models.base import MaskPredictor, check_model, decode_text
from lastword.models.load import load
from lastword.policies.cache import Cache
from lastword.policies.commit import CommitRule
from lastword.policies.length.policy import LengthPolicy
from lastword.policies.length.survival import Survival
from lastword.policies.unmask.rule import UnmaskRule
from lastword.prompts import Prompt, is_batch, prompts_in_chat, tokenize_prompts, validate_prompts, with_chat_template
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import group_by_limit, resolve
from lastword.recipe.text import parse_part
from lastword.survival.distribution import LengthDistribution
from lastword.survival.interpretation import Auto, Interpretation
from lastword.validation import check_callable, check_choice, checks_arguments
from lastword.viz.frames import BatchTrace, Frame, FrameRecorder
from lastword.viz.html import answer_html, answer_line
from lastword.viz.replay import run, write_replay

__all__ = ["Finish", "Generation", "generate", "predict_length", "stream"]

MAX_BATCH_SIZE = 512  # upper bound of the default number of rows
MAX_LOGITS = 2**32  # upper bound of the logits of one pass over a default batch

# A loaded model, or the name or folder of one.
Model = MaskPredictor | str | Path


class Finish(Enum):
    """The reason why an answer stopped; the value explains it and what to change."""

    ENDED = "The model ended its answer."
    TRUNCATED = (
        "Every slot was filled and no end token came: the answer may be cut. Give it more slots, with a "
        "larger estimate (Survival(estimate=Quantile(0.95))), or with a larger limit or max_new_tokens."
    )
    STOPPED = "A stop string ended the answer."
    MASKS_LEFT = (
        "The model kept proposing the mask token, so some slots stayed empty. Decode with Sampling(propose_mask=False)."
    )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Generation(RowReport):
    """An answer, its predicted length and its cost."""

    text: str | None  # None for a model without a tokenizer
    tokens: list[int]  # the answer before its first end token
    canvas: list[int]  # the tokens of all slots, end tokens and later ones included
    prompt: list[int]  # token ids
    recipe: Recipe  # resolved: every value is set
    finish: Finish
    chat: bool | None = None  # whether the prompt used the chat template; None: it was token ids
    frames: tuple[Frame, ...] | None = None  # the answer after every pass, with generate(frames=True)
    prompt_text: str | None = None  # set together with `frames`
    graph_fallbacks: int = 0  # steps of the batch that ran uncaptured because a CUDA graph capture failed

    def replay(self, path: Path | str) -> Path:
        """Write one HTML file that replays the decoding in any browser, without network access; return its path.

        Requires `generate(..., frames=True)`. An existing file is replaced only if it is a replay.
        """
        if self.frames is None:
            raise SettingError(
                "this answer has no frames, so there is nothing to replay; call generate(..., frames=True)"
            )
        details = {**self.to_data(), "finish": self.finish.value, "prompt": self.prompt_text}
        return write_replay(path, run(self.frames, self.lengths, details))

    def __repr__(self) -> str:
        return f"Generation({answer_line(self.to_data())})"

    def _repr_html_(self) -> str:
        pieces = None
        if self.frames:
            last = self.frames[-1]
            pieces = [*zip(last.texts, last.filled_at)][: last.end]
        return answer_html(self.to_data(), self.finish.value, len(self.canvas), pieces)

    def to_data(self) -> dict[str, Any]:
        """Return answer, predicted length and cost as a dict that can be written as JSON."""
        lengths = self.lengths
        return {
            "text": self.text,
            "tokens": self.tokens,
            "prompt_tokens": len(self.prompt),
            "recipe": self.recipe.label(),
            "horizon": self.horizon,
            "expected_length": None if lengths is None else round(lengths.mean.item(), 4),
            "tail": None if lengths is None else round(lengths.tail.item(), 6),
            "probe_cost": self.probe_cost._asdict(),
            "cost": self.cost._asdict(),
            "seconds": round(self.seconds, 6),
            "finish": self.finish.name.lower(),
            "stop_reason": self.stop_reason,
            "chat": self.chat,
        }


class DecodeOptions(TypedDict, total=False):
    """Options that `generate` and `stream` have in common. A part is given as an object or as text."""

    recipe: Recipe | str | None
    max_new_tokens: int | Sequence[int | None] | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    stop: str | Sequence[str] | None
    seed: int | Sequence[int]
    chat: bool | None
    length: LengthPolicy | str | None
    unmask: UnmaskRule | str | None
    commit: CommitRule | str | None
    cache: Cache | str | None
    block: int | None
    sampling: Sampling | str | None
    hooks: Hooks
    exceed_max_seq_len: bool


class GenerateOptions(DecodeOptions, total=False):
    """Options of `generate`."""

    on_step: Callable[[Step], None] | None
    max_batch_size: int | None
    frames: bool


# One prompt gives one Generation, and a list of prompts gives a list. A flat list of token ids or of chat
# messages is one prompt.
@overload
def generate(  # type: ignore[overload-overlap]  # text is a sequence of texts, too
    model: Model, prompt: Prompt, **options: Unpack[GenerateOptions]
) -> Generation: ...
@overload
def generate(model: Model, prompt: Sequence[Prompt], **options: Unpack[GenerateOptions]) -> list[Generation]: ...
@checks_arguments(GenerateOptions)
def generate(
    model: Model, prompt: Prompt | Sequence[Prompt], **options: Unpack[GenerateOptions]
) -> Generation | list[Generation]:
    """Generate the answer to a prompt, or a list of answers to a list of prompts.

    Args:
        model: a loaded model, or the name or folder of one, which is then loaded for this call alone.
        prompt: text, chat messages ([{"role": ..., "content": ...}]), token ids, or a list of these.
        recipe: the recipe or its name; by default `careful`.
        max_new_tokens: the most tokens of an answer, or a list with one number per prompt. It is a cap: the length
            policy sizes the canvas.
        temperature: replaces the recipe's temperature. All named recipes have 0, which takes the most likely token.
        top_p: sample from the most likely tokens with this total probability; needs a temperature above 0.
        top_k: sample from this number of most likely tokens; needs a temperature above 0.
        stop: text, or a list of texts, that ends the answer; decoding ends with it.
        seed: one seed per prompt, or a first seed s (by default 0): prompt i gets s + i.
        chat: whether text prompts go through the model's chat template; by default if the model has one. Messages
            always do, and token ids never.
        length: a length policy or its name. The arguments from here to `sampling` override parts of `recipe`.
        unmask: a rule, or its name, that chooses which masks a pass fills.
        commit: a rule, or its name, that may fill all remaining masks at once.
        cache: a cache, or its name, that chooses which columns are computed again.
        block: number of slots per block.
        sampling: how logits become tokens.
        hooks: functions that change logits or tokens between steps.
        exceed_max_seq_len: allow rows that are longer than the model's context.
        on_step: a function that is called with every Step.
        max_batch_size: number of prompts decoded together; a waiting prompt takes the place of a finished
            one. By default at most 512, fewer for large vocabularies and long answers: 33 for LLaDA-8B.
        frames: keep the answer after every pass, for `Generation.replay`; `stream` yields them during decoding.

    Prompts of a list may differ in length; each answer equals that of the prompt alone. If the recipe sets no
    length limit, prompts too long for the model's default limit are decoded separately, with a lower limit.

    >>> import lastword
    >>> answer = lastword.generate(lastword.load("toy"), "abc", length="fixed:5")
    >>> answer.text, answer.horizon, answer.cost.forward_passes
    ('defgh', 5, 5)
    """
    on_step, frames = options.get("on_step"), options.get("frames", False)
    check_choice("generate", "frames", frames, True, False)
    if on_step is not None:
        check_callable("generate", "on_step", on_step, ("step",))
    loaded, requests, recipe, settings = _prepare("generate", model, prompt, options, options.get("max_batch_size"))
    finished = generate_ids(loaded, requests, recipe, settings, on_step=on_step, frames=frames)
    in_chat = [*settings.in_chat]
    generations = [replace(generation, chat=in_chat[row]) for row, generation in sorted(finished, key=itemgetter(0))]
    return generations if is_batch(prompt) else generations[0]


def _prepare(
    owner: str, model: Model, prompt: Any, options: DecodeOptions, max_batch_size: int | None = None
) -> tuple[MaskPredictor, list[DecodeRequest], Recipe, DecodeSettings]:
    """Check the options of `generate` or `stream`, load the model and tokenize the prompts."""
    hooks, exceed_max_seq_len = options.get("hooks", Hooks()), options.get("exceed_max_seq_len", False)
    settings = DecodeSettings(hooks, exceed_max_seq_len, max_batch_size=max_batch_size)
    settings.check(owner)
    parts = {name: options.get(name) for name in ("length", "unmask", "commit", "cache", "block", "sampling")}
    sampling: Any = {name: options.get(name) for name in ("temperature", "top_p", "top_k")}
    recipe = Recipe.coerce(options.get("recipe")).with_choices(**parts).with_sampling(**sampling)
    model = as_model(model)
    prompt = with_chat_template(model, prompt, options.get("chat"))
    per_prompt = options.get("max_new_tokens"), options.get("stop"), options.get("seed", 0)
    requests = make_requests(owner, model, tokenize_prompts(model, prompt), *per_prompt)
    return model, requests, recipe, replace(settings, in_chat=prompts_in_chat(prompt))


def generate_ids(
    model: MaskPredictor,
    requests: Sequence[DecodeRequest],
    recipe: Recipe,
    settings: DecodeSettings = DecodeSettings(),
    *,
    on_step: Callable[[Step], None] | None = None,
    frames: bool = False,
) -> Iterator[tuple[int, Generation]]:
    """Yield the index and the answer of each request as soon as the answer is finished."""
    groups = [[*range(len(requests))]]
    if not settings.exceed_max_seq_len:
        groups = group_by_limit(recipe, model, [len(request.prompt_ids) for request in requests])
    if settings.hooks == Hooks():
        settings = replace(settings, max_batch_size=settings.max_batch_size or default_batch_size(model))
    settings = replace(settings, use_cuda_graphs=on_step is None and not frames)
    for rows in groups:
        recorder = FrameRecorder(model.tokenizer, model.ids) if frames else None
        callbacks = [callback for callback in (on_step, recorder) if callback is not None]
        for step in _steps(decode_prompts(model, [requests[row] for row in rows], recipe, settings)):
            for callback in callbacks:
                callback(step)
            for finished in step.finished:
                row = rows[finished.request_id]
                prompt, fallbacks = requests[row].prompt_ids.tolist(), step.graph_fallbacks
                generation = build_generation(model, finished, step.recipe, prompt, graph_fallbacks=fallbacks)
                if recorder is not None:
                    history = recorder.of_row(finished.request_id)
                    prompt_text = decode_text(model.tokenizer, generation.prompt)
                    generation = replace(generation, frames=history, prompt_text=prompt_text)
                yield row, generation


@checks_arguments()
def predict_length(
    model: Model,
    prompt: Prompt | Sequence[Prompt],
    *,
    limit: int | None = None,
    ends: str = "document",
    interpretation: Interpretation | str = Auto(),
    chat: bool | None = None,
    exceed_max_seq_len: bool = False,
) -> LengthDistribution:
    """Predict the length of each prompt's answer from one forward pass over the prompt and `limit` masks.

    By default the limit is `model.default_max_new_tokens`, or the positions left by the longest prompt if fewer.
    `limit`, `ends` and `interpretation` are settings of `Survival`; the paper uses `interpretation=Hazard()`.
    `chat` is the argument of `generate`: whether text goes through the chat template, by default if there is one.

    >>> import lastword
    >>> lastword.predict_length(lastword.load("toy"), "abc", limit=64)
    LengthDistribution(mean 10.5, 50% within 10, 90% within 18, 0.0% beyond 64)
    """
    check_choice("predict_length", "exceed_max_seq_len", exceed_max_seq_len, True, False)
    model = as_model(model)
    prompt = with_chat_template(model, prompt, chat)
    prompts = validate_prompts(tokenize_prompts(model, prompt), model.ids)
    if isinstance(interpretation, str):
        interpretation = parse_part("interpretation", interpretation)
    survival = Survival(limit=limit, ends=ends, interpretation=cast(Interpretation, interpretation))
    recipe = resolve(Recipe(length=survival), model, [max(prompts, key=len)], exceed_max_seq_len=exceed_max_seq_len)
    lengths = cast(Survival, recipe.length).lengths(ModelProbe(model, prompts, exceed_max_seq_len=exceed_max_seq_len))
    return lengths if is_batch(prompt) else lengths.row(0)


def _steps(steps: Iterator[Step]) -> Iterator[Step]:
    """Yield all steps; raise SettingError if there is none."""
    step: Step | None = None
    for step in steps:
        yield step
    if step is None:
        raise SettingError(
            "the tokens hook filled every slot before the first pass, so there was nothing to decode; leave some masks"
        )


def default_batch_size(model: MaskPredictor) -> int:
    """Return the number of rows whose logits, over a canvas of default length, stay under MAX_LOGITS."""
    return min(MAX_BATCH_SIZE, max(1, MAX_LOGITS // (model.ids.vocab_size * model.default_max_new_tokens)))


def as_model(model: Model) -> MaskPredictor:
    """Return a loaded model unchanged; load and return one given by its name or folder."""
    loaded = load(model) if isinstance(model, (str, Path)) else model
    check_model(loaded)
    return loaded


def build_generation(
    model: MaskPredictor, row: FinishedRow, recipe: Recipe, prompt: list[int], *, graph_fallbacks: int = 0
) -> Generation:
    """Return the Generation of a finished row."""
    answer = row.canvas.answer_ids(0)
    tokens, finish = trimmed(row.canvas, answer)
    text = None if model.tokenizer is None else decode_text(model.tokenizer, tokens)
    if row.stop_reason is not None and model.tokenizer is not None:
        decided, finish = decided_prefix(answer, model.ids), Finish.STOPPED
        text = decode_text(model.tokenizer, decided).partition(row.stop_reason)[0]
        tokens = decided[: count_tokens(model.tokenizer, decided, text)]
    report: Any = {field.name: getattr(row, field.name) for field in fields(RowReport)}
    return Generation(
        text=text,
        tokens=tokens,
        canvas=answer,
        prompt=prompt,
        recipe=recipe,
        finish=finish,
        graph_fallbacks=graph_fallbacks,
        **report,
    )


def trimmed(canvas: Canvas, answer: list[int]) -> tuple[list[int], Finish]:
    """Return the token ids of a row's answer before its first end token, and the reason why the row stopped."""
    tokens = list(takewhile(lambda token: token not in canvas.ids.ends, answer))
    if canvas.ids.mask in tokens:
        return tokens, Finish.MASKS_LEFT
    return tokens, Finish.ENDED if bool(canvas.ended.any()) else Finish.TRUNCATED


@checks_arguments(DecodeOptions)
def stream(model: Model, prompt: Prompt, **options: Unpack[DecodeOptions]) -> Iterator[Frame]:
    """Generate the answer to one prompt and yield a Frame after every pass.

    Options are those of `generate` except `on_step`, `max_batch_size` and `frames`. The first frame is the planned
    canvas without text, the last one has the whole answer. Decoding advances when the next frame is requested.

    >>> import lastword
    >>> for frame in lastword.stream(lastword.load("toy"), "abc", length="fixed:3"):
    ...     print(frame.forward_passes, "".join(text or "_" for text in frame.texts), frame.filled_at)
    0 ___ (None, None, None)
    1 d__ (1, None, None)
    2 de_ (1, 2, None)
    3 def (1, 2, 3)
    """
    if is_batch(prompt):
        raise PromptError(
            f"stream was given {len(prompt)} prompts and takes one; for several, keep the frames with "
            "generate(..., frames=True)"
        )
    loaded, requests, recipe, settings = _prepare("stream", model, prompt, options)
    (request,), trace = requests, BatchTrace(loaded.tokenizer, loaded.ids)
    steps = _steps(decode_prompts(loaded, requests, recipe, settings))
    return (_cut_at_stop(frame, request.stop) for step in steps for _, frame in trace.of(step))


def _cut_at_stop(frame: Frame, stop: Sequence[str]) -> Frame:
    """Return a frame whose text ends before the stop string that is complete first."""
    match = find_stop(frame.text, stop)
    return frame if match is None else replace(frame, text=match[0])
