"""The settings of a training run, which are read from a TOML file."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lastword.errors import SettingError
from lastword.models.layers import TransformerConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Section = TypeVar("Section")


@dataclass(frozen=True)
class Body:
    """The size of the network. The model family determines everything else, such as biases."""

    hidden_size: int = 256
    num_layers: int = 6
    num_heads: int = 4
    num_kv_heads: int = 4
    intermediate_size: int = 768
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    max_seq_len: int = 1024


@dataclass(frozen=True)
class Rows:
    """The layout of training rows."""

    tokens: int = 65536  # columns per step: number of rows times their width
    grain: int = 32  # row widths are multiples of this number, so there are few shapes and no padding
    canvas: int = 256  # slots after the prompt in a share `full` of the rows
    full: float = 0.5  # share of rows with this canvas; in the others, its size is drawn uniformly
    smallest: int = 8  # smallest canvas of packed rows
    visible: float = 0.85  # share of packed rows in which the first prompt is never masked
    answers_only: float = 0.4  # share of packed rows in which no prompt is masked
    ahead: float = 0.5  # share of rows that are masked after a cut (see training/objective.py)
    reach: float = 16.0  # columns after the cut over which the weights fall to 1/e
    widest: int = 640  # largest row width
    blank: float = 0.15  # weight of additional rows that are masked completely, as in a length probe
    eps: float = 1e-3  # smallest mask probability, as in LLaDA


@dataclass(frozen=True)
class Rate:
    """Settings of the optimisers: Muon for matrices inside the blocks, AdamW for everything else."""

    muon: float = 0.012
    adam: float = 3e-3
    warmup: int = 100
    decay: float = 0.4  # share of the steps, at the end, in which both rates fall linearly to zero
    weight_decay: float = 0.02
    clip: float = 1.0
    average: float = 0.998  # decay per step of the running average of the weights, which is exported


@dataclass(frozen=True)
class Settings:
    """All settings of a training run. Paths are relative to the working directory."""

    name: str
    family: str  # "llada" or "dream"
    rows_are: str  # "packed" (base) or "padded" (instruct)
    tokenizer: str
    corpus: str
    steps: int
    start: str = ""  # folder of an exported model with the initial weights; "": random weights
    causal: float = 0.0  # share of the steps, at the start, that train next-token prediction, as Dream's parent model
    seed: int = 1
    log_every: int = 50
    validate_every: int = 500
    body: Body = field(default_factory=Body)
    rows: Rows = field(default_factory=Rows)
    rate: Rate = field(default_factory=Rate)

    def __post_init__(self) -> None:
        for name, allowed in (("family", ("llada", "dream")), ("rows_are", ("packed", "padded"))):
            if getattr(self, name) not in allowed:
                raise SettingError(f"{name}={getattr(self, name)!r} is unknown; give {' or '.join(allowed)}")
        if self.causal and not self.shifted:
            raise SettingError(
                f"causal={self.causal} trains next-token prediction, which needs a shifted model (dream); "
                "leave it out for llada"
            )

    @property
    def shifted(self) -> bool:
        """True if the output at a column predicts the token at the next column."""
        return self.family == "dream"

    @property
    def causal_steps(self) -> int:
        """The number of steps that train next-token prediction; 0 if the run starts from a trained model."""
        return 0 if self.start else round(self.causal * self.steps)

    def shape(self, vocabulary: int) -> TransformerConfig:
        """Return the architecture for a vocabulary size."""
        dream = self.family == "dream"
        return TransformerConfig(
            **dataclasses.asdict(self.body),
            vocab_size=vocabulary,
            qkv_bias=dream,
            tied_head=False,
            rotate_in_float32=not dream,
        )


def read(path: Path, **changes: Any) -> Settings:
    """Return the settings in a TOML file; `changes` that are not None replace top-level settings."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    table |= {name: value for name, value in changes.items() if value is not None}
    sections = {"body": Body, "rows": Rows, "rate": Rate}
    parts: dict[str, Any] = {name: _section(cls, table.pop(name, {}), path) for name, cls in sections.items()}
    return _section(Settings, table | parts, path)


def _section(cls: type[Section], table: dict[str, Any], path: Path) -> Section:
    try:
        return cls(**table)
    except TypeError as error:
        fields = ", ".join(f.name for f in dataclasses.fields(cls))  # type: ignore[arg-type]
        raise SettingError(f"{path}: {error}; allowed settings are {fields}") from error
