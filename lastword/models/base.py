"""The model contract: token ids in, logits of selected columns out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from lastword.calibration import Calibration
from lastword.canvas.tokens import FLOAT_DTYPES, TokenIds, is_plain_tensor
from lastword.errors import NumericError, SettingError, WrongTypeError
from lastword.models.storage import RowStorage
from lastword.validation import MAX_SEED, check_int, check_type, short_repr

DEFAULT_MAX_NEW_TOKENS = 1024  # for checkpoints that do not set max_new_tokens

MAX_SEQ_LEN = MAX_SEED  # the largest accepted value, for models without a limit


@runtime_checkable
class TextTokenizer(Protocol):
    """A converter of text and chat messages to ids, and of ids to text."""

    @property
    def bos(self) -> str | None:
        """The text of the beginning-of-text token, or None if there is no such token."""
        return None

    @property
    def chat_template(self) -> str | None:
        """The chat template in Jinja's syntax, or None if there is none."""
        return None

    def encode(self, text: str) -> list[int]: ...

    def chat(self, messages: Sequence[Mapping[str, str]], *, continue_last: bool = False) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...


@runtime_checkable
class MaskPredictor(Protocol):
    """A masked diffusion language model: token ids in, logits for selected columns out.

    The logits returned for a column predict the token AT that column, even if the architecture predicts each token
    from the column before it (Dream). A model depends on token ids and cache storage, not on steps or policies. Unless
    a subclass overrides them, it has no tokenizer, no calibration and the `default_max_new_tokens` below.
    `Adapter` turns any function into a model.
    """

    ids: TokenIds
    max_seq_len: int  # of prompt and answer together
    default_max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    calibration: Calibration | None = None  # measured ratio of finished to predicted lengths
    supports_cache: bool = True  # whether its keys and values can be stored

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """The tokenizer; None means that prompts must be given as token ids."""
        return None

    @property
    def device(self) -> torch.device: ...

    def __call__(
        self,
        tokens: Tensor,  # [B, L]
        read: Tensor | None = None,  # [B, S] columns to predict; None: all columns
        *,
        valid: Tensor | None = None,  # [B, L] False where a column is padding; None: all valid
        stale: Tensor | None = None,  # [B, R] columns to recompute; None: all
        storage: RowStorage | None = None,  # keys and values of the columns that are not stale
    ) -> Tensor:  # [B, S, V]
        """Return logits for the tokens at columns `read`, which must be a subset of the stale columns.

        Decoding always passes `read`, so a model for decoding alone may require it.
        """
        ...


@runtime_checkable
class ModelProperties(Protocol):
    """The properties of a model that are needed to resolve a recipe."""

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
    """Raise WrongTypeError unless `model` is a `MaskPredictor`, or with `properties_only` a `ModelProperties`."""
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
    """Return logits cut to the vocabulary; NumericError unless their shape is `columns` (B, S) and V or more."""
    vocab_size, device = model.ids.vocab_size, model.device.type
    if is_plain_tensor(logits):
        fits = logits.ndim == 3 and logits.shape[:2] == (*columns,) and logits.shape[2] >= vocab_size
        if fits and logits.dtype in FLOAT_DTYPES and logits.device.type == device:
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


def all_columns(tokens: Tensor) -> Tensor:  # [B, L] -> [B, L]
    """Return the index of every column of every row, which makes a model return the logits of all columns."""
    if not is_plain_tensor(tokens) or tokens.ndim != 2:
        raise WrongTypeError(
            f"a model was called with {short_repr(tokens)}; call it with a tensor of token ids [B, L], such as "
            "torch.tensor([ids])"
        )
    return torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)


def decode_text(tokenizer: TextTokenizer | None, ids: Sequence[int]) -> str:
    """Return the text of ids, or the ids as numbers separated by spaces if the model has no tokenizer."""
    if tokenizer is None:
        return "".join(f"{index} " for index in ids)
    text = tokenizer.decode(ids)
    if not isinstance(text, str):
        raise WrongTypeError(
            f"the tokenizer's decode returned {short_repr(text)}, a {type(text).__name__}; it must return text"
        )
    return text


def check_device(owner: str, device: Any) -> torch.device:
    """Return the torch device; SettingError, which names `owner`, if this machine cannot use it."""
    check_type(owner, "device", device, (str, torch.device), "a device, such as 'cpu' or 'cuda:1'")
    try:
        checked = torch.empty(0, device=device).device
        if checked.type == "meta":
            raise NotImplementedError("it holds shapes and no numbers")
    except (RuntimeError, AssertionError, ImportError) as error:  # NotImplementedError is a RuntimeError
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise SettingError(
            f"{owner}(device={short_repr(str(device))}) was given, which cannot be used here ({reason}); "
            "give cpu, or cuda, cuda:1 or mps where the machine and its torch have them"
        ) from error
    return checked
