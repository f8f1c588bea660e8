"""Unmask rules: which masks to fill after a forward pass."""
