"""Recipes: all parts of a decoding as one value, and its conversion from and to names, text and JSON."""
