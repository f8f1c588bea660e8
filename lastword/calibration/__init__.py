"""How long a model's finished answers were beside what was predicted of them."""

from lastword.calibration.ratios import Calibration as Calibration
from lastword.calibration.ratios import Ratios as Ratios
