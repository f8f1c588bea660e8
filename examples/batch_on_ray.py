"""Answer a file of prompts with the actors of a Ray cluster.

python examples/batch_on_ray.py [FOLDER]

Needs the extra `ray`. The script starts a Ray cluster on this machine and stops it at the end; to use an existing
cluster, set `address` to "auto" or "host:port". If you run it again, finished prompts are not answered again.
"""

import json
import sys
from pathlib import Path

from lastword.batch import Batch
from lastword.engines import ModelSource, RayWorkers, WorkerPool
from lastword.tasks import load_frozen

NAME = "tiny-llada-base"

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out/example")
folder.mkdir(parents=True, exist_ok=True)
prompts, answers = folder / "prompts.jsonl", folder / "answers.jsonl"
examples = load_frozen("test", "algebra")[:6]
prompts.write_text("".join(json.dumps({"prompt": example.prompt}) + "\n" for example in examples))

# Each actor loads the model on its node. Prompts with the longest predicted answers are decoded first.
with WorkerPool(RayWorkers(ModelSource(NAME), workers=2, address="local")) as engine:
    print(Batch(prompts, answers, name=NAME, recipe="fast").run(engine))

for line in answers.read_text().splitlines():
    answer = json.loads(line)
    print(answer["index"], answer["forward_passes"], answer["text"].splitlines()[-1])
