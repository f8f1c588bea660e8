"""How long will the answer be? One forward pass says it, as a distribution.

python examples/length_distribution.py

Prints what the model expects for one problem, asked for in three manners, and draws lengths.png where
matplotlib is installed.
"""

import importlib.util
from pathlib import Path

import lastword
from lastword.survival.plot import save_rows

problem = "Problem: Solve for y: 6y - 5 = 2y + 3."
manners = ["Be brief.", "Use sentences.", "Explain every step. Check the result."]
prompts = [f"{problem} {manner}\nSolution:\n" for manner in manners]

model = lastword.load("tiny-llada-base")
lengths = lastword.predict_length(model, prompts, limit=256)

for row, manner in enumerate(manners):
    one = lengths.row(row)
    print(
        f"{manner} Expected {float(one.mean):.1f}, half within {int(one.quantile(0.5))}, nine of ten "
        f"within {int(one.quantile(0.9))}, chance of more than {one.slots}: {float(one.tail):.3f}"
    )

if importlib.util.find_spec("matplotlib"):
    save_rows(lengths, manners, Path("lengths.png"))
    print("drew lengths.png")
else:
    print("no picture: matplotlib is not installed (the extra `plot` brings it)")
