"""When to stop refining: rules that commit a whole answer early."""

from lastword.commit.never import Never
from lastword.commit.prophet import Prophet
from lastword.commit.rule import CommitRule
from lastword.commit.stable_margin import StableMargin

__all__ = ["CommitRule", "Never", "Prophet", "StableMargin"]
