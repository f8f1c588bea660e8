"""Calibration data: observed answer lengths divided by predicted lengths."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, Field

from lastword.errors import CheckpointError, SettingError
from lastword.io.schema import STRICT, PositiveSlots, SlotCount, Text, read_json_object, validate
from lastword.survival.conformal import conformal_quantile, required_factor
from lastword.survival.estimate import Cheapest, Mean, Quantile, Scaled
from lastword.survival.interpretation import (
    Auto,
    Boundary,
    EndedBy,
    FirstBoundary,
    Hazard,
    Interpretation,
    TurnEnd,
)
from lastword.validation import (
    MAX_NUMBER,
    MAX_SLOTS,
    check_choice,
    check_int,
    check_list,
    check_number,
    check_type,
)

INTERPRETATIONS: dict[str, type[Interpretation]] = {
    cls.name: cls for cls in (Hazard, EndedBy, Boundary, FirstBoundary, TurnEnd, Auto)
}
ESTIMATES: dict[str, type[Mean | Quantile | Cheapest]] = {cls.name: cls for cls in (Mean, Quantile, Cheapest)}
FILE_NAME = "lengths.json"
ALL_FAMILIES = "all"  # every answer, whatever its family


def check_families(families: Iterable[object]) -> None:
    """Names, or None for an answer of no family."""
    for family in families:
        if family is not None and (not isinstance(family, str) or family == ALL_FAMILIES):
            raise SettingError(
                f"a family called {family!r} was given; a family is text, or None, and {ALL_FAMILIES!r} is "
                "what all answers together are called: give it another name"
            )


@dataclass(frozen=True)
class Ratios:
    """What predictions had to be multiplied with for their answers to fit, smallest first; answers cut.

    Of a cut answer only a lower bound is known. It counts as longer than any that ended: a bound
    that would fall among them is not known, one below them holds as it would have.
    """

    ended: tuple[float, ...]
    truncated: int = 0

    def __post_init__(self) -> None:
        check_list("Ratios", "ended", self.ended, "a tuple of numbers")
        for ratio in self.ended:
            check_number("Ratios", "ended", ratio, above=0)
        check_int("Ratios", "truncated", self.truncated, minimum=0)
        if not self.ended and not self.truncated:
            raise SettingError("Ratios(()) was given; at least one answer must have been finished or cut")
        object.__setattr__(self, "ended", tuple(sorted(self.ended)))

    def __len__(self) -> int:
        return len(self.ended) + self.truncated

    def factor(self, coverage: float) -> float:
        """What to multiply a prediction with so that a share `coverage` of new answers fits."""
        every = [*self.ended, *[math.inf] * self.truncated]
        factor = conformal_quantile(every, coverage)
        if math.isinf(factor):
            raise SettingError(
                f"{self.truncated} of the {len(every)} answers this was calibrated on were cut before their "
                f"end, so no bound that covers {coverage:.0%} is known: calibrate again with a larger limit, "
                "or ask for less coverage"
            )
        return factor

    @property
    def scale(self) -> float:
        """The middle one: 1.2 says that half of the answers needed a fifth more than was predicted."""
        middle = [*self.ended, *[math.inf] * self.truncated]
        return middle[(len(middle) - 1) // 2]


@dataclass(frozen=True)
class Calibration:
    """Ratios of observed to predicted lengths by task family, for one model and one length prediction.

    `model_key` identifies the model (`models.weights.model_key`); `limit`, `ends` and `interpretation` are
    the settings of Survival; `estimate` is the denominator of the ratios. The ratios themselves are stored,
    so every coverage that they suffice for can be computed. `made_with["recipe"]` is the recipe that decoded
    the answers; only a recipe with the same unmask rule, block, commit rule and sampling may use them. If
    `made_with["chat"]` is set, prompts must use the chat template (or not) in the same way.
    """

    model_key: str
    limit: int
    interpretation: Interpretation
    estimate: Mean | Quantile | Cheapest
    families: Mapping[str, Ratios]
    ends: str = "document"
    made_with: Mapping[str, Any] = field(default_factory=dict)  # versions, recipe, coverage asked

    def __post_init__(self) -> None:
        kinds: dict[str, tuple[type | tuple[type, ...], str]] = {
            "model_key": (str, "what lastword.models.weights.model_key says of the model"),
            "interpretation": (Interpretation, f"one of {', '.join(INTERPRETATIONS)}"),
            "estimate": ((Mean, Quantile, Cheapest), "Mean(), Quantile() or Cheapest()"),
            "families": (Mapping, "Ratios by name"),
            "made_with": (Mapping, "a mapping"),
        }
        for name, (kind, wanted) in kinds.items():
            check_type("Calibration", name, getattr(self, name), kind, wanted)
        for ratios in self.families.values():
            check_type("Calibration", "families", ratios, Ratios, "Ratios by name")
        check_int("Calibration", "limit", self.limit, minimum=1)
        check_choice("Calibration", "ends", self.ends, "document", "any")
        if ALL_FAMILIES not in self.families:
            raise SettingError(f"a calibration has ratios of {ALL_FAMILIES!r} answers; this one has none")

    @classmethod
    def from_answers(
        cls,
        predicted: Sequence[float],
        finished: Sequence[int | None],
        families: Sequence[str | None],
        **settings: Any,
    ) -> Calibration:
        """From a prediction, a finished length (None: cut) and perhaps a family for each answer."""
        pairs = list(zip(predicted, finished, families, strict=True))
        named = {family for *_, family in pairs if family is not None}
        check_families(named)
        ratios = {}
        for name in (ALL_FAMILIES, *sorted(named)):
            mine = [(guess, length) for guess, length, family in pairs if name in (ALL_FAMILIES, family)]
            ended = tuple(required_factor(guess, n) for guess, n in mine if n is not None)
            ratios[name] = Ratios(ended, len(mine) - len(ended))
        return cls(families=ratios, **settings)

    def bound(self, coverage: float, family: str | None = None) -> Scaled:
        """The estimate times the factor of this family and coverage."""
        name = ALL_FAMILIES if family is None else family
        if name not in self.families:
            known = ", ".join(self.families)
            raise SettingError(
                f"no answers of the family {name!r} were calibrated on; known: {known}. Leave the family "
                "out, or calibrate on prompts that name it"
            )
        return Scaled(self.families[name].factor(coverage), self.estimate)

    def check_model(self, model_key: str, source: object) -> None:
        """Refuse it for another model."""
        if model_key != self.model_key:
            raise CheckpointError(
                f"{source} was learnt from other weights (or another dtype or end tokens): it was made "
                f"for {self.model_key}, the model is {model_key}. Run lastword calibrate again, or load "
                "without it (calibration=None, on the command line --calibration none)"
            )

    def to_json(self) -> str:
        if INTERPRETATIONS.get(self.interpretation.name) is not type(self.interpretation):
            raise SettingError(
                f"{self.interpretation!r} is not a built-in interpretation, so a file could not be read back"
            )
        estimate = {f.name: getattr(self.estimate, f.name) for f in fields(self.estimate)}
        data = {
            "model_key": self.model_key,
            "limit": self.limit,
            "ends": self.ends,
            "interpretation": self.interpretation.name,
            "estimate": {"name": self.estimate.name, **estimate},
            "made_with": dict(self.made_with),
            "families": {
                name: {
                    "truncated": ratios.truncated,
                    "ended": [float(f"{ratio:.12g}") for ratio in ratios.ended],
                }
                for name, ratios in self.families.items()
            },
        }
        return json.dumps(data, indent=1)

    @classmethod
    def from_file(cls, path: Path) -> Calibration:
        """From a file; whatever is wrong with it is said with its name."""
        try:
            file = validate(_File, read_json_object(path))
            estimate = ESTIMATES[file.estimate.name]
            return cls(
                model_key=file.model_key,
                limit=file.limit,
                ends=file.ends,
                interpretation=INTERPRETATIONS[file.interpretation](),
                estimate=estimate(**file.estimate.model_extra or {}),
                made_with=file.made_with.model_dump(exclude_unset=True),
                families={
                    name: Ratios(tuple(data.ended), data.truncated) for name, data in file.families.items()
                },
            )
        except (OSError, ValueError, TypeError, SettingError) as wrong:
            raise CheckpointError(
                f"{path} is no calibration ({wrong}); make one with lastword calibrate, or delete it"
            ) from wrong


def _one_of(known: Collection[str]) -> AfterValidator:
    """A name we know."""

    def check(name: str) -> str:
        if name not in known:
            raise ValueError(f"it should be one of {', '.join(known)}")
        return name

    return AfterValidator(check)


class _Ratios(BaseModel):
    """Of a family, as a file has them."""

    model_config = STRICT
    ended: Annotated[list[Annotated[float, Field(gt=0, le=MAX_NUMBER)]], Field(max_length=MAX_SLOTS)]
    truncated: SlotCount = Field(validation_alias=AliasChoices("truncated", "cut"))


class _Estimate(BaseModel):
    """An estimate, which checks its own fields."""

    model_config = {**STRICT, "extra": "allow"}
    name: Annotated[Text, _one_of(ESTIMATES)]


class _MadeWith(BaseModel):
    """What we read of it; the rest is for people."""

    model_config = {**STRICT, "extra": "allow"}
    recipe: dict[str, Any] | None = None  # its parts check it where it is compared
    chat: bool | None = None


class _File(BaseModel):
    """A lengths.json; files written before 0.2 have the second name of a field."""

    model_config = STRICT
    model_key: Text = Field(validation_alias=AliasChoices("model_key", "weights"))
    limit: PositiveSlots
    ends: Literal["document", "any"]
    interpretation: Annotated[Text, _one_of(INTERPRETATIONS)] = Field(
        validation_alias=AliasChoices("interpretation", "reading")
    )
    estimate: _Estimate
    made_with: _MadeWith = _MadeWith()
    families: Annotated[dict[Text, _Ratios], Field(min_length=1, max_length=10_000)]
