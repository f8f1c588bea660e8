"""A file of prompts, answered by the actors of a Ray cluster.

python examples/batch_on_ray.py [FOLDER]

Starts a Ray of its own on this machine, which ends with it; give the address of a cluster ("auto",
"host:port") to use that one. It needs the extra `ray`. Run it again and no prompt is asked twice.
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
asked = [example.prompt for example in load_frozen("test", "algebra")[:6]]
prompts.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in asked))

# Every actor loads the model where it runs. Prompts with the longest predicted answers go out first.
with WorkerPool(RayWorkers(ModelSource(NAME), workers=2, address="local")) as engine:
    print(Batch(prompts, answers, name=NAME, recipe="fast").run(engine))

for line in answers.read_text().splitlines():
    answer = json.loads(line)
    print(answer["index"], answer["forward_passes"], answer["text"].splitlines()[-1])
