"""Calibrated: a canvas that a stated share of answers fits, learnt from the model's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lastword.errors import SettingError
from lastword.policies.length.policy import LengthPolicy, ModelLimits, Plan, Probe
from lastword.policies.length.survival import Survival
from lastword.validation import check_number, check_type


@dataclass(frozen=True)
class Calibrated(LengthPolicy):
    """Survival as `lastword calibrate` found it right for the model: a share `coverage` of answers fits.

    The model's `lengths.json` says which limit, reading and estimate predictions were made with, and
    how long answers came out beside them. The factor is a rank among those ratios (split conformal
    prediction): whatever the prediction is worth, with at least this chance the plan is no shorter
    than the answer a new prompt of the same kind gets on `limit` slots by the recipe of the
    calibration. A recipe that unmasks, commits or samples otherwise, or in other blocks, is refused, and
    so is plain text where it was calibrated on chat messages, or the other way round.
    `family` takes the ratios of one task family instead of all. Decoding puts the Survival that
    follows in its place.

    Costs what that Survival costs: one probe of its limit.
    """

    name: ClassVar[str] = "calibrated"
    cost_summary: ClassVar[str] = "one probe of the calibration's limit"
    source: ClassVar[str] = "ours; split-conformal prediction (Vovk et al., 2005)"

    coverage: float = 0.9
    family: str | None = None

    def __post_init__(self) -> None:
        check_number("Calibrated", "coverage", self.coverage, above=0, below=1)
        if self.family is not None:
            check_type("Calibrated", "family", self.family, str, "a family's name, or None")

    def resolved(self, limits: ModelLimits) -> Survival:
        calibration = limits.calibration
        if calibration is None:
            raise SettingError(
                "Calibrated was given for a model that was not calibrated; run lastword calibrate, load the "
                "model with its file (calibration=..., on the command line --calibration), or use Survival()"
            )
        return Survival(
            limits.resolve(calibration.limit),
            calibration.bound(self.coverage, self.family),
            calibration.ends,
            calibration.interpretation,
        )

    def plan(self, probe: Probe) -> Plan:
        raise SettingError(
            "Calibrated was asked for a plan before it was settled for a model: decode with it in a Recipe, "
            "and let a policy of your own around it pass `resolved` on, as length.wrappers.Wrapper does"
        )
