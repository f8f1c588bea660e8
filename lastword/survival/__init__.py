"""Survival analysis of the end-token signal: pure tensors, no model."""

from lastword.survival.auto import Auto as Auto
from lastword.survival.auto import Choice as Choice
from lastword.survival.conformal import conformal_factor as conformal_factor
from lastword.survival.conformal import samples_needed as samples_needed
from lastword.survival.conformal import upper_bound as upper_bound
from lastword.survival.curve import LengthDistribution as LengthDistribution
from lastword.survival.estimate import Cheapest as Cheapest
from lastword.survival.estimate import Estimate as Estimate
from lastword.survival.estimate import Mean as Mean
from lastword.survival.estimate import Quantile as Quantile
from lastword.survival.estimate import Scaled as Scaled
from lastword.survival.first_boundary import FirstBoundary as FirstBoundary
from lastword.survival.plot import save_lengths as save_lengths
from lastword.survival.plot import save_rows as save_rows
from lastword.survival.probabilities import token_probabilities as token_probabilities
from lastword.survival.reading import Boundary as Boundary
from lastword.survival.reading import EndedBy as EndedBy
from lastword.survival.reading import Hazard as Hazard
from lastword.survival.reading import Reading as Reading
from lastword.survival.reading import TurnEnd as TurnEnd
from lastword.survival.signal import EndSignal as EndSignal
