"""watch: an answer as it is made, a frame a pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lastword.cache import Cache
from lastword.checks import check_choice
from lastword.commit import CommitRule
from lastword.decoding import Step, decode
from lastword.errors import PromptError, SettingError
from lastword.generation import Model, loaded
from lastword.length import LengthPolicy
from lastword.passes.dice import Dice, checked_seed
from lastword.passes.hooks import Hooks
from lastword.passes.sampling import Sampling
from lastword.prompts import Prompt, as_batch, asked_in_chat, is_batch
from lastword.recipe.recipe import Recipe
from lastword.replay.frames import Frame
from lastword.replay.steps import Traces
from lastword.unmask import UnmaskRule

__all__ = ["watch"]


def watch(
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
    beyond_positions: bool = False,
) -> Iterator[Frame]:
    """Answer one prompt and show it after every pass; choices are those of `generate`.

    The first frame is the empty canvas that was planned, the last one has the whole answer. Decoding goes on
    only while somebody asks for the next frame: whoever stops asking has stopped it.

    >>> import lastword
    >>> for frame in lastword.watch(lastword.load("toy"), "abc", length="fixed:3"):
    ...     print(frame.passes, "".join(text or "_" for text in frame.texts), frame.fixed)
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
    check_choice("watch", "beyond_positions", beyond_positions, True, False)
    first = checked_seed("watch", seed)
    model = loaded(model)
    if is_batch(prompt):
        raise PromptError(
            f"watch was given {len(prompt)} prompts and shows one; watch one, or keep the frames of all "
            "with generate(..., frames=True)"
        )
    steps = decode(
        model,
        as_batch(model, prompt),
        Recipe.checked(recipe).with_choices(**choices),
        dice=Dice([first], model.device),
        hooks=hooks,
        beyond_positions=beyond_positions,
        in_chat=asked_in_chat(prompt),
    )
    return _frames(steps, Traces(model.tokenizer, model.ids))


def _frames(steps: Iterator[Step], traces: Traces) -> Iterator[Frame]:
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
