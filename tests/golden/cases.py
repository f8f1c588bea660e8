"""The recordings as Python values: see README.md beside this file for what they are."""

import json
import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

import lastword

FOLDER = Path(__file__).parent
TURN_ENDS = {"llada": (380,), "dream": ()}  # in no config: the authors' flags hard-code it


@dataclass(frozen=True)
class Case:
    family: str
    kind: str  # "logits" or "generate"
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        return self.facts["name"]

    @property
    def settings(self) -> dict[str, Any]:
        return self.facts["settings"]

    def tensor(self, name: str, kind: str | None = None) -> Tensor | None:
        return recording(f"{self.family}_cases").get(f"{kind or self.kind}.{self.name}.{name}")

    @property
    def prompts(self) -> list[list[int]]:
        """The prompts without their padding."""
        rows, mask = self.tensor("prompt"), self.tensor("attention_mask")
        if mask is None:
            return rows.tolist()
        return [row[real.bool()].tolist() for row, real in zip(rows, mask)]


def cases(family: str, group: str) -> list[Case]:
    """Group is logits, generate or generate_seeded."""
    listed = json.loads((FOLDER / f"{family}_cases.json").read_text())[group]
    kind = "logits" if group == "logits" else "generate"
    return [Case(family, kind, facts) for facts in listed]


def peer_cases(name: str) -> list[dict[str, Any]]:
    """Return the recorded runs of another project."""
    return json.loads((FOLDER / f"{name}.json").read_text())["cases"]


@cache
def recording(name: str) -> dict[str, Tensor]:
    """The tensors of a file NAME.safetensors.xz."""
    return load(lzma.decompress((FOLDER / f"{name}.safetensors.xz").read_bytes()))


@cache
def checkpoint(name: str) -> Any:
    return lastword.load(FOLDER / name, device="cpu")


@cache
def model(family: str) -> Any:
    return lastword.load(FOLDER / f"{family}-tiny", device="cpu", turn_ends=TURN_ENDS[family])


def computed_per_pass(steps: list[lastword.Step]) -> list[int]:
    """The columns each pass of a single row computed; a step's cost is that of all so far."""
    so_far = torch.cat([step.cost.tokens_computed for step in steps])
    return so_far.diff(prepend=torch.tensor([0])).tolist()
