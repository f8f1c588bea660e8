"""The model contract: token ids in, logits of selected columns out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from lastword.calibration import Calibration
from lastword.canvas.tokens import TokenIds, is_plain_tensor
from lastword.errors import NumericError, SettingError, WrongTypeError
from lastword.models.storage import RowStorage
from lastword.validation import MAX_SEED, check_int, check_type, short_repr

DEFAULT_MAX_NEW_TOKENS = 1024  # for checkpoints that do not state it: the usual canvas

MAX_SEQ_LEN = MAX_SEED  # some models have no bound

LOGIT_DTYPES = {torch.float64, torch.float32, torch.float16, torch.bfloat16}


@runtime_checkable
class TextTokenizer(Protocol):
    """Converts text and chat messages to ids, and ids to text."""

    @property
    def bos(self) -> str | None:
        """The token that may begin a text; None: there is none."""
        return None

    @property
    def chat_template(self) -> str | None:
        """The chat template, or None."""
        return None

    def encode(self, text: str) -> list[int]: ...

    def chat(self, messages: Sequence[Mapping[str, str]], *, continue_last: bool = False) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...


@runtime_checkable
class MaskPredictor(Protocol):
    """A masked diffusion language model: token ids in, logits for selected columns out.

    It knows token ids and cache storage, but neither steps nor lengths nor rules. Whatever the architecture
    does inside (Dream predicts each token from the column before it), the logits returned for a column
    predict the token AT that column. A model that subclasses this has no tokenizer, the usual canvas and no
    calibration, unless its class or a property says otherwise; `Adapter` makes one of any function.
    """

    ids: TokenIds
    max_seq_len: int  # the limit of prompt and answer together
    default_max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    calibration: Calibration | None = None  # the lengths of its answers relative to predictions
    supports_cache: bool = True  # whether its keys and values can be stored

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """None: prompts are token ids."""
        return None

    @property
    def device(self) -> torch.device: ...

    def __call__(
        self,
        tokens: Tensor,  # [B, L]
        read: Tensor,  # [B, S] columns to predict
        *,
        valid: Tensor | None = None,  # [B, L] False where a column is padding; None: all valid
        stale: Tensor | None = None,  # [B, R] columns to recompute; None: all
        storage: RowStorage | None = None,  # keys and values of the columns that are not stale
    ) -> Tensor:  # [B, S, V]
        """Return logits for the tokens at columns `read`, which must be among the stale ones."""
        ...


@runtime_checkable
class ModelProperties(Protocol):
    """The properties of a model that a recipe is resolved with."""

    @property
    def max_seq_len(self) -> int: ...
    @property
    def default_max_new_tokens(self) -> int: ...
    @property
    def calibration(self) -> Calibration | None: ...
    @property
    def supports_cache(self) -> bool: ...


RESOLVE_ATTRIBUTES = ("max_seq_len", "default_max_new_tokens", "calibration", "supports_cache")
MODEL_ATTRIBUTES = ("ids", *RESOLVE_ATTRIBUTES, "tokenizer", "device")


def check_model(model: Any, *, properties_only: bool = False) -> None:
    """Raise WrongTypeError unless a value is a model, or with `properties_only` has ModelProperties."""
    attributes = RESOLVE_ATTRIBUTES if properties_only else MODEL_ATTRIBUTES
    reason = ""
    if isinstance(model, type):
        reason = "it is a class, not an instance of it"
    elif missing := [name for name in attributes if not hasattr(model, name)]:
        reason = f"it has no {', '.join(missing)}"
    elif not (callable(model) or properties_only):
        reason = "it cannot be called"
    if reason:
        raise WrongTypeError(
            f"{short_repr(model)} was given as a model ({reason}); give the result of lastword.load, "
            "lastword.Adapter(...) around a function, or an instance of a subclass of lastword.MaskPredictor"
        )
    name = type(model).__name__
    if not properties_only:
        check_type(name, "ids", model.ids, TokenIds, "lastword.TokenIds(...)")
    for field in ("max_seq_len", "default_max_new_tokens"):
        check_int(name, field, getattr(model, field), minimum=1, maximum=MAX_SEQ_LEN)


def check_logits(logits: object, columns: Sequence[int], model: MaskPredictor) -> Tensor:
    """Return a model's logits for [B, S] columns, without those of a padded head beyond the vocabulary."""
    vocab_size, device = model.ids.vocab_size, model.device.type
    if is_plain_tensor(logits):
        fits = logits.ndim == 3 and logits.shape[:2] == (*columns,) and logits.shape[2] >= vocab_size
        if fits and logits.dtype in LOGIT_DTYPES and logits.device.type == device:
            return logits if logits.shape[2] == vocab_size else logits[..., :vocab_size]
        description = f"{logits.dtype} {tuple(logits.shape)} on {logits.device.type}"
    elif isinstance(logits, Tensor):
        description = "a sparse, nested or meta tensor"
    else:
        description = f"a {type(logits).__name__}"
    raise NumericError(
        f"the model returned {description}; it must return floating-point logits of shape ({columns[0]}, "
        f"{columns[1]}, {vocab_size} or more) on {device}"
    )


def decode_text(tokenizer: TextTokenizer | None, ids: Sequence[int]) -> str:
    """Return the text of ids, or the ids themselves if the model has no tokenizer."""
    if tokenizer is None:
        return "".join(f"{index} " for index in ids)
    text = tokenizer.decode(ids)
    if not isinstance(text, str):
        raise WrongTypeError(
            f"the tokenizer's decode returned {short_repr(text)}, a {type(text).__name__}; it must return text"
        )
    return text


def check_device(owner: str, device: Any) -> torch.device:
    """Return a device of this machine; SettingError if it cannot be used."""
    check_type(owner, "device", device, (str, torch.device), "a device, such as 'cpu' or 'cuda:1'")
    try:
        checked = torch.empty(0, device=device).device
        if checked.type == "meta":
            raise NotImplementedError("it holds shapes and no numbers")
    except (RuntimeError, AssertionError, ImportError) as error:  # NotImplementedError is one
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise SettingError(
            f"{owner}(device={short_repr(str(device))}) was given, which cannot be used here ({reason}); "
            "give cpu, or cuda, cuda:1 or mps where the machine and its torch have them"
        ) from error
    return checked
