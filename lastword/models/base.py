"""The model contract: tokens in, logits of selected columns out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, device, empty

from lastword.calibration.ratios import Calibration
from lastword.canvas.tokens import TokenIds, is_plain_tensor
from lastword.errors import NumericError, SettingError, WrongTypeError
from lastword.models.storage import RowStorage
from lastword.validation import MAX_SEED, check_int, check_type, short_repr

DEFAULT_MAX_NEW_TOKENS = 1024  # of an answer, where a checkpoint does not say: the canvas everyone uses

MAX_SEQ_LEN = MAX_SEED  # some say that they have no bound

LOGIT_DTYPES = {torch.float64, torch.float32, torch.float16, torch.bfloat16}


@runtime_checkable
class TextTokenizer(Protocol):
    """Text and chat messages to ids, and back."""

    @property
    def bos(self) -> str | None:
        """What a text begins with where it is asked to; None: nothing."""
        return None

    @property
    def chat_template(self) -> str | None:
        """None: it has no chat format."""
        return None

    def encode(self, text: str) -> list[int]: ...

    def chat(self, messages: Sequence[Mapping[str, str]], *, continue_last: bool = False) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...


@runtime_checkable
class MaskPredictor(Protocol):
    """A masked diffusion language model: tokens in, logits for chosen columns out.

    It knows tokens and memory; it knows nothing of steps, lengths or rules. Whatever the
    architecture does inside (Dream predicts each token from the column before it), the logits it
    returns for a column are the prediction of the token AT that column. A model of your own that
    subclasses this has no tokenizer, the usual canvas and no calibration unless it says so, in the class
    or in a property; `Adapter` makes one of any function.
    """

    ids: TokenIds
    max_seq_len: int  # prompt and answer together may not need more
    default_max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    calibration: Calibration | None = None  # how long its answers came out beside predictions
    supports_cache: bool = True  # can a cache keep what its layers computed?

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """None: prompts are token ids."""
        return None

    @property
    def device(self) -> device: ...

    def __call__(
        self,
        tokens: Tensor,  # [B, L]
        read: Tensor,  # [B, S] columns to predict
        *,
        valid: Tensor | None = None,  # [B, L] False where a column is padding; None: all valid
        stale: Tensor | None = None,  # [B, R] columns to recompute; None: all
        memory: RowStorage | None = None,  # keys and values of the columns that are not stale
    ) -> Tensor:  # [B, S, V]
        """Logits for the tokens at columns `read`, which must lie among the stale ones."""
        ...


def check_model(model: object) -> None:
    """Refuse what is no model, with what it lacks."""
    needed = (
        "ids",
        "max_seq_len",
        "default_max_new_tokens",
        "calibration",
        "supports_cache",
        "tokenizer",
        "device",
    )
    lacking = [name for name in needed if not hasattr(model, name)]
    if lacking or not callable(model) or isinstance(model, type):
        missing = f"{', '.join(lacking) or 'a call'}: missing"
        reason = "a class, not a model made of it" if isinstance(model, type) else missing
        raise WrongTypeError(
            f"{short_repr(model)} was given for a model ({reason}); give what lastword.load returns, "
            "lastword.Adapter(...) around a function, or a subclass of lastword.MaskPredictor"
        )
    name = type(model).__name__
    check_type(name, "ids", model.ids, TokenIds, "lastword.TokenIds(...)")  # type: ignore[attr-defined]
    for field in ("max_seq_len", "default_max_new_tokens"):
        check_int(name, field, getattr(model, field), minimum=1, maximum=MAX_SEQ_LEN)


def check_logits(given: object, columns: Sequence[int], model: MaskPredictor) -> Tensor:
    """What a model returned for [B, S] columns, without what a padded head says of ids that are none."""
    least, where = model.ids.vocab_size, model.device.type
    if is_plain_tensor(given):
        fits = given.ndim == 3 and given.shape[:2] == (*columns,) and given.shape[2] >= least
        if fits and given.dtype in LOGIT_DTYPES and given.device.type == where:
            return given if given.shape[2] == least else given[..., :least]
        found = f"{given.dtype} {tuple(given.shape)} on {given.device.type}"
    else:
        found = "no plain tensor" if isinstance(given, Tensor) else f"a {type(given).__name__}"
    raise NumericError(
        f"the model returned {found}; it must return floating-point logits of shape ({columns[0]}, "
        f"{columns[1]}, {least} or more) on {where}"
    )


def decode_text(tokenizer: TextTokenizer | None, ids: Sequence[int]) -> str:
    """The text of ids, or the ids themselves where a model has no tokenizer."""
    if tokenizer is None:
        return "".join(f"{one} " for one in ids)
    text = tokenizer.decode(ids)
    if not isinstance(text, str):
        raise WrongTypeError(
            f"the tokenizer's decode returned {short_repr(text)}, a {type(text).__name__}; it must return "
            "text"
        )
    return text


def check_device(owner: str, given: object) -> device:
    """A device of this machine."""
    check_type(owner, "device", given, (str, device), "a device, such as 'cpu' or 'cuda:1'")
    try:
        where = empty(0, device=given).device  # type: ignore[call-overload]
        if where.type == "meta":
            raise NotImplementedError("it holds shapes and no numbers")
    except (RuntimeError, AssertionError, ImportError) as wrong:  # NotImplementedError is one
        reason = str(wrong).partition("\n")[0].partition(". ")[0]
        raise SettingError(
            f"{owner}(device={short_repr(str(given))}) was given, which cannot be used here ({reason}); "
            "give cpu, "
            "or cuda, cuda:1 or mps where the machine and its torch have them"
        ) from wrong
    return where
