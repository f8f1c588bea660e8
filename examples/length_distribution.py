"""Predict the length of an answer, as a distribution, from one forward pass.

python examples/length_distribution.py

Prints the predicted lengths for one problem with three different instructions. If matplotlib is installed,
the script also draws lengths.png.
"""

import importlib.util
from pathlib import Path

import lastword
from lastword.survival.plot import save_rows

problem = "Problem: Solve for y: 6y - 5 = 2y + 3."
instructions = ["Be brief.", "Use sentences.", "Explain every step. Check the result."]
prompts = [f"{problem} {instruction}\nSolution:\n" for instruction in instructions]

model = lastword.load("tiny-llada-base")
lengths = lastword.predict_length(model, prompts, limit=256)

for row, instruction in enumerate(instructions):
    length = lengths.row(row)
    print(
        f"{instruction} Expected {float(length.mean):.1f} tokens; 50% of answers within {int(length.quantile(0.5))}, "
        f"90% within {int(length.quantile(0.9))}; more than {length.slots}: {float(length.tail):.1%}"
    )

if importlib.util.find_spec("matplotlib"):
    save_rows(lengths, instructions, Path("lengths.png"))
    print("wrote lengths.png")
else:
    print("lengths.png was not drawn, because matplotlib is not installed; install the extra `plot`")
