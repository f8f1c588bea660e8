"""Decoding: the loop, one step, and the state that one step passes to the next."""
