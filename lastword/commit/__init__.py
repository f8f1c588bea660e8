"""When to stop refining: rules that commit a whole answer early."""

from lastword.commit.never import Never
from lastword.commit.rule import CommitRule

__all__ = ["CommitRule", "Never"]
