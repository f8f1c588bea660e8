"""`evaluate`: decode the samples of tasks with one recipe, score the answers and record them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lastword.engines.base import (
    TOO_LONG,
    Engine,
    GenerationReply,
    GenerationRequest,
    RemoteModelInfo,
    check_engine,
    compute_dtype,
)
from lastword.engines.local import LocalEngine
from lastword.errors import FailedSamplesError, SettingError
from lastword.evaluate.journal import Journal
from lastword.evaluate.records import Answer, Fields, Identity, Record, identity, make_record
from lastword.evaluate.tasks import Sample, Task, check_scores, read_samples
from lastword.io.schema import MAX_TEXT_LENGTH
from lastword.models.base import MaskPredictor, TextTokenizer
from lastword.models.weights import fingerprint
from lastword.prompts import has_chat_template
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.validation import check_choice, check_int

MAX_FAILURES = 32  # a run without any answer stops after this many failures
# Answers that finish within this time are scored together, since programs in answers run in parallel.
WRITE_SECONDS = 0.5

Reply = GenerationReply[Identity]
Questions = dict[Identity, tuple[Sample, Fields]]  # samples, and their record fields known before decoding


def evaluate(
    model: MaskPredictor | RemoteModelInfo,
    name: str,
    tasks: Sequence[Task],
    recipe: Recipe,
    journal: Journal,
    *,
    limit: int | None = None,
    max_batch_size: int = 8,
    chat: bool | None = None,
    bos: bool = False,
    seed: int = 0,
    timed: bool = True,
    engine: Engine | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Answer]:
    """Decode, score and record the samples that the journal lacks; return the records of all samples.

    Answers are scored and written within a second of their end, so that a killed run can be resumed. `chat=None` uses
    the chat template if the tokenizer has one; with `bos`, a plain prompt begins with the tokenizer's BOS token. The
    seed of a row is `seed` plus the index of its sample. `fit_context` handles samples that exceed the context length.
    With `timed=False`, records have no `seconds_share`. With an `engine`, its workers decode, and `model` may be
    `engine.model_info`; the answers are the same. If samples fail, EngineError is raised after all others are recorded.
    """
    check_counts("evaluate", max_batch_size, limit)
    engine = _choose_engine(model, engine)
    layout = PromptLayout.of(model, chat=chat, bos=bos)
    samples = [(task, read_samples(task, limit)) for task in tasks]
    in_chat = {layout.name(sample) == "chat" for _, task_samples in samples for sample in task_samples}
    recipe = resolve(recipe, model, in_chat=in_chat)  # records contain the resolved recipe
    scorer = Scorer(tasks, timed)
    questions = find_questions(run_fields(model, name, recipe, seed) | {"kind": "answer"}, samples, layout)
    with journal.writing():
        recorded = journal.by_identity()
        requests = {
            key: GenerationRequest(layout.ids(sample), seed + sample.index, prompt_text=layout.content(sample))
            for key, (sample, _) in questions.items()
            if key not in recorded
        }
        answered = before = len(questions) - len(requests)
        progress(answered, len(questions))
        failed: list[Reply] = []
        unwritten: list[Reply] = []
        last_write = time.monotonic()
        try:
            for batch in engine.generate(requests, recipe, max_batch_size=max_batch_size):
                failed += [reply for reply in batch if reply.error is not None]
                unwritten += [reply for reply in batch if reply.error is None]
                if len(failed) >= MAX_FAILURES and answered == before and not unwritten:
                    break
                if time.monotonic() - last_write >= WRITE_SECONDS:
                    journal.append(scorer.records(unwritten, questions))
                    answered, unwritten = answered + len(unwritten), []
                    progress(answered, len(questions))
                    last_write = time.monotonic()
        finally:  # an interrupted run keeps its finished answers
            journal.append(scorer.records(unwritten, questions))
        progress(answered + len(unwritten), len(questions))
    if failed:
        reasons = [f"{questions[r.key][0].task} {questions[r.key][0].index} ({r.error})" for r in failed[:3]]
        raise FailedSamplesError(
            f"{len(failed)} of {len(questions)} samples failed and have no record: {'; '.join(reasons)}. All "
            "other answers are recorded: give the same command again to try only the failed ones",
            all_failed=answered + len(unwritten) == 0,
        )
    records = journal.by_identity()
    return [record for record in (records[key] for key in questions) if isinstance(record, Answer)]


class Scorer:
    """A scorer that makes records of the replies of a run."""

    def __init__(self, tasks: Sequence[Task], timed: bool) -> None:
        self._tasks, self._timed = {task.name: task for task in tasks}, timed
        # `conditions` raises here, before the first answer, if the code in answers cannot be run.
        self._conditions = {task.name: task.conditions() if hasattr(task, "conditions") else {} for task in tasks}

    def records(self, replies: Sequence[Reply], questions: Questions) -> list[Record]:
        """Score replies that have no error, and return their records."""
        samples, records = [questions[reply.key][0] for reply in replies], list[Record]()
        cut = [sample.cut(reply.text)[:MAX_TEXT_LENGTH] for sample, reply in zip(samples, replies)]
        texts = [text.encode(errors="replace").decode() for text in cut]  # without lone surrogates
        scores = self._scores(samples, texts, replies)
        for sample, reply, text, score in zip(samples, replies, texts, scores):
            task = self._tasks[sample.task]
            fields = questions[reply.key][1] | self._conditions[sample.task] | reply.details
            fields |= {} if self._timed else {"seconds_share": None}
            refused = hasattr(task, "refused") and bool(task.refused(sample, text))
            records.append(make_record(fields | {"text": text, "score": score, "refused": refused}))
        return records

    def _scores(self, samples: Sequence[Sample], texts: Sequence[str], replies: Sequence[Reply]) -> list[float]:
        """Return a score per reply; it is 0 if the prompt was too long."""
        scores: list[float] = [0.0] * len(samples)
        decoded = [reply.details["finish"] != TOO_LONG for reply in replies]
        for name, task in self._tasks.items():
            rows = [row for row, sample in enumerate(samples) if sample.task == name and decoded[row]]
            if rows:
                task_scores = task.score([samples[row] for row in rows], [texts[row] for row in rows])
                check_scores(name, task_scores, len(rows))
                for row, score in zip(rows, task_scores):
                    scores[row] = float(score)
        return scores


def _choose_engine(model: MaskPredictor | RemoteModelInfo, engine: Engine | None) -> Engine:
    """Return `engine` (None: a LocalEngine of the model); raise SettingError if the engine has another model."""
    if engine is None:
        if isinstance(model, RemoteModelInfo):
            raise SettingError("evaluate was given the properties of a remote model; give its engine, too (engine=)")
        return LocalEngine(model)
    check_engine("evaluate", engine)
    if engine.model_info is not model:
        given, engines = ((fingerprint(m), compute_dtype(m)) for m in (model, engine.model_info))
        if given != engines:
            raise SettingError(
                f"the model of evaluate ({', '.join(given)}) is not the model of its engine "
                f"({', '.join(engines)}); give evaluate the model engine.model_info"
            )
    return engine


def check_counts(owner: str, max_batch_size: int, limit: int | None) -> None:
    """Raise SettingError unless `max_batch_size` and `limit` are at least 1."""
    check_int(owner, "max_batch_size", max_batch_size, minimum=1)
    if limit is not None:
        check_int(owner, "limit", limit, minimum=1)


def run_fields(model: MaskPredictor | RemoteModelInfo, name: str, recipe: Recipe, seed: int) -> Fields:
    """Return the fields that all records of a run share; raise if the recipe cannot be written as JSON."""
    recipe.to_json()
    return {"model": name, "weights": fingerprint(model), "dtype": compute_dtype(model), "recipe": recipe, "seed": seed}


@dataclass(frozen=True)
class PromptLayout:
    """The conversion of samples to token ids: with the chat template, or as plain text, with or without a BOS token."""

    tokenizer: TextTokenizer | None  # None: a server tokenizes prompts
    chat: bool
    bos: bool = False

    @classmethod
    def of(cls, model: MaskPredictor | RemoteModelInfo, *, chat: bool | None = None, bos: bool = False) -> PromptLayout:
        """Return how prompts become token ids for a model; `chat=None` uses the chat template if there is one."""
        for name, value, default in (("chat", chat, None), ("bos", bos, False)):
            check_choice("evaluate", name, value, True, False, default)
        tokenizer = None if isinstance(model, RemoteModelInfo) else model.tokenizer
        if tokenizer is None and not isinstance(model, RemoteModelInfo):
            raise SettingError(f"{type(model).__name__} has no tokenizer, which the prompts of tasks need; give it one")
        if chat is None:
            chat = model.has_chat_template if isinstance(model, RemoteModelInfo) else has_chat_template(model)
        if chat and bos:
            raise SettingError("bos=True was given with a chat template, which writes its own; leave bos out")
        return cls(tokenizer, chat, bos)

    def name(self, sample: Sample) -> str:
        return "chat" if sample.turns or self.chat else "bos" if self.bos else "plain"

    def ids(self, sample: Sample) -> list[int]:
        """Return the token ids of a prompt, or an empty list if a server tokenizes it."""
        content = self.content(sample)
        if self.tokenizer is None:
            return []
        if isinstance(content, str):
            return encode_with_special_tokens(self.tokenizer, content)
        return self.tokenizer.chat(content, continue_last=content[-1]["role"] == "assistant")

    def content(self, sample: Sample) -> str | tuple[dict[str, str], ...]:
        """Return the text or the chat messages of a prompt."""
        if self.name(sample) == "chat":
            turns = sample.turns or (("user", sample.prompt),)
            return tuple({"role": role, "content": content} for role, content in turns)
        return (bos_token(self.tokenizer) if self.bos else "") + sample.prompt


def encode_with_special_tokens(tokenizer: TextTokenizer, text: str) -> list[int]:
    """Return the ids of a benchmark prompt or a rendered template, in which special tokens are tokens if possible."""
    return list(getattr(tokenizer, "encode_with_special_tokens", tokenizer.encode)(text))


def bos_token(tokenizer: TextTokenizer | None) -> str:
    """Return the tokenizer's BOS token; raise SettingError if it has none."""
    if tokenizer is None or tokenizer.bos is None:
        raise SettingError("bos=True was given, and the tokenizer has no token that begins a text; omit bos")
    return tokenizer.bos


def find_questions(shared: Fields, samples: Iterable[tuple[Task, Sequence[Sample]]], layout: PromptLayout) -> Questions:
    """Map each record's `identity` to its sample and the record fields that are known before decoding."""
    questions: Questions = {}
    for task, task_samples in samples:
        for sample in task_samples:
            fields = shared | {
                "task": sample.task,
                "group": task.group,
                "task_version": task.version,
                "split": sample.split,
                "index": sample.index,
                "prompt": sample.digest,
                "layout": layout.name(sample),
            }
            questions[identity(fields)] = (sample, fields)
    return questions
