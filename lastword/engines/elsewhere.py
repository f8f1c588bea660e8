"""Elsewhere: a model whose weights are with the workers; what planning and records need of it is here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from lastword.calibration.ratios import Calibration
from lastword.canvas.tokens import TokenIds
from lastword.engines.surroundings import dtype_of, versions
from lastword.errors import LastwordError, SettingError
from lastword.models.base import MaskPredictor, TextTokenizer
from lastword.models.weights import fingerprint, model_key


@dataclass
class Elsewhere:
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
    key: str | None  # and of what lengths depend on; None: it cannot tell
    dtype: str
    versions: Mapping[str, str]  # of the worker that said all this
    device: torch.device = torch.device("cpu")  # prompts are made into tensors nowhere else

    @classmethod
    def of(cls, model: MaskPredictor) -> Elsewhere:
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
            key=key,
            dtype=dtype_of(model),
            versions=versions(),
        )

    @property
    def answers_as(self) -> tuple[object, ...]:
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
