"""A few samples by two recipes, and a table that compares them.

python examples/evaluate_to_table.py [FOLDER]

Every answer becomes a line of FOLDER/tiny-llada-base.jsonl (out/example unless you say another). Run it
again and nothing is asked twice. Four samples show how it works, and say nothing of accuracy.
"""

import sys
from pathlib import Path

import lastword
from lastword.evaluate import Journal
from lastword.evaluate.run import evaluate
from lastword.evaluate.tables import tables
from lastword.evaluate.tasks import embedded_tasks

NAME = "tiny-llada-base"

model = lastword.load(NAME)
journal = Journal(Path(sys.argv[1] if len(sys.argv) > 1 else "out/example") / f"{NAME}.jsonl")
rule = lastword.AboveThreshold(0.97)

# The first recipe is what the others are compared with: a fixed canvas, filled by the same rule.
fixed = lastword.Recipe(length=lastword.Fixed(128), unmask=rule, block=32)
for recipe in (fixed, lastword.Recipe.named("fast")):
    evaluate(model, NAME, embedded_tasks(["algebra"]), recipe, journal, limit=4)

for table in tables(list(journal)):
    print(table.markdown())
