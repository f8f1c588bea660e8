"""Text in, text out: tokenise, decode, trim, report."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import Tensor

from lastword.canvas import Canvas
from lastword.decode import ModelProbe, Step, decode
from lastword.errors import PromptError, SettingError
from lastword.hooks import Hooks
from lastword.length import Survival
from lastword.models.predictor import MaskPredictor
from lastword.recipe import Recipe, part
from lastword.sampling import Dice
from lastword.survival import LengthDistribution

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Tensor | Sequence[Message]


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


@dataclass(frozen=True, eq=False)
class Generation:
    """One answer and what it cost."""

    text: str | None  # None for a model without a tokenizer
    tokens: list[int]  # up to the first end token, which is left out
    canvas: list[int]  # the whole answer canvas, end tokens and what follows included
    prompt: list[int]
    horizon: int
    lengths: LengthDistribution | None  # what the probe said, if the policy read one
    probe_cost: dict[str, int]
    cost: dict[str, int]
    seconds: float  # until this row was done, probe included
    finish: Finish

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        lengths = self.lengths
        return {
            "text": self.text,
            "tokens": self.tokens,
            "prompt_tokens": len(self.prompt),
            "horizon": self.horizon,
            "expected_length": None if lengths is None else lengths.mean.item(),
            "tail": None if lengths is None else lengths.tail.item(),
            "probe_cost": self.probe_cost,
            "cost": self.cost,
            "seconds": round(self.seconds, 6),
            "finish": self.finish.name.lower(),
        }


def generate(
    model: MaskPredictor,
    prompt: Prompt | Sequence[Prompt],
    *,
    recipe: Recipe | None = None,
    hooks: Hooks = Hooks(),
    seed: int | Sequence[int] = 0,
    beyond_positions: bool = False,
    **choices: Any,
) -> Any:
    """Answer a prompt, or a batch of them: one Generation for one prompt, a list for a list.

    A prompt is text, chat messages ([{"role": ..., "content": ...}]) or token ids. The choices
    (`length`, `unmask`, `commit`, `cache`, `block`, `sampling`) are parts or their names, and
    override `recipe`. Rows of a batch may differ in prompt and horizon; each equals its solo run.
    A whole-number `seed` gives row i the seed + i.

    >>> import lastword
    >>> answer = lastword.generate(lastword.load("toy"), "abc", length="fixed:5")
    >>> answer.text, answer.horizon, answer.cost["passes"]
    ('defgh', 5, 5)
    """
    batch = as_batch(model, prompt)
    steps = decode(
        model,
        batch,
        with_choices(recipe or Recipe(), choices),
        dice=Dice(_seeds(seed, len(batch)), model.device),
        hooks=hooks,
        beyond_positions=beyond_positions,
    )
    answers = finished(model, batch, steps)
    return answers if is_batch(prompt) else answers[0]


def finished(
    model: MaskPredictor, prompts: list[list[int]], steps: Iterable[Step]
) -> list[Generation]:
    """Run the steps to their end and report each row."""
    began = time.perf_counter()
    done_at: dict[int, float] = {}
    step: Step | None = None
    for step in steps:
        for row in (~step.canvas.masked.any(-1)).nonzero()[:, 0].tolist():
            done_at.setdefault(row, time.perf_counter() - began)
    if step is None:
        raise SettingError("nothing was decoded: the tokens hook filled every slot by itself")
    total = time.perf_counter() - began
    return [
        _generation(model, step, row, prompt, done_at.get(row, total))
        for row, prompt in enumerate(prompts)
    ]


def predict_length(
    model: MaskPredictor,
    prompt: Prompt | Sequence[Prompt],
    *,
    limit: int = 1024,
    beyond_positions: bool = False,
    **settings: Any,
) -> LengthDistribution:
    """How long the answer will be, from one forward pass over `limit` masks; a row per prompt.

    `settings` are those of `Survival`, for example `ends="any"`.
    """
    batch = as_batch(model, prompt)
    probe = ModelProbe(model, batch, Dice([0] * len(batch)), beyond_positions=beyond_positions)
    return Survival(limit=limit, **settings).lengths(probe)


def with_choices(recipe: Recipe, choices: Mapping[str, Any]) -> Recipe:
    """The recipe with some choices replaced; text is looked up by name."""
    data = {name: getattr(recipe, name) for name in recipe.__dataclass_fields__}
    unknown = sorted(set(choices) - set(data))
    if unknown:
        raise SettingError(f"generate has no setting {unknown[0]!r}; known: {', '.join(data)}")
    for name, choice in choices.items():
        data[name] = part(name, choice) if isinstance(choice, str) and name != "block" else choice
    return Recipe(**data)


def is_batch(prompt: Any) -> bool:
    """Is this a list of prompts, rather than one prompt that happens to be a list?"""
    if isinstance(prompt, (str, Mapping)):
        return False
    if isinstance(prompt, Tensor):
        return prompt.dim() == 2
    return bool(prompt) and not isinstance(prompt[0], (int, Mapping))


def as_batch(model: MaskPredictor, prompt: Any) -> list[list[int]]:
    """Any prompt as a checked list of id lists."""
    prompts = list(prompt) if is_batch(prompt) else [prompt]
    return [_checked(model, _ids(model, one), place) for place, one in enumerate(prompts)]


def _ids(model: MaskPredictor, prompt: Any) -> list[int]:
    tokenizer = getattr(model, "tokenizer", None)
    if isinstance(prompt, Tensor):
        return prompt.tolist()
    if isinstance(prompt, Mapping):
        prompt = [prompt]
    is_text = isinstance(prompt, str)
    if not is_text and not (prompt and isinstance(prompt[0], Mapping)):
        return list(prompt)
    if tokenizer is None:
        raise PromptError(
            "this checkpoint came without a tokenizer, so it cannot read text; "
            "give the prompt as a list of token ids"
        )
    return tokenizer.encode(prompt) if is_text else tokenizer.chat(prompt)


def _checked(model: MaskPredictor, ids: list[int], place: int) -> list[int]:
    known = model.ids
    if not ids:
        raise PromptError(f"prompt {place} is empty; give it at least one token")
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool):
            raise PromptError(
                f"prompt {place} holds {token!r}, a {type(token).__name__}; give text, chat messages "
                "or whole-number token ids"
            )
        if not 0 <= token < known.vocabulary:
            raise PromptError(
                f"prompt {place} holds id {token}, outside the vocabulary of {known.vocabulary} ids; "
                "was it encoded for another model?"
            )
        if token == known.mask:
            raise PromptError(
                f"prompt {place} holds the mask token (id {known.mask}), which decoding would fill in; "
                "remove it from the prompt"
            )
    return ids


def _seeds(seed: int | Sequence[int], rows: int) -> list[int]:
    seeds = [seed + row for row in range(rows)] if isinstance(seed, int) else list(seed)
    if len(seeds) != rows:
        raise SettingError(f"{len(seeds)} seeds were given for {rows} prompts; give one each")
    return seeds


def _generation(
    model: MaskPredictor, step: Step, row: int, prompt: list[int], seconds: float
) -> Generation:
    canvas = step.canvas.answer_of(row)
    tokens, finish = trimmed(step.canvas, canvas)
    tokenizer = getattr(model, "tokenizer", None)
    lengths = step.plan.lengths
    return Generation(
        text=None if tokenizer is None else tokenizer.decode(tokens),
        tokens=tokens,
        canvas=canvas,
        prompt=prompt,
        horizon=len(canvas),
        lengths=None if lengths is None else lengths.row(row),
        probe_cost=step.probe_cost.row(row),
        cost=step.cost.row(row),
        seconds=seconds,
        finish=finish,
    )


def trimmed(canvas: Canvas, answer: list[int]) -> tuple[list[int], Finish]:
    """The answer up to its first end token, and why it stopped."""
    for place, token in enumerate(answer):
        if token in canvas.ids.ends:
            return answer[:place], Finish.ENDED
    left = canvas.ids.mask in answer
    return answer, Finish.MASKS_LEFT if left else Finish.TRUNCATED
