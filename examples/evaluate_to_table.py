"""Evaluate two recipes on the same samples and compare them.

python examples/evaluate_to_table.py [FOLDER]

The records of all answers are written to FOLDER/tiny-llada-base.jsonl (default folder: out/example). If you run
the script again, finished samples are not decoded again. Four samples show how it works; they are too few to
measure accuracy. `lastword tables --records FOLDER` prints the same records as a table.
"""

import sys
from pathlib import Path

import lastword
from lastword.evaluate import Journal, compare, embedded_tasks, evaluate

NAME = "tiny-llada-base"

model = lastword.load(NAME)
journal = Journal(Path(sys.argv[1] if len(sys.argv) > 1 else "out/example") / f"{NAME}.jsonl")
tasks = embedded_tasks(["algebra"])

# The baseline: the same unmask rule on a fixed canvas.
fixed = lastword.Recipe(length=lastword.Fixed(128), unmask=lastword.AboveThreshold(0.97), block=32)
baseline = evaluate(model, NAME, tasks, fixed, journal, limit=4)
fast = evaluate(model, NAME, tasks, lastword.Recipe.named("fast"), journal, limit=4)

print(compare(baseline, fast))
