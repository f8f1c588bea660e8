"""Recipes: the parts of one decoding as one value, by name, as text and as JSON."""
