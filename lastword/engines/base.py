"""The engine contract: requests, replies, tasks and events of workers, and what is known of their model."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, Literal, NoReturn, Protocol, TypeVar, runtime_checkable

import torch

from lastword.calibration.ratios import Calibration
from lastword.canvas.cost import TokenCost
from lastword.canvas.tokens import TokenIds
from lastword.errors import LastwordError, SettingError, WrongTypeError
from lastword.models.base import MaskPredictor, TextTokenizer
from lastword.models.weights import fingerprint, model_key
from lastword.policies.length.policy import Plan
from lastword.recipe.recipe import Recipe
from lastword.validation import short_repr
from lastword.version import __version__


def environment(model: MaskPredictor) -> dict[str, Any]:
    """What a figure depends on besides model and recipe."""
    device = model.device
    return {
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "versions": library_versions(),
    }


def library_versions() -> dict[str, str]:
    """Of what computes answers here."""
    return {
        "lastword": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def compute_dtype(model: MaskPredictor) -> str:
    """What the model computes in, and the dtype of its layers' weights where that is another."""
    if isinstance(known := getattr(model, "dtype", None), str):  # its weights are elsewhere
        return known
    found = [p.dtype for p in model.parameters()] if hasattr(model, "parameters") else []
    computes = str(found[0] if found else torch.float32).removeprefix("torch.")
    return f"{computes}, fp8 weights" if torch.float8_e4m3fn in found else computes


def _processor() -> str:
    """The CPU by name where the system tells it, and the threads in use."""
    return f"{_processor_name()}, {torch.get_num_threads()} threads"


@lru_cache(maxsize=1)
def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        named = []
    return named[0] if named else f"{platform.processor() or platform.machine()} {sys.platform}"


@dataclass
class ModelInfo:
    """All of a model but its passes: prompts are tokenised and recipes settled with it.

    Two workers that say the same `fingerprint`, `dtype` and `ids` give the same answers.
    """

    ids: TokenIds
    max_seq_len: int
    default_max_new_tokens: int
    calibration: Calibration | None
    supports_cache: bool
    tokenizer: TextTokenizer | None
    fingerprint: str  # what lastword.models.weights says of the weights
    model_key: str | None  # and of what lengths depend on; None: it cannot tell
    dtype: str
    versions: Mapping[str, str]  # of the worker that said all this
    device: torch.device = torch.device("cpu")  # prompts are made into tensors nowhere else

    @classmethod
    def from_model(cls, model: MaskPredictor) -> ModelInfo:
        """What a worker says of the model it has loaded."""
        try:
            key: str | None = model_key(model)
        except LastwordError:
            key = None
        return cls(
            ids=model.ids,
            max_seq_len=model.max_seq_len,
            default_max_new_tokens=model.default_max_new_tokens,
            calibration=model.calibration,
            supports_cache=model.supports_cache,
            tokenizer=model.tokenizer,
            fingerprint=fingerprint(model),
            model_key=key,
            dtype=compute_dtype(model),
            versions=library_versions(),
        )

    @property
    def identity(self) -> tuple[object, ...]:
        """What answers depend on, as far as it can be told."""
        calibrated = None if self.calibration is None else self.calibration.to_json()
        return (
            self.fingerprint,
            self.dtype,
            self.ids,
            self.max_seq_len,
            self.default_max_new_tokens,
            calibrated,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise SettingError(
            "this model's weights are with the workers of an engine, so no pass can be computed here: ask "
            "the engine, or load the model (lastword.load)"
        )


TOO_LONG = "too_long"  # how an answer finished that was not asked: the prompt left no room
FAILED = "failed"  # and one that never came

Key = TypeVar("Key")
ReplyDetails = dict[str, Any]  # how an answer came, as plain data and `Work`


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt as token ids, the seed of its row, and the slots its answer may have at most."""

    prompt_ids: list[int]
    seed: int
    max_new_tokens: int | None = None  # None: as many as the recipe says
    prompt_text: str | tuple[dict[str, str], ...] | None = None  # the same, for who reads text or messages
    # What decoding by this recipe begins with, where it was made before.
    plan: tuple[Plan, TokenCost] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class GenerationReply(Generic[Key]):
    """The text that came, whole, and how it came; or why none came, after every try."""

    key: Key
    text: str
    details: ReplyDetails
    error: str | None = None


@runtime_checkable
class Engine(Protocol):
    """Answers questions; a key comes back exactly once, with an answer or a failure of its own.

    What was answered is handed over as soon as it is there, some at a time and in any order, so that a
    caller can write it down. An answer depends on question and recipe alone, not on who gave it. One caller
    asks at a time.
    """

    @property
    def model(self) -> MaskPredictor:
        """The model that answers, or what is known of it here (`Elsewhere`)."""
        ...

    def generate(
        self, requests: Mapping[Key, GenerationRequest], recipe: Recipe, *, max_batch_size: int
    ) -> Iterator[list[GenerationReply[Key]]]:
        """Replies to all questions; a worker decodes `rows` of them at once."""
        ...

    def close(self) -> None:
        """Give back what the engine holds: processes, connections."""


@runtime_checkable
class LengthPredictor(Protocol):
    """An engine that can say how long answers will be before it is asked for any."""

    def predict_lengths(
        self, requests: Mapping[Key, GenerationRequest], recipe: Recipe, *, max_batch_size: int
    ) -> Iterator[dict[Key, int]]:
        """Slots that answers are planned to take, by key, some at a time; of some questions nobody knows."""


def check_engine(owner: str, engine: object) -> None:
    """Refuse what is no engine. Its model is not looked at: that may start workers."""
    lacking = [name for name in ("generate", "close") if not callable(getattr(engine, name, None))]
    if lacking or isinstance(engine, type):
        raise WrongTypeError(
            f"{owner}(engine={short_repr(engine)}) was given; engine must be one, such as "
            "lastword.engines.LocalEngine(model) or WorkerPool(ProcessWorkers(ModelSource(name), workers=2))"
        )


TaskResult = (
    Sequence["PredictedLength | None"] | Sequence[GenerationReply[int]]
)  # of each question, in the order of the job


@dataclass(frozen=True)
class PredictedLength:
    """Slots that an answer is planned to take, and the plan, so that nobody has to probe again."""

    slots: int
    plan: tuple[Plan, TokenCost] | None


@dataclass(frozen=True)
class WorkerTask:
    """Questions that one worker is given at once: to predict how long their answers are, or to answer.

    Its number is its own for as long as the pool lives. A job changes nothing where it runs, so that it
    can be given again.
    """

    task_id: int
    kind: Literal["predict", "answer"]
    requests: tuple[GenerationRequest, ...]
    recipe: Recipe
    max_batch_size: int  # decoded at once


@dataclass(frozen=True)
class WorkerReady:
    """A worker that was started has loaded its model."""

    worker: int
    model_info: ModelInfo


@dataclass(frozen=True)
class WorkerLoadFailed:
    """A worker that was started runs, and cannot load its model."""

    worker: int
    reason: str


@dataclass(frozen=True)
class TaskDone:
    """A job's result: a prediction, or None, or a reply for each of its questions, in their order."""

    worker: int
    task_id: int
    result: TaskResult


@dataclass(frozen=True)
class TaskFailed:
    """A job raised something; its worker goes on."""

    worker: int
    task_id: int
    reason: str


@dataclass(frozen=True)
class TaskRejected:
    """Something is wrong with every question alike, such as the recipe: the caller is told."""

    worker: int
    task_id: int
    error: LastwordError


@dataclass(frozen=True)
class WorkerDied:
    """A worker is gone, and with it the job it had."""

    worker: int
    reason: str


WorkerEvent = WorkerReady | WorkerLoadFailed | TaskDone | TaskFailed | TaskRejected | WorkerDied


@runtime_checkable
class WorkerBackend(Protocol):
    """Workers, numbered from 0. A worker has one job at a time, and says so when it is through with it."""

    num_workers: int

    def start(self, worker: int) -> None:
        """Start a worker, or start it again. `Ready`, `Unable` or `Died` comes of it."""

    def submit(self, worker: int, job: WorkerTask) -> None:
        """Give a worker that is ready a job. `Done`, `Failed`, `Refused` or `Died` comes of it."""

    def wait(self, seconds: float) -> Sequence[WorkerEvent]:
        """What happened since, as soon as something did; nothing after so many seconds."""

    def pending(self) -> str:
        """In words, what workers that are not ready wait for."""

    def close(self) -> None:
        """End the workers that were started here, and nothing else."""
