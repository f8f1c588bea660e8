"""Calibrated: a canvas that fits a given share of answers, learned from the model's own answers."""

from __future__ import annotations

from dataclasses import dataclass

from lastword.errors import SettingError
from lastword.policies.length.policy import LengthPolicy, ModelLimits, Plan, Probe
from lastword.policies.length.survival import Survival
from lastword.validation import check_number, check_type, checked_field


@dataclass(frozen=True)
class Calibrated(LengthPolicy):
    """Survival with the settings of `lastword calibrate`, so that a share `coverage` of answers fits.

    The calibration of a model (`lengths.json`) holds the limit, interpretation and estimate of the
    predictions, and the ratios of real to predicted lengths. The factor is a rank among those ratios (split
    conformal prediction): with at least this probability the plan is no shorter than the answer to a new
    prompt of the same kind, decoded on `limit` slots with the recipe of the calibration. A recipe with
    another unmask rule, commit rule, sampling or block size is rejected, and so are plain-text prompts if the
    calibration used chat messages, or the other way round. `family` selects the ratios of one task family.
    Before decoding, the policy is replaced by the resulting Survival, whose cost is one probe of its limit.
    """

    name = "calibrated"
    cost_summary = "one probe of the calibration's limit"
    source = "ours; split-conformal prediction (Vovk et al., 2005)"

    coverage: float = checked_field(0.9, check_number, above=0, below=1)
    family: str | None = checked_field(None, check_type, str, "a family's name, or None")

    def resolved(self, limits: ModelLimits) -> Survival:
        calibration = limits.calibration
        if calibration is None:
            raise SettingError(
                "Calibrated was given for a model without a calibration; run lastword calibrate, load the "
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
            "Calibrated was used before it was resolved for a model: decode with it in a Recipe, and let a "
            "policy of your own around it pass `resolved` on, as policies.length.wrappers.Wrapper does"
        )
