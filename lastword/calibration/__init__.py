"""Calibration data: observed answer lengths divided by predicted lengths, and the file that stores them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, Field

from lastword.errors import CheckpointError, SettingError
from lastword.io.files import user_path
from lastword.io.schema import STRICT, PositiveSlots, SlotCount, Text, read_json_object, validate
from lastword.survival.conformal import conformal_quantile, required_factor
from lastword.survival.distribution import Cheapest, Mean, Quantile, Scaled
from lastword.survival.interpretation import Auto, Boundary, EndedBy, FirstBoundary, Hazard, Interpretation, TurnEnd
from lastword.validation import MAX_NUMBER, MAX_SLOTS, check_choice, check_int, check_list, check_number, check_type

INTERPRETATIONS: dict[str, type[Interpretation]] = {
    cls.name: cls for cls in (Hazard, EndedBy, Boundary, FirstBoundary, TurnEnd, Auto)
}
ESTIMATES: dict[str, type[Mean | Quantile | Cheapest]] = {cls.name: cls for cls in (Mean, Quantile, Cheapest)}
FILE_NAME = "lengths.json"
ALL_FAMILIES = "all"  # the family that stands for all answers


@dataclass(frozen=True)
class Ratios:
    """Needed length divided by predicted length for each answer that ended, and the number of truncated answers.

    The needed length of a truncated answer is unknown and counts as longer than every known one: a quantile that
    falls among truncated answers is refused, and any lower quantile is exact.
    """

    ended: tuple[float, ...]  # in ascending order
    truncated: int = 0  # number of truncated answers

    def __post_init__(self) -> None:
        check_list("Ratios", "ended", self.ended, "a tuple of numbers")
        for ratio in self.ended:
            check_number("Ratios", "ended", ratio, above=0)
        check_int("Ratios", "truncated", self.truncated, minimum=0)
        if not self.ended and not self.truncated:
            raise SettingError("Ratios(()) was given; give at least one ratio or one truncated answer")
        object.__setattr__(self, "ended", tuple(sorted(self.ended)))

    def __len__(self) -> int:
        return len(self.ended) + self.truncated

    def factor(self, coverage: float) -> float:
        """Return the factor that makes predictions suffice for a share `coverage` of answers, or raise SettingError."""
        factor = conformal_quantile([*self.ended, *[math.inf] * self.truncated], coverage)
        if math.isinf(factor):
            raise SettingError(
                f"{self.truncated} of the {len(self)} answers of this calibration were truncated, so no bound that "
                f"covers {coverage:.0%} is known: calibrate again with a larger limit (--slots), or use a lower "
                "coverage"
            )
        return factor

    @property
    def scale(self) -> float:
        """The median ratio; if it is 1.2, half of the answers needed 1.2 times the prediction or more."""
        return [*self.ended, *[math.inf] * self.truncated][(len(self) - 1) // 2]


@dataclass(frozen=True)
class Calibration:
    """Ratios of observed to predicted lengths by task family, for one model and one length prediction.

    `model_key` identifies the model (`models.weights.model_key`); `limit`, `ends` and `interpretation` are
    the settings of Survival; `estimate` is the denominator of the ratios. The ratios themselves are stored, so
    factors for different coverages can be computed. `made_with["recipe"]` is the recipe that decoded the
    answers; only a recipe with the same unmask rule, block, commit rule and sampling may use the calibration.
    If `made_with["chat"]` is True, prompts must use the chat template; if it is False, they must not.
    """

    model_key: str
    limit: int
    interpretation: Interpretation
    estimate: Mean | Quantile | Cheapest
    families: Mapping[str, Ratios]
    ends: str = "document"
    made_with: Mapping[str, Any] = field(default_factory=dict)  # versions, recipe, requested coverage

    def __post_init__(self) -> None:
        kinds: dict[str, tuple[type | tuple[type, ...], str]] = {
            "model_key": (str, "the result of lastword.models.weights.model_key"),
            "interpretation": (Interpretation, f"one of {', '.join(INTERPRETATIONS)}"),
            "estimate": ((Mean, Quantile, Cheapest), "Mean(), Quantile() or Cheapest()"),
            "families": (Mapping, "Ratios by name"),
            "made_with": (Mapping, "a mapping"),
        }
        for name, (kind, expected) in kinds.items():
            check_type("Calibration", name, getattr(self, name), kind, expected)
        for ratios in self.families.values():
            check_type("Calibration", "families", ratios, Ratios, "Ratios by name")
        check_int("Calibration", "limit", self.limit, minimum=1)
        check_choice("Calibration", "ends", self.ends, "document", "any")
        if ALL_FAMILIES not in self.families:
            raise SettingError(f"families has no {ALL_FAMILIES!r}; add the ratios of all answers together")

    @classmethod
    def from_answers(
        cls, predicted: Sequence[float], finished: Sequence[int | None], families: Sequence[str | None], **settings: Any
    ) -> Calibration:
        """Return a calibration, given each answer's predicted length, length (None: truncated) and family."""
        answers = list(zip(predicted, finished, families, strict=True))
        ratios = {}
        for name in (ALL_FAMILIES, *sorted({family for family in families if family is not None})):
            lengths = [(guess, length) for guess, length, family in answers if name in (ALL_FAMILIES, family)]
            ended = tuple(required_factor(guess, length) for guess, length in lengths if length is not None)
            ratios[name] = Ratios(ended, len(lengths) - len(ended))
        return cls(families=ratios, **settings)

    def bound(self, coverage: float, family: str | None = None) -> Scaled:
        """Return the estimate, scaled to cover a share `coverage` of a family's answers (None: of all)."""
        name = ALL_FAMILIES if family is None else family
        if name not in self.families:
            raise SettingError(
                f"this calibration has no answers of the family {name!r}; known: {', '.join(self.families)}. "
                "Omit the family, or calibrate on prompts of it"
            )
        return Scaled(self.families[name].factor(coverage), self.estimate)

    def check_model(self, model_key: str, source: object) -> None:
        """Raise CheckpointError unless this calibration was made for the model."""
        if model_key != self.model_key:
            raise CheckpointError(
                f"{source} was made for other weights (or another dtype or end tokens): its model is "
                f"{self.model_key}, the loaded model is {model_key}. Run lastword calibrate again, or load "
                "without it (calibration=None, on the command line --calibration none)"
            )

    def to_json(self) -> str:
        """Return the calibration as the text of a lengths.json file."""
        if INTERPRETATIONS.get(self.interpretation.name) is not type(self.interpretation):
            raise SettingError(
                f"{self.interpretation!r} is not a built-in interpretation, so a file could not be read back"
            )
        data = {
            "model_key": self.model_key,
            "limit": self.limit,
            "ends": self.ends,
            "interpretation": self.interpretation.name,
            "estimate": {"name": self.estimate.name, **asdict(self.estimate)},
            "made_with": dict(self.made_with),
            "families": {
                name: {"truncated": ratios.truncated, "ended": [float(f"{n:.12g}") for n in ratios.ended]}
                for name, ratios in self.families.items()
            },
        }
        return json.dumps(data, indent=1)

    @classmethod
    def from_file(cls, path: Path) -> Calibration:
        """Return the calibration in a lengths.json file; raise CheckpointError if the file is invalid."""
        try:
            fields = validate(_File, read_json_object(path)).model_dump(exclude_unset=True)
            estimate = fields.pop("estimate")
            fields["estimate"] = ESTIMATES[estimate.pop("name")](**estimate)
            fields["interpretation"] = INTERPRETATIONS[fields["interpretation"]]()
            fields["families"] = {name: Ratios(**ratios) for name, ratios in fields["families"].items()}
            return cls(**fields)
        except (OSError, ValueError, TypeError, SettingError) as error:
            raise CheckpointError(
                f"{path} is not a calibration ({error}); make one with lastword calibrate, or delete it"
            ) from error


def saved_path(key: str) -> Path:
    """Return the file for the calibration of a model without a folder, identified by its `model_key`."""
    home = os.environ.get("LASTWORD_HOME") or Path("~/.cache/lastword")
    return user_path(home) / "calibrations" / f"{key}.json"


def find_saved(key: Callable[[], str]) -> Calibration | None:
    """Return the calibration at `saved_path`, or None; the key is computed only if there are calibrations."""
    if not saved_path("").parent.is_dir():
        return None
    path = saved_path(key())
    return Calibration.from_file(path) if path.is_file() else None


class _Ratios(BaseModel):
    model_config = STRICT
    ended: Annotated[list[Annotated[float, Field(gt=0, le=MAX_NUMBER)]], Field(max_length=MAX_SLOTS)]
    truncated: SlotCount = Field(validation_alias=AliasChoices("truncated", "cut"))


class _Estimate(BaseModel):
    model_config = STRICT
    name: Literal["mean", "quantile", "cheapest"]
    # The class of the estimate checks its settings.
    q: float | None = None
    truncation_cost: float | None = Field(None, validation_alias=AliasChoices("truncation_cost", "cut"))


class _MadeWith(BaseModel):
    model_config = {**STRICT, "extra": "allow"}  # only these two fields are used
    recipe: dict[str, Any] | None = None
    chat: bool | None = None


class _File(BaseModel):
    """The schema of a lengths.json file. A second alias is the name of the field in files from before version 0.2."""

    model_config = STRICT
    model_key: Text = Field(validation_alias=AliasChoices("model_key", "weights"))
    limit: PositiveSlots
    ends: Literal["document", "any"]
    interpretation: Literal["hazard", "ended-by", "boundary", "first-boundary", "turn-end", "auto"] = Field(
        validation_alias=AliasChoices("interpretation", "reading")
    )
    estimate: _Estimate
    made_with: _MadeWith = _MadeWith()
    families: Annotated[dict[Text, _Ratios], Field(min_length=1, max_length=10_000)]
