"""Generators of the embedded task families: random prompts with reference answers."""
