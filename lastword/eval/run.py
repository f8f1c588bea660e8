"""Ask a model every sample of some tasks with one recipe and keep a record of each answer."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any

import torch

from lastword.checks import check_whole
from lastword.eval.journal import Journal, Record, identity
from lastword.eval.task import Sample, Task, conditions
from lastword.generate import Generation, generate
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
    by_name = {task.name: task for task in tasks}
    depends = {task.name: conditions(task) for task in tasks}
    run = about(model, name, recipe, seed) | {"kind": "answer"}
    asked = {
        identity(run | asked_of(sample)): sample for task in tasks for sample in task.samples(limit)
    }
    done = journal.done()
    left = [sample for key, sample in asked.items() if key not in done]
    finished = len(asked) - len(left)
    progress(finished, len(asked))
    for batch, prompts in in_batches(model, left, rows, chat):
        answers = generate(model, prompts, recipe=recipe, seed=[seed + s.place for s in batch])
        texts = {s: s.cut(a.text or "") for s, a in zip(batch, answers)}
        scores = _scores(by_name, texts)
        shared = run | {
            "rows": len(batch),
            "batch_seconds": round(max(answer.seconds for answer in answers), 6),
            **surroundings(model),
        }
        journal.append(
            shared
            | asked_of(s)
            | _facts(a)
            | depends[s.task]
            | {"text": texts[s], "score": scores[s]}
            for s, a in zip(batch, answers)
        )
        finished += len(batch)
        progress(finished, len(asked))
    recorded = journal.done()
    return [recorded[key] for key in asked]


def about(model: Any, name: str, recipe: Recipe, seed: int) -> Record:
    """What a run's records share and are known by."""
    return {
        "model": name,
        "weights": fingerprint(model),
        "recipe": json.loads(recipe.to_json()),
        "seed": seed,
    }


def in_batches(
    model: Any, samples: Sequence[Sample], rows: int, chat: bool | None = None
) -> Iterator[tuple[list[Sample], list[list[int]]]]:
    """Samples with their prompts as token ids, like lengths together: little of a batch is padding."""
    if chat is None:
        chat = getattr(model.tokenizer, "chat_template", None) is not None
    prompts = {sample: _ids(model, sample, chat) for sample in samples}
    order = sorted(samples, key=lambda sample: len(prompts[sample]))
    for first in range(0, len(order), rows):
        batch = order[first : first + rows]
        yield batch, [prompts[sample] for sample in batch]


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


def asked_of(sample: Sample) -> Record:
    """What a record says of its question."""
    return {
        "task": sample.task,
        "split": sample.split,
        "place": sample.place,
        "prompt": sample.digest,
    }


def _facts(answer: Generation) -> Record:
    data = answer.to_data()
    return {name: data[name] for name in data if name not in ("text", "tokens")} | {
        "length": len(answer.tokens)
    }


def fingerprint(model: Any) -> str:
    """Of the weights: a few numbers of every tensor, so that a retrained model is another model."""
    digest = sha256()
    for name, tensor in model.state_dict().items() if hasattr(model, "state_dict") else ():
        some = tensor.flatten()[:64].float().cpu().numpy()
        digest.update(f"{name}{tuple(tensor.shape)}".encode() + some.tobytes())
    return digest.hexdigest()[:16]


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
