"""Files of prompts made by hand, and engines that answer without a model's work."""

import json

from lastword import Fixed, Recipe
from lastword.batch.run import run
from lastword.canvas.cost import TokenCost
from lastword.engines.base import GenerationReply, ModelInfo
from lastword.engines.local import LocalEngine

FIVE = Recipe(length=Fixed(5))
# A machine's own, and how a batch was made up: no part of an answer.
ASIDE = ("seconds", "created", "seconds_decoding", "seconds_queued")


def put(path, *lines):
    """A file of lines: objects as JSON, bytes as they are."""
    made = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in made))
    return path


def read(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def told(value):
    """An answer without what may differ from run to run."""
    if isinstance(value, dict):
        return {name: told(own) for name, own in value.items() if name not in ASIDE}
    return [told(own) for own in value] if isinstance(value, list) else value


def answers(model, source, out, **options):
    """What a batch writes, as data, and its outcome."""
    options = {"name": "m", "recipe": FIVE, **options}
    outcome = run(LocalEngine(model), source, out, **options)
    return read(out), outcome


class Echo:
    """Answers with the number of tokens of a prompt, at once; what `fails` says so fails."""

    def __init__(self, model, fails=lambda question: False):
        self.model_info, self.fails = ModelInfo.from_model(model), fails
        self.asked, self.largest = 0, 0

    def generate(self, requests, recipe, *, max_batch_size):
        self.largest = max(self.largest, len(requests))
        keys = list(requests)
        for first in range(0, len(keys), max_batch_size):
            some = keys[first : first + max_batch_size]
            self.asked += len(some)
            yield [self.reply(key, requests[key]) for key in some]

    def reply(self, key, question):
        if self.fails(question):
            return GenerationReply(key, "", {}, error="three workers died over it")
        facts = {
            "prompt_tokens": len(question.prompt_ids), "horizon": 5, "expected_length": 4.5, "tail": 0.0,
            "probe_cost": TokenCost(1, 5, 25), "cost": TokenCost(5, 25, 125),
            "seconds": 0.1, "finish": "ended",
            "length": 1, "rows": 1, "batch_seconds": 0.1, "shortened": False,
        }  # fmt: skip
        return GenerationReply(key, str(len(question.prompt_ids)), facts)

    def close(self):
        pass
