"""Settings: how one model is trained, as a value read from its TOML file."""

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
    """The network's size; what the family dictates (biases, rotation dtype) is not a choice."""

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
    """The layout of a training row."""

    tokens: int = 65536  # columns per step, whatever the width of its rows
    grain: int = 32  # row widths are multiples of this: few shapes, and no padding at all
    canvas: int = 256  # columns after the prompt, in rows of the `full` share
    full: float = 0.5  # share of rows with that canvas; the others draw theirs uniformly
    smallest: int = 8  # the smallest canvas drawn for packed rows
    visible: float = 0.85  # share of packed rows whose first prompt is never masked
    answers_only: float = 0.4  # share of packed rows none of whose prompts is ever masked
    ahead: float = 0.5  # share of rows masked from a column on: what comes next, from what is there
    reach: float = 16.0  # columns over which those rows' weights fall to 1/e
    widest: int = 640
    blank: float = 0.15  # extra weight on rows that are masked completely: what a length probe sees
    eps: float = 1e-3  # smallest mask probability, as LLaDA has it


@dataclass(frozen=True)
class Rate:
    """Settings of the optimisers: Muon for matrices inside the blocks, AdamW for everything else."""

    muon: float = 0.012
    adam: float = 3e-3
    warmup: int = 100
    decay: float = 0.4  # share of the steps over which both rates fall linearly to zero
    weight_decay: float = 0.02
    clip: float = 1.0
    average: float = 0.998  # per step, of the exported running average of the weights


@dataclass(frozen=True)
class Settings:
    """All of a training run. Paths are relative to the folder the command runs in."""

    name: str
    family: str  # "llada" or "dream"
    rows_are: str  # "packed" (base) or "padded" (instruct)
    tokenizer: str
    corpus: str
    steps: int
    start: str = ""  # folder of an exported model to take the first weights from; "": at random
    causal: float = 0.0  # share of the steps trained left to right first, as Dream's parent was
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
                f"causal={self.causal} trains the next token, which only shifted models (dream) "
                "predict; drop it for llada"
            )

    @property
    def shifted(self) -> bool:
        """True if the output at a column predicts the next one."""
        return self.family == "dream"

    @property
    def causal_steps(self) -> int:
        """Steps of the autoregressive phase; weights taken from a model have it behind them."""
        return 0 if self.start else round(self.causal * self.steps)

    def shape(self, vocabulary: int) -> TransformerConfig:
        """The architecture for a tokenizer of that size."""
        dream = self.family == "dream"
        return TransformerConfig(
            **dataclasses.asdict(self.body),
            vocab_size=vocabulary,
            qkv_bias=dream,
            tied_head=False,
            rotate_in_float32=not dream,
        )


def read(path: Path, **changes: Any) -> Settings:
    """The settings in a TOML file; `changes` that are not None replace top-level ones."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    table |= {name: value for name, value in changes.items() if value is not None}
    sections = {"body": Body, "rows": Rows, "rate": Rate}
    parts: dict[str, Any] = {name: _section(cls, table.pop(name, {}), path) for name, cls in sections.items()}
    return _section(Settings, table | parts, path)


def _section(cls: type[Section], table: dict[str, Any], path: Path) -> Section:
    try:
        return cls(**table)
    except TypeError as wrong:
        fields = ", ".join(f.name for f in dataclasses.fields(cls))  # type: ignore[arg-type]
        raise SettingError(f"{path}: {wrong}; the settings here are {fields}") from wrong
