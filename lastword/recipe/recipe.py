"""Recipe: the choices of a decoding as one value."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.cache import Cache, NoCache
from lastword.canvas.canvas import Canvas
from lastword.canvas.clock import Clock
from lastword.checks import check_whole
from lastword.commit import CommitRule, Never
from lastword.errors import RecipeError, SettingError
from lastword.length import Calibrated, LengthPolicy
from lastword.length.within import within
from lastword.length.wrapper import Wrapper
from lastword.models.native import USUAL_SLOTS
from lastword.models.weights import model_key
from lastword.passes.sampling import Sampling
from lastword.recipe.composition import check_composition
from lastword.recipe.names import PARTS, as_data, as_text, from_data, known_fields, part
from lastword.recipe.names import default_length as default_length  # for others to import from here
from lastword.unmask import MostConfident, UnmaskRule

BLOCK = 32  # slots, where blocks are needed and their size was not said; the LLaDA authors' own


def slots_of(model: object) -> int:
    """The canvas a model is made for, 1024 where it does not say."""
    return int(getattr(model, "slots", USUAL_SLOTS))


@dataclass(frozen=True)
class Recipe:
    """A row of a results table, a server setting, a JSON field.

    `block=None` is one block for the whole answer, or blocks of 32 where a part works by block: a length
    that acts between them, as the default one does, or a cache that keeps what lies outside of one.
    """

    length: LengthPolicy = default_length()
    unmask: UnmaskRule = MostConfident()
    commit: CommitRule = Never()
    cache: Cache = NoCache()
    block: int | None = None
    sampling: Sampling = Sampling()

    def __post_init__(self) -> None:
        kinds = {
            "length": LengthPolicy,
            "unmask": UnmaskRule,
            "commit": CommitRule,
            "cache": Cache,
            "sampling": Sampling,
        }
        for axis, kind in kinds.items():
            part = getattr(self, axis)
            if not isinstance(part, kind):
                raise SettingError(
                    f"{axis}={part!r} was given; it must be one of "
                    f"{', '.join(cls.__name__ for cls in PARTS[axis].values())}"
                )
        if self.block is not None:
            check_whole("Recipe", "block", self.block, least=1)
        check_composition(self)

    @classmethod
    def checked(cls, recipe: object) -> Recipe:
        """The recipe, or the default for None; anything else is a mistake."""
        if recipe is not None and not isinstance(recipe, Recipe):
            raise SettingError(
                f"recipe={recipe!r} was given; it must be a Recipe: read a saved one with "
                "Recipe.from_json, or give single parts by name (length='survival')"
            )
        return recipe or cls()

    @property
    def block_slots(self) -> int | None:
        """Slots of a block as decoding takes them; None is the whole answer."""
        needed = self.cache.by_block or any(p.needs_blocks for p in self.length.layers())
        return BLOCK if self.block is None and needed else self.block

    def reads(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        """What a pass must read beside the open masks: nothing, or as much of the answer as it can.

        A policy that resizes at any time is heard, under a cache that keeps by block, where a block
        opens: within one every resize would cost a full pass and give the cache nothing to keep.
        """
        if not (self.length.reads_answer or self.commit.reads_answer):
            return torch.zeros_like(canvas.answer)
        readable = self.cache.readable(canvas, clock)
        if self.cache.by_block and self.length.resizes == "any time":
            readable = readable & clock.opening[:, None]
        return canvas.unfinished & readable

    def fitted(self, model: object, in_chat: Collection[bool | None] = ()) -> Recipe:
        """This recipe for a model, which may have been calibrated (`model.calibration`).

        The default length probes and grows to the slots that the model is made for (`model.slots`). Where
        those are fewer than usual, so does any other whose limit was left as it comes.
        `in_chat` says of the prompts to come whether they go through the chat template, None where
        nobody knows (`prompts.asked_in_chat`).
        """
        sized = _sized(self.length, slots_of(model))
        if sized != self.length:
            return dataclasses.replace(self, length=sized).fitted(model, in_chat)
        calibration: Any = getattr(model, "calibration", None)
        length = self.length.fitted(calibration)
        for policy in length.layers():
            if isinstance(policy, Calibrated):
                raise SettingError(
                    f"{type(length).__name__} was put around Calibrated and does not pass on what the model "
                    "was calibrated to; give it a method `fitted`, as lastword.length.wrapper.Wrapper has"
                )
        if length == self.length:
            return self
        calibration.check(model_key(model), "the model's calibration")
        self._check_decodes_as(calibration.made_with.get("recipe"))
        _check_asked_as(calibration.made_with.get("chat"), in_chat)
        return dataclasses.replace(self, length=length)

    def _check_decodes_as(self, made_with: Any) -> None:
        """Refuse lengths of answers that were decoded otherwise."""
        if made_with is None:  # made by hand; it is taken at its word
            return
        then = Recipe.from_json(json.dumps(made_with))
        axes = {
            "unmask": "unmask",
            "commit": "commit",
            "block_slots": "block",
            "sampling": "sampling",
        }
        other = [axis for axis in axes if getattr(then, axis) != getattr(self, axis)]
        if other:
            theirs, ours = (
                ", ".join(
                    f"{axes[axis]} {as_text(getattr(recipe, axis))}" for axis in other
                ).replace("block null", "no block")
                for recipe in (then, self)
            )
            raise SettingError(
                f"the model was calibrated on answers decoded with {theirs}, and this recipe has {ours}, by "
                "which answers may come out longer: decode with the former, or calibrate for this recipe "
                "(lastword.calibrate(..., recipe=...), lastword calibrate --recipe FILE)"
            )

    def most_passes(self, slots: int) -> int:
        """The most passes that decoding so many slots takes, whatever the model says.

        A canvas that grows may open any number of windows, down to one mask each.
        """
        passes = self.unmask.most_passes
        if any(policy.grows for policy in self.length.layers()):
            most = slots * passes(1)
        else:
            block = min(self.block_slots or slots, slots)
            rest = slots % block
            most = slots // block * passes(block) + (passes(rest) if rest else 0)
        # Masks a model proposes are chosen again until it fills one or is given up on.
        return most + slots if self.sampling.propose_mask else most

    def with_choices(self, **choices: Any) -> Recipe:
        """This recipe with some choices replaced; text is looked up by name, None changes nothing."""
        unknown = sorted(set(choices) - {field.name for field in dataclasses.fields(self)})
        if unknown:
            raise SettingError(f"a recipe has no setting {unknown[0]!r}; known: {', '.join(PARTS)}")
        return dataclasses.replace(
            self,
            **{
                name: part(name, choice) if isinstance(choice, str) and name in PARTS else choice
                for name, choice in choices.items()
                if choice is not None
            },
        )

    def label(self) -> str:
        """The choices in a line, as the command line takes them; usual ones are left out.

        >>> from lastword import AboveThreshold, Survival
        >>> Recipe(length=Survival(256), unmask=AboveThreshold(0.9), block=32).label()
        'survival:256, threshold, block 32'
        """
        usual = Recipe()
        axes = ("unmask", "commit", "cache", "sampling")
        parts = [self.length, *(p for a in axes if (p := getattr(self, a)) != getattr(usual, a))]
        block = [f"block {self.block}"] if self.block else []
        return ", ".join([*map(as_text, parts), *block])

    def to_json(self) -> str:
        return json.dumps(
            {f.name: as_data(getattr(self, f.name)) for f in dataclasses.fields(self)}
        )

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        try:
            data = json.loads(text)
        except ValueError as broken:
            raise RecipeError(f"the recipe is not JSON ({broken})") from broken
        if not isinstance(data, dict):
            raise RecipeError(f"the recipe is a JSON {type(data).__name__}; it must be an object")
        return cls(
            **{name: from_data(name, value) for name, value in known_fields(cls, data).items()}
        )


def _sized(length: LengthPolicy, slots: int) -> LengthPolicy:
    """The default length, wherever it stands, on so many slots; others on no more, if that is unusual."""
    if length == default_length():
        return default_length(slots)
    if isinstance(length, Wrapper):
        said = getattr(length, "limit", None) is not None  # for what is inside as well
        return length if said else dataclasses.replace(length, length=_sized(length.length, slots))
    return within(length, slots, where_unsaid=True) if slots < USUAL_SLOTS else length


def _check_asked_as(then: bool | None, now: Collection[bool | None]) -> None:
    """Refuse lengths of answers to prompts that were laid out otherwise."""
    if then is None or (not then) not in now:  # an old file, or one of ids, does not say
        return
    chat, plain = "chat messages", "plain text"
    as_then, as_now = (chat, plain) if then else (plain, chat)
    raise SettingError(
        f"the model was calibrated on prompts given as {as_then}, and this prompt is {as_now}, to which "
        "answers may come out longer: ask as it was calibrated (on the command line --chat wraps text in "
        "the chat template), or calibrate on prompts like this one"
    )
