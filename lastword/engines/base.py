"""The engine contract: requests, replies, and the properties of the model that answers."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeVar, runtime_checkable

import torch

from lastword.calibration import Calibration
from lastword.canvas.tokens import TokenIds
from lastword.decoding.forward import TokenCost
from lastword.errors import LastwordError, SettingError, WrongTypeError
from lastword.models.base import MODEL_ATTRIBUTES, MaskPredictor, TextTokenizer
from lastword.models.weights import fingerprint, model_key
from lastword.policies.length.policy import Plan
from lastword.recipe.recipe import Recipe
from lastword.validation import MAX_SLOTS, short_repr
from lastword.version import __version__

TOO_LONG = "too_long"  # `finish` of a reply without decoding: fewer than MIN_SLOTS slots fit after the prompt
FAILED = "failed"  # `finish` of a reply with an error
UNKNOWN = "unknown"  # a property that the server of a remote model does not report

PORTION = 4096  # requests of an iterable that an engine reads at once

Key = TypeVar("Key")
ReplyDetails = dict[str, Any]  # lengths, costs, seconds and environment of an answer, as plain data


@dataclass
class ModelInfo:
    """The properties of a model that suffice to tokenize prompts and resolve recipes without its weights."""

    ids: TokenIds
    max_seq_len: int
    default_max_new_tokens: int
    calibration: Calibration | None
    supports_cache: bool
    tokenizer: TextTokenizer | None
    fingerprint: str
    model_key: str | None  # None: the weights cannot be identified
    dtype: str
    versions: Mapping[str, str]  # of the libraries in the worker
    device: torch.device = torch.device("cpu")  # where prompts become tensors

    @classmethod
    def from_model(cls, model: MaskPredictor) -> ModelInfo:
        """Return the properties of a loaded model."""
        try:
            key: str | None = model_key(model)
        except LastwordError:
            key = None
        values: dict[str, Any] = {name: getattr(model, name) for name in MODEL_ATTRIBUTES if name != "device"}
        values |= {"fingerprint": fingerprint(model), "model_key": key, "dtype": compute_dtype(model)}
        return cls(**values, versions=library_versions())

    @property
    def identity(self) -> tuple[object, ...]:
        """The properties that answers depend on; they must be the same in all workers of a pool."""
        calibration = self.calibration and self.calibration.to_json()
        return self.fingerprint, self.dtype, self.ids, self.max_seq_len, self.default_max_new_tokens, calibration

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise SettingError(
            "the weights of this model are in the workers of an engine, so it has no forward pass here: use "
            "engine.generate, or load the model (lastword.load)"
        )


@dataclass(frozen=True)
class RemoteModelInfo:
    """The properties of a model behind a server. Servers other than lastword's report none: the defaults apply."""

    is_lastword: bool
    has_chat_template: bool = True
    default_max_new_tokens: int = MAX_SLOTS
    max_seq_len: int = MAX_SLOTS
    fingerprint: str = UNKNOWN
    dtype: str = UNKNOWN
    hardware: str = UNKNOWN
    calibration: Calibration | None = None
    supports_cache: bool = True

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> RemoteModelInfo:
        """Return the properties that one entry of the server's list of models (/v1/models) reports."""
        report = entry.get("lastword")
        if not isinstance(report, dict):
            return cls(is_lastword=False)
        renamed = {"chat": "has_chat_template", "weights": "fingerprint"}
        known = {renamed.get(name, name): value for name, value in report.items()}
        return cls(True, **{one.name: known[one.name] for one in fields(cls)[1:] if one.name in known})


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt, the seed of its row, and what ends its answer early: a cap on its slots, and stop strings.

    `prompt_ids` is empty if a server tokenizes the prompt; local workers do not read `prompt_text`.
    """

    prompt_ids: list[int]
    seed: int
    max_new_tokens: int | None = None  # None: no cap besides the recipe's
    prompt_text: str | tuple[dict[str, str], ...] | None = None  # text or chat messages
    stop: tuple[str, ...] = ()  # strings that end the answer
    plan: tuple[Plan, TokenCost] | None = field(default=None, repr=False, compare=False)  # with its probe cost
    recipe: Recipe | None = None  # replaces the recipe of the call


@dataclass(frozen=True)
class GenerationReply(Generic[Key]):
    """The text and the details of an answer, or the error of the last attempt to decode it."""

    key: Key
    text: str
    details: ReplyDetails
    error: str | None = None


Requests = Mapping[Key, GenerationRequest] | Iterable[tuple[Key, GenerationRequest]]  # an iterable is read in parts
Replies = Iterator[list[GenerationReply[Key]]]
Lengths = Iterator[dict[Key, int]]


def request_pairs(requests: Requests[Key]) -> Iterator[tuple[Key, GenerationRequest]]:
    """Return an iterator over keys and requests."""
    return iter(requests.items() if isinstance(requests, Mapping) else requests)


def portions(requests: Requests[Key]) -> Iterator[Mapping[Key, GenerationRequest]]:
    """Yield a mapping whole, and other requests in portions of PORTION."""
    if isinstance(requests, Mapping):
        yield requests
        return
    pairs = iter(requests)
    while portion := dict(islice(pairs, PORTION)):
        yield portion


@runtime_checkable
class Engine(Protocol):
    """A source of answers for one caller at a time. Each request's key is returned once, with an answer or an error.

    Requests that are not a mapping are read while others are answered, so that their number is not limited by memory.
    Replies are yielded in the order in which they finish. An answer depends on its request and the recipe only.
    """

    @property
    def model_info(self) -> ModelInfo | RemoteModelInfo: ...

    def generate(self, requests: Requests[Key], recipe: Recipe, *, max_batch_size: int) -> Replies[Key]:
        """Yield replies until every request has one; each worker decodes up to `max_batch_size` rows at once."""

    def predict_lengths(self, requests: Requests[Key], recipe: Recipe, *, max_batch_size: int) -> Lengths[Key]:
        """Yield planned numbers of slots by key; requests whose length cannot be predicted are left out."""

    def close(self) -> None:
        """Release processes and connections."""


def check_engine(owner: str, engine: object) -> None:
    """Raise WrongTypeError unless `engine` has the methods of an engine; no worker is started."""
    lacking = [name for name in ("generate", "predict_lengths", "close") if not callable(getattr(engine, name, None))]
    if lacking or isinstance(engine, type):
        raise WrongTypeError(
            f"{owner}(engine={short_repr(engine)}) was given; engine must be one, such as "
            "lastword.engines.LocalEngine(model) or WorkerPool(ProcessWorkers(ModelSource(name), workers=2))"
        )


def empty_details(prompt_tokens: int, finish: str = TOO_LONG) -> ReplyDetails:
    """Return the details of a reply to a request that was not decoded: lengths and costs are 0."""
    no_cost = TokenCost(0, 0, 0)
    sizes = {"prompt_tokens": prompt_tokens, "horizon": 0, "expected_length": None, "tail": None, "length": 0}
    costs = {"probe_cost": no_cost, "cost": no_cost, "seconds": 0.0, "rows": 1, "seconds_share": 0.0}
    return {**sizes, **costs, "finish": finish, "shortened": False}


def environment(model: MaskPredictor) -> dict[str, Any]:
    """Return the hardware and the library versions of this process, which timings depend on."""
    if model.device.type == "cuda":
        hardware = torch.cuda.get_device_name(model.device)
    else:
        hardware = f"{_processor_name()}, {torch.get_num_threads()} threads"
    return {"hardware": hardware, "versions": library_versions()}


def library_versions() -> dict[str, str]:
    """Return the versions of lastword, PyTorch and Python."""
    return {"lastword": __version__, "torch": torch.__version__, "python": platform.python_version()}


def compute_dtype(model: MaskPredictor | RemoteModelInfo) -> str:
    """Return the dtype of the model's activations, with a note if its weights are quantized."""
    if isinstance(known := getattr(model, "dtype", None), str):  # a model in another process
        return known
    dtypes = [p.dtype for p in model.parameters()] if hasattr(model, "parameters") else []
    name = str(dtypes[0] if dtypes else torch.float32).removeprefix("torch.")
    for dtype, note in ((torch.float8_e4m3fn, "fp8"), (torch.int8, "int8")):
        if dtype in dtypes:
            return f"{name}, {note} weights"
    return name


@cache
def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else f"{platform.processor() or platform.machine()} {sys.platform}"
