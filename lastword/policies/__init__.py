"""The parts of a recipe: length, unmask, commit and cache policies."""
