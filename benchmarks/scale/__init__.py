"""A thousand replicas, by simulation from our own records: what prediction buys, and what limits it."""
