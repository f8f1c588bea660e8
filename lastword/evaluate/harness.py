"""Tasks of lm-evaluation-harness as tasks of ours.

The harness builds prompts, names stop strings, filters answers and scores them; asking, recording and
resuming is ours, as for every other task. Its own cache of answers, whose key leaves out the model, is
never used. Model-written code runs in our isolation and nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from lastword.errors import ExtraError, TaskError, install_command
from lastword.evaluate.code import isolated_code, passes
from lastword.evaluate.dream_code import VERSION as DREAM_CODE
from lastword.evaluate.dream_code import needed_code
from lastword.evaluate.records import Fields
from lastword.evaluate.task import Sample, Task
from lastword.sandbox.runner import sandbox_info
from lastword.tasks import BENCHMARKS
from lastword.validation import short_repr

# Which of a task's scores counts, by the beginning of its name: those the survival paper reports. Any other
# task counts by the first metric and filter it defines.
SCORED = {
    "gsm8k": "exact_match,strict-match",
    "bbh": "exact_match,get-answer",
    "minerva_math": "exact_match,none",
}
# Tasks whose answer, put before their target, is a program that passes or not; and the filter to use.
PROGRAMS = {
    "humaneval": "create_test",
    "humaneval_plus": "create_test",
    "humaneval_instruct": "create_test",
    "mbpp": "none",
    "mbpp_plus": "none",
    "mbpp_instruct": "extract_code",
}
# Where the usual tasks are defined: all of the harness takes some ten seconds to index, these none.
USUAL = ("gsm8k", "bbh/cot_fewshot", "minerva_math", "benchmarks", "humaneval", "mbpp")
Document = Mapping[str, Any]  # whatever the dataset has
Foreign = Any  # the harness is not typed
_LOG = logging.getLogger(__name__)
EXAMPLES_SEED = 1234  # the harness's own default, so that prompts are those of its command


class HarnessTask:
    """One task of the harness, under its name there."""

    def __init__(
        self,
        task: Foreign,
        group: str,
        *,
        shots: int | None = None,
        chat: bool = False,
        score: str | None = None,
        dream_code: bool = False,
    ) -> None:
        self.name, self.group = str(task.task_name), group
        self._task, self._chat, self._dream_code = task, chat, dream_code
        self._shots = _shots(task, shots)
        self._metric, self._filter = _scored(task, score)
        if dream_code and not self.name.startswith("humaneval"):
            raise TaskError(f"code was to be read as Dream does, and {self.name} is not HumanEval")
        from lm_eval import __version__

        self.version = (
            f"lm-eval {__version__}, task version {task.VERSION}, {self._shots} shots, "
            f"{self._metric},{self._filter}{f', {DREAM_CODE}' if dream_code else ''}"
        )

    @cached_property
    def _docs(self) -> list[Document]:
        return list(self._task.eval_docs)

    def samples(self, limit: int | None = None) -> list[Sample]:
        # Examples are drawn in the order of documents from one generator: always from its start and
        # never for a few documents alone, a prompt is the same in every run.
        self._task.set_fewshot_seed(EXAMPLES_SEED)
        stop = tuple(self._task.config.generation_kwargs.get("until") or ())
        if self._dream_code and "instruct" not in self.name:
            stop = ()  # Dream's authors cut the instruct model's answers alone
        return [self._sample(index, doc, stop) for index, doc in enumerate(self._docs[:limit])]

    def _sample(self, index: int, doc: Document, stop: tuple[str, ...]) -> Sample:
        asked = self._task.fewshot_context(
            doc,
            num_fewshot=self._shots,
            apply_chat_template=self._chat,
            fewshot_as_multiturn=self._chat,
            chat_template=_turns if self._chat else None,
            gen_prefix=self._task.doc_to_prefix(doc),
        )
        if not self._chat:
            return Sample(self.name, index, asked, stop)
        return Sample(self.name, index, "\n".join(text for _, text in asked), stop, turns=asked)

    def score(self, samples: Sequence[Sample], texts: Sequence[str]) -> list[float]:
        docs = [self._docs[sample.index] for sample in samples]
        if self._dream_code:
            found: list[object] = [
                needed_code(doc["prompt"], text, doc["entry_point"]) for doc, text in zip(docs, texts)
            ]
        else:
            found = self._filtered(docs, texts)
        if self.name in PROGRAMS:
            tests = [str(self._task.doc_to_target(doc)) for doc in docs]
            programs = [_program(answer) for answer in found]
            return [float(passed) for passed in passes(programs, tests)]
        return [self._counted(sample, doc, one) for sample, doc, one in zip(samples, docs, found)]

    def conditions(self) -> Fields:
        return {"sandbox": sandbox_info()} if self.name in PROGRAMS else {}

    def _counted(self, sample: Sample, doc: Document, answer: object) -> float:
        """The score of one answer. A record is final, so only what a model wrote may cost it its score."""
        try:
            scores = self._task.process_results(doc, [answer])
        except (ImportError, AttributeError) as broken:
            raise TaskError(
                f"{self.name} cannot be scored here ({type(broken).__name__}: {broken}): its scorer lacks "
                "something, whatever the answer; install what the task needs (its name is in the reason, or "
                "lm-eval's extras) and give the same command again"
            ) from broken
        except Exception as failed:  # a scorer reads what a model wrote: sympy fails in many ways
            _LOG.warning("%s %d scores 0: %r in its scorer", self.name, sample.index, failed)
            return 0.0
        try:
            score = float(scores[self._metric])
        except (KeyError, TypeError, ValueError) as missing:
            raise TaskError(
                f"{self.name} was to be scored by {self._metric!r}, and its scorer gave "
                f"{scores.get(self._metric)!r} for it; it has {', '.join(scores)}: choose one of them"
            ) from missing
        if not 0 <= score <= 1:
            raise TaskError(
                f"{self.name} scored {score:g} by {self._metric!r}, and a record's score lies between 0 and "
                "1: choose another of its scores"
            )
        return score

    def _filtered(self, docs: Sequence[Document], texts: Sequence[str]) -> list[object]:
        """The answers after the harness's filter; one that it fails on counts as empty."""
        try:
            return self._after_filter(docs, texts)
        except (ImportError, AttributeError):
            raise
        except Exception as failed:  # a filter reads what a model wrote
            if len(texts) > 1:
                pairs = zip(docs, texts)
                return [one for doc, text in pairs for one in self._filtered([doc], [text])]
            _LOG.warning("%s: an answer counts as empty: %r in its filter", self.name, failed)
            return [""]

    def _after_filter(self, docs: Sequence[Document], texts: Sequence[str]) -> list[object]:
        """The harness's filter reads answers from requests."""
        from lm_eval.api.instance import Instance

        requests = [
            Instance("generate_until", doc, ("", {}), 0, (self.name, at, 1), resps=[text])
            for at, (doc, text) in enumerate(zip(docs, texts))
        ]
        chosen = next(one for one in self._task._filters if one.name == self._filter)
        chosen.apply(requests)
        return [request.filtered_resps[self._filter] for request in requests]


def _program(answer: object) -> str:
    """The text of a filtered answer; some filters give a list of one, or of none."""
    return str((*answer, "")[0]) if isinstance(answer, list) else str(answer)


def harness_tasks(
    names: Sequence[str],
    *,
    shots: int | None = None,
    chat: bool = False,
    score: str | None = None,
    dream_code: bool = False,
) -> list[Task]:
    """The tasks of these names, groups taken apart: `bbh` is 27 of them, `minerva_math` seven.

    `shots` replaces the number of examples a task shows. `chat` lays prompts out as a conversation, an
    example a turn; the tokenizer's template does the rest. `score` counts another of a task's scores, as the
    harness writes it ("exact_match,flexible-extract"). `dream_code` reads HumanEval answers as
    Dream's authors do; a base model's are not cut. Datasets come from the hub or its local cache.
    """
    manager = _manager_of(tuple(names))
    tasks: list[Task] = []
    for name in dict.fromkeys(names):
        try:
            with _quiet(), isolated_code():
                loaded = manager.load(name)["tasks"]
        except TaskError:
            raise
        except Exception as failed:  # a task is foreign code and data from a network
            raise TaskError(
                f"task {name!r} of lm-evaluation-harness cannot be loaded ({type(failed).__name__}: "
                f"{str(failed).splitlines()[0] if str(failed) else 'no reason given'}); see that its "
                "dataset is in the local cache, or that the hub can be reached"
            ) from failed
        tasks += [
            HarnessTask(task, name, shots=shots, chat=chat, score=score, dream_code=dream_code)
            for task in loaded.values()
        ]
    twice = {task.name for task in tasks if [one.name for one in tasks].count(task.name) > 1}
    if twice:
        raise TaskError(f"{sorted(twice)[0]!r} was named twice, alone or in a group; leave one of them out")
    return tasks


def check_names(names: Sequence[str]) -> None:
    """Refuse a name the harness does not know, before anything heavy is loaded."""
    _manager_of(tuple(names))


@lru_cache(maxsize=8)
def _manager_of(names: tuple[str, ...]) -> Foreign:
    """A task manager that knows all of these."""
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ImportError as missing:
        raise ExtraError(
            f"{_not_embedded(names[0])}; for tasks of lm-evaluation-harness: {install_command('eval')}"
        ) from missing
    folder = Path(lm_eval.__file__).parent / "tasks"
    with _quiet():
        manager = TaskManager(include_path=[folder / name for name in USUAL], include_defaults=False)
        if not set(names) <= set(manager.all_tasks):
            manager = TaskManager()
    unknown = [name for name in names if name not in manager.all_tasks]
    if unknown:
        raise TaskError(
            f"{_not_embedded(unknown[0])}; nor is it one of lm-evaluation-harness: `lm-eval ls tasks` "
            "lists those"
        )
    return manager


def _not_embedded(name: str) -> str:
    """That no embedded task has this name, and which there are."""
    known = ("tiny", *BENCHMARKS)
    near = get_close_matches(name, known, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"there is no embedded task {short_repr(name)}{hint}, only {', '.join(known)}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the harness's remarks and its libraries' progress bars: our command shows its own."""
    import datasets

    logger = logging.getLogger("lm_eval")
    level, bars = logger.level, not datasets.are_progress_bars_disabled()
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            datasets.enable_progress_bars()


def _turns(
    messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
) -> tuple[tuple[str, str], ...]:
    """The harness's messages as turns; one to be continued is the assistant's, and comes last."""
    return tuple((message["role"], message["content"]) for message in messages)


def _shots(task: Foreign, asked: int | None) -> int:
    """How many examples to show: what was asked, where the task allows it, or its own number."""
    own = task.config.num_fewshot or 0
    if asked is None or asked == own:
        return own
    if own == 0:
        raise TaskError(
            f"{asked} shots were asked of {task.task_name}, which is defined without examples; leave it 0"
        )
    there = len(task.sampler.df)
    if not 0 <= asked <= there:
        raise TaskError(f"{asked} shots were asked of {task.task_name}, which has {there} examples")
    return asked


def _scored(task: Foreign, asked: str | None) -> tuple[str, str]:
    """The metric and filter that count; what cannot be scored sample by sample is refused."""
    from lm_eval.api.metrics import mean

    name = task.task_name
    if task.OUTPUT_TYPE != "generate_until":
        raise TaskError(
            f"{name} asks for {task.OUTPUT_TYPE}, and decoding gives texts, no likelihoods; "
            "choose a task that generates"
        )
    if getattr(task, "MULTIMODAL", False) or (task.config.repeats or 1) > 1:
        raise TaskError(f"{name} needs pictures, sound or several answers a sample; choose another")
    if name in PROGRAMS and asked is None:
        return "pass@1", PROGRAMS[name]
    if getattr(task, "UNSAFE_CODE", False):
        raise TaskError(
            f"{name} would run model-written code in a way of its own, which we cannot isolate; code tasks "
            f"we can, by pass@1: {', '.join(PROGRAMS)}"
        )
    means = [metric for metric, combine in task.aggregation().items() if combine is mean]
    scores = [f"{metric},{one.name}" for one in task._filters for metric in means]
    usual = [score for begin, score in SCORED.items() if name.startswith(begin)]
    chosen = asked or next(iter(usual + scores), "none")
    if chosen not in scores:
        raise TaskError(
            f"{name} has no score {chosen!r} that is a mean over its samples; it has "
            f"{', '.join(scores) or 'none'}"
        )
    metric, filter = chosen.split(",", 1)
    return metric, filter
