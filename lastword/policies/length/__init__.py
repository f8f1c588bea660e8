"""Length policies: how many slots an answer gets."""
