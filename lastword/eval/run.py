"""Ask a model every sample of some tasks with one recipe and keep a record of each answer."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from lastword.checks import check_whole
from lastword.eval.journal import Journal, Record, identity
from lastword.eval.task import Sample, Task
from lastword.generate import Generation, generate
from lastword.models.weights import fingerprint
from lastword.recipe import Recipe
from lastword.version import __version__


def evaluate(
    model: Any,
    name: str,
    tasks: Sequence[Task],
    recipe: Recipe,
    journal: Journal,
    *,
    limit: int | None = None,
    rows: int = 8,
    chat: bool | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Record]:
    """The records of this model and recipe, those already in the journal included.

    Samples go through in batches of like prompt length; every batch is scored and written before
    the next begins, so a run that is killed resumes with nothing lost or asked twice. `chat=None`
    uses the chat template where the tokenizer has one. Row seeds depend on the sample alone.
    """
    check_whole("evaluate", "rows", rows, least=1)
    if limit is not None:
        check_whole("evaluate", "limit", limit, least=1)
    recipe = recipe.fitted(model)  # records say what was planned with, not where it was looked up
    by_name = {task.name: task for task in tasks}
    run: Record = {
        "model": name,
        "weights": fingerprint(model),
        "recipe": json.loads(recipe.to_json()),
        "seed": seed,
    }
    asked = {
        identity(run | _asked(sample)): sample for task in tasks for sample in task.samples(limit)
    }
    done = journal.done()
    left = [sample for key, sample in asked.items() if key not in done]
    if chat is None:
        chat = getattr(model.tokenizer, "chat_template", None) is not None
    prompts = {s: _ids(model, s, chat) for s in left}
    left.sort(key=lambda s: len(prompts[s]))
    progress(len(asked) - len(left), len(asked))
    for first in range(0, len(left), rows):
        batch = left[first : first + rows]
        answers = generate(
            model,
            [prompts[s] for s in batch],
            recipe=recipe,
            seed=[seed + s.place for s in batch],
        )
        texts = {s: s.cut(a.text or "") for s, a in zip(batch, answers)}
        scores = _scores(by_name, texts)
        shared = run | {
            "rows": len(batch),
            "batch_seconds": round(max(answer.seconds for answer in answers), 6),
            **surroundings(model),
        }
        journal.append(
            shared | _asked(s) | _facts(a) | {"text": texts[s], "score": scores[s]}
            for s, a in zip(batch, answers)
        )
        progress(len(asked) - len(left) + first + len(batch), len(asked))
    recorded = journal.done()
    return [recorded[key] for key in asked]


def _ids(model: Any, sample: Sample, chat: bool) -> list[int]:
    if chat:
        return model.tokenizer.chat([{"role": "user", "content": sample.prompt}])
    return model.tokenizer.encode(sample.prompt)


def _scores(tasks: dict[str, Task], texts: dict[Sample, str]) -> dict[Sample, float]:
    scores: dict[Sample, float] = {}
    for name, task in tasks.items():
        mine = [sample for sample in texts if sample.task == name]
        scores.update(zip(mine, task.score(mine, [texts[sample] for sample in mine])))
    return scores


def _asked(sample: Sample) -> Record:
    return {"task": sample.task, "place": sample.place, "prompt": sample.digest}


def _facts(answer: Generation) -> Record:
    data = answer.to_data()
    return {name: data[name] for name in data if name not in ("text", "tokens")} | {
        "length": len(answer.tokens)
    }


def surroundings(model: Any) -> Record:
    """What a figure depends on besides model and recipe."""
    device = model.device
    weights = next(iter(model.parameters()), None) if hasattr(model, "parameters") else None
    return {
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "dtype": str(getattr(weights, "dtype", torch.float32)).removeprefix("torch."),
        "versions": {
            "lastword": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


@lru_cache(maxsize=1)
def _processor() -> str:
    return f"{platform.machine()} {sys.platform}, {torch.get_num_threads()} threads"
