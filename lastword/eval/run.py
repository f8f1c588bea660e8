"""`evaluate`: ask a model every sample of some tasks with one recipe, and record each answer."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from lastword.checks import check_whole
from lastword.engines import Local, Question, Reply
from lastword.engines.engine import TOO_LONG
from lastword.errors import NumericError
from lastword.eval.journal import Journal
from lastword.eval.records import (
    Answer,
    Fields,
    Identity,
    Record,
    Spent,
    identity,
    recipe_data,
    record_of,
)
from lastword.eval.task import Sample, Task, conditions, refused
from lastword.eval.tokens import first_token, tokenizer_of
from lastword.models.predictor import MaskPredictor, TextTokenizer
from lastword.models.weights import fingerprint
from lastword.outside.schema import MOST_TEXT
from lastword.recipe.recipe import Recipe
from lastword.recipe.settling import settle
from lastword.version import __version__


def evaluate(
    model: MaskPredictor,
    name: str,
    tasks: Sequence[Task],
    recipe: Recipe,
    journal: Journal,
    *,
    limit: int | None = None,
    rows: int = 8,
    chat: bool | None = None,
    bos: bool = False,
    seed: int = 0,
    timed: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Answer]:
    """The records of this model and recipe, those already in the journal included.

    Samples go through in batches of like prompt length; every batch is scored and written before
    the next begins, so a run that is killed resumes with nothing lost or asked twice. `chat=None`
    uses the chat template where the tokenizer has one; `bos` begins a plain prompt with the
    tokenizer's first token. Row seeds depend on the sample alone. A sample that does not fit the
    model follows the rule of `room`. `timed=False` keeps no seconds: those of a machine that does
    something else besides say nothing.
    """
    check_counts("evaluate", rows, limit)
    layout = Layout.of(model, chat=chat, bos=bos)
    sampled = [(task, task.samples(limit)) for task in tasks]
    in_chat = {layout.in_chat(sample) for _, samples in sampled for sample in samples}
    recipe = settle(recipe, model, in_chat=in_chat)  # what records are known by
    by_name = {task.name: task for task in tasks}
    depends = {task.name: conditions(task) for task in tasks}
    run = about(model, name, recipe, seed) | {"kind": "answer"}
    asked = asked_of(run, sampled, layout)
    with journal.writing():
        done = journal.done()
        questions = {
            key: Question(layout.ids(sample), seed + sample.index)
            for key, (sample, _) in asked.items()
            if key not in done
        }
        answered = len(asked) - len(questions)
        progress(answered, len(asked))
        for replies in Local(model).ask(questions, recipe, rows=rows):
            _check_answered(replies)
            samples = [asked[reply.key][0] for reply in replies]
            texts = [_written(sample.cut(reply.text)) for sample, reply in zip(samples, replies)]
            scores = _scores(by_name, samples, texts, replies)
            journal.append(
                record_of(
                    asked[reply.key][1]
                    | surroundings(model)
                    | depends[sample.task]
                    | reply.facts
                    | {name: Spent(*reply.facts[name]) for name in ("probe_cost", "cost")}
                    | ({} if timed else {"batch_seconds": None})
                    | {"text": text, "score": score}
                    | ({"refused": True} if refused(by_name[sample.task], sample, text) else {})
                )
                for sample, reply, text, score in zip(samples, replies, texts, scores)
            )
            answered += len(replies)
            progress(answered, len(asked))
    return answers_to(asked, journal.done())


def _check_answered(replies: Sequence[Reply[Identity]]) -> None:
    """A table has no place for a sample that failed: the run stops, and resumes with it."""
    failed = [reply.failed for reply in replies if reply.failed is not None]
    if failed:
        raise NumericError(
            f"{len(failed)} of {len(replies)} samples could not be decoded ({failed[0]}); what was written "
            "before is kept: give the same command again"
        )


def _written(text: str) -> str:
    """A text as it can be kept: half characters of a tokenizer of its own replaced, and bounded."""
    return text[:MOST_TEXT].encode(errors="replace").decode()


def answers_to(asked: Iterable[Identity], recorded: Mapping[Identity, Record]) -> list[Answer]:
    """The answers to these questions, in their order."""
    found = [recorded[key] for key in asked]
    return [record for record in found if isinstance(record, Answer)]


def check_counts(owner: str, rows: int, limit: int | None = None) -> None:
    """Rows at once, and samples of each task, are at least one."""
    check_whole(owner, "rows", rows, least=1)
    if limit is not None:
        check_whole(owner, "limit", limit, least=1)


def about(model: MaskPredictor, name: str, recipe: Recipe, seed: int) -> Fields:
    """What the records of a run share and are known by; a recipe that cannot be written is refused."""
    recipe_data(recipe)
    return {
        "model": name,
        "weights": fingerprint(model),
        "dtype": _dtype(model),
        "recipe": recipe,
        "seed": seed,
    }


@dataclass(frozen=True)
class Layout:
    """How a sample becomes token ids: through the chat template, or plain, begun with bos or not."""

    tokenizer: TextTokenizer
    chat: bool
    bos: bool = False

    @classmethod
    def of(cls, model: MaskPredictor, *, chat: bool | None = None, bos: bool = False) -> Layout:
        tokenizer = tokenizer_of(model)
        return cls(tokenizer, tokenizer.chat_template is not None if chat is None else chat, bos)

    def in_chat(self, sample: Sample) -> bool:
        return bool(sample.turns) or self.chat

    def ids(self, sample: Sample) -> list[int]:
        if self.in_chat(sample):
            turns = sample.turns or (("user", sample.prompt),)
            messages = [{"role": role, "content": content} for role, content in turns]
            return self.tokenizer.chat(messages, continue_last=turns[-1][0] == "assistant")
        first = first_token(self.tokenizer) if self.bos else ""
        return self.tokenizer.encode(first + sample.prompt)

    def name(self, sample: Sample) -> str:
        return "chat" if self.in_chat(sample) else "bos" if self.bos else "plain"


def asked_of(
    run: Fields, sampled: Iterable[tuple[Task, Sequence[Sample]]], layout: Layout
) -> dict[Identity, tuple[Sample, Fields]]:
    """Every sample with what its record says of the question, by its identity."""
    found: dict[Identity, tuple[Sample, Fields]] = {}
    for task, samples in sampled:
        for sample in samples:
            facts = run | {
                "task": sample.task,
                "group": task.group,
                "task_version": task.version,
                "split": sample.split,
                "index": sample.index,
                "prompt": sample.digest,
                "layout": layout.name(sample),
            }
            found[identity(facts)] = (sample, facts)
    return found


def _scores(
    tasks: dict[str, Task],
    samples: Sequence[Sample],
    texts: Sequence[str],
    replies: Sequence[Reply[Identity]],
) -> list[float]:
    """A score per reply. What was not asked is not right, whatever a scorer makes of no text."""
    scores = [0.0] * len(samples)
    for name, task in tasks.items():
        mine = [
            at
            for at, sample in enumerate(samples)
            if sample.task == name and replies[at].facts["finish"] != TOO_LONG
        ]
        if mine:
            found = task.score([samples[at] for at in mine], [texts[at] for at in mine])
            for at, score in zip(mine, found):
                scores[at] = score
    return scores


def surroundings(model: MaskPredictor) -> Fields:
    """What a figure depends on besides model and recipe."""
    device = model.device
    return {
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "versions": {
            "lastword": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def _dtype(model: MaskPredictor) -> str:
    """What the model computes in, and the dtype of its layers' weights where that is another."""
    found = [p.dtype for p in model.parameters()] if hasattr(model, "parameters") else []
    computes = str(found[0] if found else torch.float32).removeprefix("torch.")
    return f"{computes}, fp8 weights" if torch.float8_e4m3fn in found else computes


@lru_cache(maxsize=1)
def _processor() -> str:
    """The CPU by name where the system tells it, and the threads in use."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        named = []
    name = named[0] if named else f"{platform.processor() or platform.machine()} {sys.platform}"
    return f"{name}, {torch.get_num_threads()} threads"
