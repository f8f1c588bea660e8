"""Decoding: the loop, one step, and the state it carries."""
