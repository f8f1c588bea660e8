"""Adapters that make tasks of lm-evaluation-harness usable as tasks of `evaluate`.

The harness makes prompts, defines stop strings, and filters and scores answers. This package decodes, records
and resumes, as for every task. The harness's cache of answers is never used, because its key does not contain
the model. Programs in answers run in the sandbox of this package only.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from lastword.errors import ExtraError, LastwordError, TaskError, install_command
from lastword.evaluate.code import DREAM_VERSION, isolated_code, needed_code, run_tests
from lastword.evaluate.records import Fields
from lastword.evaluate.tasks import Sample, Task
from lastword.sandbox.runner import sandbox_info
from lastword.tasks import BENCHMARKS
from lastword.validation import short_repr

# The scores that the survival paper reports, by prefix of the task's name. Other tasks are scored by the first
# metric and filter that they define.
SCORES = {"gsm8k": "exact_match,strict-match", "bbh": "exact_match,get-answer", "minerva_math": "exact_match,none"}
# Code tasks and their filters: the filtered answer, followed by the target (tests), is a program to run.
PROGRAMS = {
    "humaneval": "create_test",
    "humaneval_plus": "create_test",
    "humaneval_instruct": "create_test",
    "mbpp": "none",
    "mbpp_plus": "none",
    "mbpp_instruct": "extract_code",
}
# Folders with the usual tasks: indexing all tasks of the harness takes about ten seconds.
USUAL = ("gsm8k", "bbh/cot_fewshot", "minerva_math", "benchmarks", "humaneval", "mbpp")
EXAMPLES_SEED = 1234  # the harness's default: prompts are those of its command line
Document = Mapping[str, Any]  # a row of a dataset
Untyped = Any  # the harness has no types
_LOG = logging.getLogger(__name__)


class HarnessTask:
    """A task of the harness with the interface of `Task`."""

    def __init__(
        self, task: Untyped, group: str, *, shots: int | None, chat: bool, score: str | None, dream_code: bool
    ) -> None:
        from lm_eval import __version__

        self.name, self.group = str(task.task_name), group
        self._task, self._chat, self._dream_code = task, chat, dream_code
        self._shots = _choose_shots(task, shots)
        self._metric, self._filter = _choose_score(task, score)
        if dream_code and not self.name.startswith("humaneval"):
            raise TaskError(f"dream_code was given for {self.name}; Dream's authors use it for HumanEval only")
        self.version = (
            f"lm-eval {__version__}, task version {task.VERSION}, {self._shots} shots, "
            f"{self._metric},{self._filter}{f', {DREAM_VERSION}' if dream_code else ''}"
        )

    @cached_property
    def _documents(self) -> list[Document]:
        return list(self._task.eval_docs)

    def samples(self, limit: int | None = None) -> list[Sample]:
        """Return the first `limit` samples (None: all); their few-shot examples do not depend on the limit."""
        self._task.set_fewshot_seed(EXAMPLES_SEED)
        stop = tuple(self._task.config.generation_kwargs.get("until") or ())
        if self._dream_code and "instruct" not in self.name:
            stop = ()  # Dream's authors cut only the answers of the instruct model
        return [self._sample(index, doc, stop) for index, doc in enumerate(self._documents[:limit])]

    def _sample(self, index: int, document: Document, stop: tuple[str, ...]) -> Sample:
        prompt = self._task.fewshot_context(
            document,
            num_fewshot=self._shots,
            apply_chat_template=self._chat,
            fewshot_as_multiturn=self._chat,
            chat_template=(lambda messages, **_: messages) if self._chat else None,
            gen_prefix=self._task.doc_to_prefix(document),
        )
        if not self._chat:
            return Sample(self.name, index, prompt, stop)
        turns = tuple((message["role"], message["content"]) for message in prompt)
        return Sample(self.name, index, "\n".join(text for _, text in turns), stop, turns=turns)

    def score(self, samples: Sequence[Sample], texts: Sequence[str]) -> list[float]:
        """Return a score from 0 to 1 per answer."""
        docs = [self._documents[sample.index] for sample in samples]
        answers: list[object] = (
            [needed_code(doc["prompt"], text, doc["entry_point"]) for doc, text in zip(docs, texts)]
            if self._dream_code
            else [self._filter_answer(doc, text) for doc, text in zip(docs, texts)]
        )
        if self.name in PROGRAMS:
            tests = [str(self._task.doc_to_target(doc)) for doc in docs]
            programs = [str((*one, "")[0]) if isinstance(one, list) else str(one) for one in answers]
            return [float(passed) for passed in run_tests(programs, tests)]
        return [self._score_answer(s, doc, answer) for s, doc, answer in zip(samples, docs, answers)]

    def conditions(self) -> Fields:
        return {"sandbox": sandbox_info()} if self.name in PROGRAMS else {}

    def _score_answer(self, sample: Sample, document: Document, answer: object) -> float:
        """Return a score: 0 if the scorer fails on this answer. Raise TaskError if it would fail on every answer."""
        try:
            scores = self._task.process_results(document, [answer])
        except (ImportError, AttributeError) as error:
            raise TaskError(
                f"{self.name} cannot be scored ({type(error).__name__}: {error}), because its scorer lacks a "
                "package, whatever the answer; install what the task needs (see the reason, or lm-eval's "
                "extras) and give the same command again"
            ) from error
        except Exception as error:  # scorers parse model output: sympy fails in many ways
            _LOG.warning("%s %d scores 0: %r in its scorer", self.name, sample.index, error)
            return 0.0
        with suppress(KeyError, TypeError, ValueError):
            score = float(scores[self._metric])
            if 0 <= score <= 1:
                return score
        raise TaskError(
            f"the scorer of {self.name} returned {scores.get(self._metric)!r} for the metric {self._metric!r}, and "
            f"scores must be between 0 and 1; its metrics are {', '.join(scores)}: choose another one"
        )

    def _filter_answer(self, document: Document, text: str) -> object:
        """Return an answer as the task's filter extracts it, or empty text if the filter fails on this answer."""
        from lm_eval.api.instance import Instance

        request = Instance("generate_until", document, ("", {}), 0, (self.name, 0, 1), resps=[text])
        chosen = next(candidate for candidate in self._task._filters if candidate.name == self._filter)
        try:
            chosen.apply([request])
        except (ImportError, AttributeError):
            raise
        except Exception as error:  # filters parse model output
            _LOG.warning("%s: an answer counts as empty: %r in its filter", self.name, error)
            return ""
        return request.filtered_resps[self._filter]


def harness_tasks(
    names: Sequence[str],
    *,
    shots: int | None = None,
    chat: bool = False,
    score: str | None = None,
    dream_code: bool = False,
    include_path: Sequence[Path] = (),
    data: Mapping[str, Path] = MappingProxyType({}),
) -> list[Task]:
    """Return tasks by name; a group is divided into its tasks, `bbh` into 27.

    `shots` replaces the number of examples in a prompt. With `chat`, prompts are conversations with a turn per
    example, for the tokenizer's chat template. `score` selects another "metric,filter" of the task. `dream_code`
    extracts programs from HumanEval answers as Dream's authors do; in tasks for base models, answers are then not
    cut at stop strings. `include_path` has folders with further tasks, as in the harness. Datasets are read from
    `data`, a file or folder by name of a task (`local_dataset`), else from the Hugging Face hub or its local cache.
    """
    manager = task_manager(tuple(names), tuple(include_path))
    tasks: list[Task] = []
    for name in dict.fromkeys(names):
        source = data.get(name)
        advice = "give a local copy with --data, or make the dataset available in the local cache or on the hub"
        if source is not None:
            advice = f"the task needs the splits and fields of its dataset, which {source} may lack"
        try:
            with _quiet(), isolated_code(), local_dataset(source):
                loaded = manager.load(name)["tasks"]
        except LastwordError:
            raise
        except Exception as error:  # a task runs third-party code and downloads data
            reason = str(error).splitlines()[0] if str(error) else "no reason given"
            raise TaskError(
                f"task {name!r} of lm-evaluation-harness cannot be loaded ({type(error).__name__}: {reason}); {advice}"
            ) from error
        options: dict[str, Any] = {"shots": shots, "chat": chat, "score": score, "dream_code": dream_code}
        tasks += [HarnessTask(task, name, **options) for task in loaded.values()]
    repeated = sorted(name for name, count in Counter(task.name for task in tasks).items() if count > 1)
    if repeated:
        raise TaskError(f"{repeated[0]!r} was named twice, alone or in a group; name it once")
    return tasks


DATA_SUFFIXES = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
SPLITS = ("train", "validation", "test")


@contextmanager
def local_dataset(source: Path | None) -> Iterator[None]:
    """Load the dataset of every task from a file or folder inside the context (None: as usual).

    A file is the test split. A folder has a file per split, such as `test.jsonl`, or a file or folder per
    configuration of the dataset, such as `boolean_expressions.jsonl` for BBH.
    """
    import datasets

    if source is None:
        yield
        return
    if not source.exists():
        raise TaskError(f"there is no file or folder {source}; give a copy of the task's dataset")
    original = datasets.load_dataset

    def load(path: str, name: str | None = None, **settings: Any) -> Untyped:
        files = dataset_files(source, name)
        kinds = {DATA_SUFFIXES[file.suffix] for file in files.values()}
        if len(kinds) != 1:
            expected = " or ".join(f"{name or 'test'}{suffix}" for suffix in DATA_SUFFIXES)
            raise TaskError(f"{source} has no data of {path}{f', {name}' if name else ''}; give one file, {expected}")
        loaded = original(kinds.pop(), data_files={split: str(file) for split, file in files.items()})
        for split in SPLITS:  # a task asks for its examples, even if none are wanted
            loaded.setdefault(split, next(iter(loaded.values())).select([]))
        return loaded

    with patch.object(datasets, "load_dataset", load):
        yield


def dataset_files(source: Path, configuration: str | None) -> dict[str, Path]:
    """Return the data file of each split in a file or folder, for a configuration of the dataset."""
    if source.is_file():
        return {"test": source} if source.suffix in DATA_SUFFIXES else {}
    folders = [source / configuration, source] if configuration else [source]
    for folder in folders:
        candidates = [(split, folder / f"{split}{suffix}") for split in SPLITS for suffix in DATA_SUFFIXES]
        if files := {split: path for split, path in candidates if path.is_file()}:
            return files
    alone = [source / f"{configuration}{suffix}" for suffix in DATA_SUFFIXES if configuration]
    found = next(filter(Path.is_file, alone), None)
    return {} if found is None else {"test": found}


@lru_cache(maxsize=8)
def task_manager(names: tuple[str, ...], include_path: tuple[Path, ...] = ()) -> Untyped:
    """Return a task manager of the harness; raise TaskError if it lacks one of these tasks."""

    def not_embedded(name: str) -> str:
        known = ("tiny", *BENCHMARKS)
        match = get_close_matches(name, known, 1)
        hint = f" (did you mean {match[0]!r}?)" if match else ""
        return f"there is no embedded task {short_repr(name)}{hint}, only {', '.join(known)}"

    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise ExtraError(f"{not_embedded(names[0])}; for tasks of lm-eval: {install_command('eval')}") from error
    folder = Path(lm_eval.__file__).parent / "tasks"
    for path in include_path:
        if not path.is_dir():
            raise TaskError(f"--include-path {path} is not a folder; give one with the YAML files of tasks")
    with _quiet():
        manager = TaskManager(include_path=[*(folder / name for name in USUAL), *include_path], include_defaults=False)
        if not set(names) <= set(manager.all_tasks):
            manager = TaskManager(include_path=list(include_path))
    unknown = [name for name in names if name not in manager.all_tasks]
    if unknown:
        raise TaskError(f"{not_embedded(unknown[0])}, and lm-evaluation-harness has none: `lm-eval ls tasks` lists all")
    return manager


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the harness's log and the progress bars of its libraries inside the context."""
    import datasets

    loggers = [logging.getLogger(name) for name in ("lm_eval", "huggingface_hub")]
    levels, bars = [logger.level for logger in loggers], not datasets.are_progress_bars_disabled()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
        if bars:
            datasets.enable_progress_bars()


def _choose_shots(task: Untyped, shots: int | None) -> int:
    """Return the number of examples per prompt (None: the task's); raise TaskError if the task has too few."""
    default = task.config.num_fewshot or 0
    shots = default if shots is None else shots
    if shots == 0:
        return 0
    if default == 0:
        raise TaskError(f"{task.task_name} has no examples, and {shots} shots were given; use 0 shots")
    available = len(task.sampler.df)
    if not 0 <= shots <= available:
        raise TaskError(f"{task.task_name} has {available} examples, and {shots} shots were given; use fewer")
    return shots


def _choose_score(task: Untyped, score: str | None) -> tuple[str, str]:
    """Return the metric and the filter; raise TaskError if the task cannot be scored sample by sample."""
    from lm_eval.api.metrics import mean

    name, is_program = task.task_name, task.task_name in PROGRAMS and score is None
    obstacles = {
        f"needs {task.OUTPUT_TYPE}, and decoding gives texts": task.OUTPUT_TYPE != "generate_until",
        "needs pictures or sound": getattr(task, "MULTIMODAL", False),
        "needs several answers per sample": (task.config.repeats or 1) > 1,
        f"runs the code of answers itself, outside of our sandbox; code tasks with pass@1 are {', '.join(PROGRAMS)}": (
            getattr(task, "UNSAFE_CODE", False) and not is_program
        ),
    }
    if any(obstacles.values()):
        reason = next(reason for reason, is_present in obstacles.items() if is_present)
        raise TaskError(f"{name} {reason}: choose another task")
    if is_program:
        return "pass@1", PROGRAMS[name]
    means = [metric for metric, combine in task.aggregation().items() if combine is mean]
    scores = [f"{metric},{candidate.name}" for candidate in task._filters for metric in means]
    usual = [known for prefix, known in SCORES.items() if name.startswith(prefix)]
    chosen = score or next(iter(usual + scores), "none")
    if chosen not in scores:
        raise TaskError(f"{name} has no score {chosen!r} that is a mean; it has {', '.join(scores) or 'none'}")
    metric, _, filter_name = chosen.partition(",")
    return metric, filter_name
