"""MaskPredictor: what decoding asks of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, device

from lastword.calibration.ratios import Calibration
from lastword.canvas.ids import TokenIds
from lastword.errors import SettingError
from lastword.memory.memory import RowMemory

USUAL_SLOTS = 1024  # of an answer, where a checkpoint does not say: the canvas everyone uses


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

    def chat(
        self, messages: Sequence[Mapping[str, str]], *, continue_last: bool = False
    ) -> list[int]: ...

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
    positions: int  # prompt and answer together may not need more
    slots: int = USUAL_SLOTS  # the canvas it is made for: what a length that says no limit keeps to
    calibration: Calibration | None = None  # how long its answers came out beside predictions
    keeps_memory: bool = True  # can a cache keep what its layers computed?

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
        memory: RowMemory | None = None,  # keys and values of the columns that are not stale
    ) -> Tensor:  # [B, S, V]
        """Logits for the tokens at columns `read`, which must lie among the stale ones."""
        ...


def check_model(model: object) -> None:
    """Refuse what is no model, with what it lacks."""
    needed = ("ids", "positions", "slots", "calibration", "keeps_memory", "tokenizer", "device")
    lacking = [name for name in needed if not hasattr(model, name)]
    if lacking or not callable(model):
        raise SettingError(
            f"a {type(model).__name__} was given for a model ({', '.join(lacking) or 'it cannot be called'}: "
            "missing); give what lastword.load returns, lastword.Adapter(...) around a function, or a "
            "subclass of lastword.MaskPredictor"
        )
