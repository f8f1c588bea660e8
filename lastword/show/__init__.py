"""How results look: the HTML a notebook shows, and the one style of every figure."""
