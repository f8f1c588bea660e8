"""Files of prompts, batches of them, and an engine without a model's work."""

import json
from itertools import islice

from lastword import Fixed, Recipe
from lastword.batch import Batch
from lastword.decoding.forward import TokenCost
from lastword.engines.base import GenerationReply, ModelInfo, request_pairs
from lastword.engines.local import LocalEngine

FIVE = Recipe(length=Fixed(5))
TIMES = ("seconds", "created", "seconds_decoding", "seconds_queued")


def write_lines(path, *lines):
    """Write objects as JSON and bytes unchanged, one per line."""
    content = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in content))
    return path


def read_lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def request_line(name, body, url=None):
    """Return a line of OpenAI's batch input, to the route for messages or for a prompt."""
    is_chat = "messages" in str(body)
    url = url or f"/v1/{'chat/' if is_chat else ''}completions"
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def without_times(value):
    """Remove what may differ between two equal runs."""
    if isinstance(value, dict):
        return {name: without_times(item) for name, item in value.items() if name not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def run(engine, source, out, progress=lambda state: None, **options):
    """Run a batch and return its summary."""
    return Batch(source, out, **{"name": "m", "recipe": FIVE, **options}).run(engine, progress)


def answer(model, source, out, **options):
    """Run a batch in this process and return its lines and its summary."""
    summary = run(LocalEngine(model), source, out, **options)
    return read_lines(out), summary


class EchoEngine:
    """An engine that answers with the number of prompt tokens; `fails(request)` selects failures."""

    def __init__(self, model, fails=lambda request: False):
        self.model_info, self.fails = ModelInfo.from_model(model), fails
        self.num_requests = 0

    def generate(self, requests, recipe, *, max_batch_size):
        pairs = request_pairs(requests)
        while batch := list(islice(pairs, max_batch_size)):
            self.num_requests += len(batch)
            yield [self.reply(key, request) for key, request in batch]

    def reply(self, key, request):
        if self.fails(request):
            return GenerationReply(key, "", {}, error="three workers died")
        details = {
            "prompt_tokens": len(request.prompt_ids), "horizon": 5, "expected_length": 4.5, "tail": 0.0,
            "probe_cost": TokenCost(1, 5, 25), "cost": TokenCost(5, 25, 125), "seconds": 0.1,
            "finish": "ended", "length": 1, "rows": 1, "seconds_share": 0.1, "shortened": False,
        }  # fmt: skip
        return GenerationReply(key, str(len(request.prompt_ids)), details)

    def predict_lengths(self, requests, recipe, *, max_batch_size):
        return iter(())

    def close(self):
        pass
