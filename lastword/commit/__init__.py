"""When to stop refining: rules that commit a whole answer early."""

from lastword.commit.never import Never as Never
from lastword.commit.prophet import Prophet as Prophet
from lastword.commit.rule import CommitRule as CommitRule
from lastword.commit.stable_margin import StableMargin as StableMargin
