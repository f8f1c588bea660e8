"""`evaluate`: ask a model every sample of some tasks with one recipe, and record each answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

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
from lastword.errors import EngineError, SettingError
from lastword.evaluate.journal import Journal
from lastword.evaluate.records import (
    Answer,
    Fields,
    Identity,
    Record,
    Spent,
    identity,
    recipe_data,
    record_of,
)
from lastword.evaluate.task import Sample, Task, conditions, refused
from lastword.evaluate.tokens import first_token, tokenizer_of
from lastword.io.schema import MAX_TEXT_LENGTH
from lastword.models.base import MaskPredictor, TextTokenizer
from lastword.models.weights import fingerprint
from lastword.recipe.recipe import Recipe
from lastword.recipe.resolve import resolve
from lastword.validation import check_int

HOPELESS = 32  # failures, and not one answer: the rest is not tried


def evaluate(
    model: MaskPredictor | RemoteModelInfo,
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
    engine: Engine | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Answer]:
    """The records of this model and recipe, those already in the journal included.

    Samples go through in batches of like prompt length; every batch is scored and written before
    the next begins, so a run that is killed resumes with nothing lost or asked twice. `chat=None`
    uses the chat template where the tokenizer has one; `bos` begins a plain prompt with the
    tokenizer's first token. Row seeds depend on the sample alone. A sample that does not fit the
    model follows the rule of `room`. `timed=False` keeps no seconds: those of a machine that does
    something else besides say nothing. `engine` says who answers, this process where there is none; the
    records are the same. `model` may then be the engine's (`engine.model_info`), whose weights are elsewhere.
    What an engine gave up on is told after everything else was written; it is asked again the next time.
    """
    check_counts("evaluate", rows, limit)
    _check_same(model, engine)
    layout = Layout.of(model, chat=chat, bos=bos)
    sampled = [(task, task.samples(limit)) for task in tasks]
    in_chat = {layout.in_chat(sample) for _, samples in sampled for sample in samples}
    recipe = resolve(recipe, model, in_chat=in_chat)  # what records are known by
    by_name = {task.name: task for task in tasks}
    depends = {task.name: conditions(task) for task in tasks}
    run = about(model, name, recipe, seed) | {"kind": "answer"}
    asked = asked_of(run, sampled, layout)
    with journal.writing():
        done = journal.done()
        questions = {
            key: GenerationRequest(layout.ids(sample), seed + sample.index, prompt_text=layout.said(sample))
            for key, (sample, _) in asked.items()
            if key not in done
        }
        answered = before = len(asked) - len(questions)
        progress(answered, len(asked))
        lost: list[GenerationReply[Identity]] = []
        asking = engine or _local(model)
        for found in asking.generate(questions, recipe, max_batch_size=rows):
            lost += [reply for reply in found if reply.error is not None]
            replies = [reply for reply in found if reply.error is None]
            if len(lost) >= HOPELESS and answered == before and not replies:
                break
            samples = [asked[reply.key][0] for reply in replies]
            texts = [_written(sample.cut(reply.text)) for sample, reply in zip(samples, replies)]
            scores = _scores(by_name, samples, texts, replies)
            journal.append(
                record_of(
                    asked[reply.key][1]
                    | depends[sample.task]
                    | reply.details
                    | {name: _spent(reply.details[name]) for name in ("probe_cost", "cost")}
                    | ({} if timed else {"batch_seconds": None})
                    | {"text": text, "score": score}
                    | ({"refused": True} if refused(by_name[sample.task], sample, text) else {})
                )
                for sample, reply, text, score in zip(samples, replies, texts, scores)
            )
            answered += len(replies)
            progress(answered, len(asked))
    if lost:
        _tell(lost, asked, len(asked))
    return answers_to(asked, journal.done())


def _local(model: MaskPredictor | RemoteModelInfo) -> Engine:
    if isinstance(model, RemoteModelInfo):
        raise SettingError(
            "evaluate was given the properties of a remote model without its engine; give engine="
        )
    return LocalEngine(model)


def _check_same(model: MaskPredictor | RemoteModelInfo, engine: Engine | None) -> None:
    """Records name the model that was given; another one may not answer."""
    if engine is None:
        return
    check_engine("evaluate", engine)
    if engine.model_info is model:
        return
    here, there = ((fingerprint(one), compute_dtype(one)) for one in (model, engine.model_info))
    if here != there:
        raise SettingError(
            f"evaluate was given a model ({', '.join(here)}) and an engine that asks another one "
            f"({', '.join(there)}); give evaluate the engine's own, engine.model_info"
        )


def _tell(
    lost: Sequence[GenerationReply[Identity]], asked: Mapping[Identity, tuple[Sample, Fields]], total: int
) -> NoReturn:
    """Say what failed, once everything else is written."""
    of = [f"{asked[one.key][0].task} {asked[one.key][0].index} ({one.error})" for one in lost[:3]]
    raise EngineError(
        f"{len(lost)} of {total} samples failed and have no record: {'; '.join(of)}. What was answered is "
        "written: give the same command again to ask only the rest"
    )


def _spent(work: Sequence[int] | None) -> Spent | None:
    return None if work is None else Spent(*work)


def _written(text: str) -> str:
    """A text as it can be kept: half characters of a tokenizer of its own replaced, and bounded."""
    return text[:MAX_TEXT_LENGTH].encode(errors="replace").decode()


def answers_to(asked: Iterable[Identity], recorded: Mapping[Identity, Record]) -> list[Answer]:
    """The answers to these questions, in their order."""
    found = [recorded[key] for key in asked]
    return [record for record in found if isinstance(record, Answer)]


def check_counts(owner: str, rows: int, limit: int | None = None) -> None:
    """Rows at once, and samples of each task, are at least one."""
    check_int(owner, "rows", rows, minimum=1)
    if limit is not None:
        check_int(owner, "limit", limit, minimum=1)


def about(model: MaskPredictor | RemoteModelInfo, name: str, recipe: Recipe, seed: int) -> Fields:
    """What the records of a run share and are known by; a recipe that cannot be written is refused."""
    recipe_data(recipe)
    return {
        "model": name,
        "weights": fingerprint(model),
        "dtype": compute_dtype(model),
        "recipe": recipe,
        "seed": seed,
    }


@dataclass(frozen=True)
class Layout:
    """How a sample becomes token ids: through the chat template, or plain, begun with bos or not."""

    tokenizer: TextTokenizer | None  # None: a server tokenizes prompts
    chat: bool
    bos: bool = False

    @classmethod
    def of(
        cls, model: MaskPredictor | RemoteModelInfo, *, chat: bool | None = None, bos: bool = False
    ) -> Layout:
        if isinstance(model, RemoteModelInfo):
            return cls(None, model.has_chat_template if chat is None else chat, bos)
        tokenizer = tokenizer_of(model)
        return cls(tokenizer, tokenizer.chat_template is not None if chat is None else chat, bos)

    def in_chat(self, sample: Sample) -> bool:
        return bool(sample.turns) or self.chat

    def ids(self, sample: Sample) -> list[int]:
        said = self.said(sample)
        if self.tokenizer is None:
            return []
        if isinstance(said, str):
            return self.tokenizer.encode(said)
        return self.tokenizer.chat(said, continue_last=said[-1]["role"] == "assistant")

    def said(self, sample: Sample) -> str | tuple[dict[str, str], ...]:
        """The text or the messages that become ids."""
        if self.in_chat(sample):
            turns = sample.turns or (("user", sample.prompt),)
            return tuple({"role": role, "content": content} for role, content in turns)
        first = first_token(self.tokenizer) if self.bos else ""
        return first + sample.prompt

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
    replies: Sequence[GenerationReply[Identity]],
) -> list[float]:
    """A score per reply. What was not asked is not right, whatever a scorer makes of no text."""
    scores = [0.0] * len(samples)
    for name, task in tasks.items():
        mine = [
            at
            for at, sample in enumerate(samples)
            if sample.task == name and replies[at].details["finish"] != TOO_LONG
        ]
        if mine:
            found = task.score([samples[at] for at in mine], [texts[at] for at in mine])
            for at, score in zip(mine, found):
                scores[at] = score
    return scores
