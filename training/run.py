"""A training run: data on the device, weights, optimiser and checkpoints.

All random numbers depend only on the seed and the step, so a run that is stopped and resumed equals an uninterrupted
one.
"""

from __future__ import annotations

import dataclasses
import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lastword
from lastword.errors import CheckpointError, SettingError
from training import objective
from training.batches import Batches
from training.corpus import END, MASKS, Examples, Frame, documents, read_tokenizer, token_number
from training.export import export
from training.optimise import Optimiser, fresh
from training.settings import Settings

VALIDATION_BATCHES = 8


class Run:
    """The state of a training run, with methods that train, validate, save and export."""

    def __init__(self, settings: Settings, out: Path, device: torch.device, *, compiled: bool = False) -> None:
        self.settings, self.out, self.device = settings, out, device
        self.tokenizer = tokenizer = read_tokenizer(Path(settings.tokenizer))
        self.end, self.mask = (token_number(tokenizer, END), token_number(tokenizer, MASKS[settings.family]))
        self.train = self._batches("train", settings.seed)
        self.validation = self._batches("validation", 0)
        network = fresh(settings.shape(tokenizer.size), settings.seed).to(device)
        self.optimiser = Optimiser(network, settings.rate, settings.steps)
        # With dynamic shapes, one compilation works for every row width.
        self.loss = torch.compile(objective.loss, dynamic=True) if compiled else objective.loss

    def _batches(self, split: str, seed: int) -> Batches:
        s = self.settings
        fill = self.end if s.rows_are == "padded" else None
        frame = Frame.of(s, self.tokenizer)
        examples = Examples.read(Path(s.corpus), split).shuffled(seed)
        texts = documents(examples, frame, fill, self.device)
        return Batches(texts, s.rows, self.mask, shifted=s.shifted, seed=seed)

    def advance(self, step: int) -> tuple[Tensor, int]:
        """Run a training step; return its loss, as a tensor on the device, and the number of tokens computed."""
        batch = self.train(step, causal=step < self.settings.causal_steps)
        with self._mixed():
            loss = self.loss(self.optimiser.network, batch.inputs, batch.targets, batch.weights, batch.causal)
        torch.autograd.backward(loss)
        self.optimiser.step(step)
        return loss.detach(), batch.inputs.numel()

    @torch.no_grad()
    def validate(self) -> float:
        """Return the loss of the averaged weights on held-out documents, always on the same batches."""
        total = 0.0
        for step in range(VALIDATION_BATCHES):
            b = self.validation(step)
            with self._mixed():
                total += objective.loss(self.optimiser.average, b.inputs, b.targets, b.weights, b.causal).item()
        return total / VALIDATION_BATCHES

    def _mixed(self) -> AbstractContextManager[Any]:
        """Return a context for mixed precision: matrix products in bf16 on a GPU, float32 otherwise."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def save(self, step: int) -> None:
        state = {"step": step, "settings": dataclasses.asdict(self.settings)}
        part = self.out / "checkpoint.part"
        torch.save(state | self.optimiser.state(), part)
        part.replace(self.out / "checkpoint.pt")  # atomic: a killed run keeps the previous checkpoint

    def resume(self) -> int:
        """Restore the checkpoint and return the next step. Of its settings, only `steps` may have changed."""
        path = self.out / "checkpoint.pt"
        if not path.is_file():
            raise CheckpointError(f"there is no checkpoint {path}; start without --resume")
        state = torch.load(path, map_location=self.device, weights_only=True)
        now, then = dataclasses.asdict(self.settings), state["settings"]
        changed = [name for name in now if now[name] != then[name] and name != "steps"]
        if changed:
            raise SettingError(
                f"{path} was trained with other values of {', '.join(changed)}; give the same settings, "
                "or start without --resume"
            )
        self.optimiser.restore(state)
        return int(state["step"])

    def begin(self) -> None:
        """Load the weights of the model in the setting `start`, if there is one, as for instruct models."""
        if not self.settings.start:
            return
        model: Any = lastword.load(self.settings.start, device=self.device, dtype=torch.float32)
        if model.network.config != self.optimiser.network.config:
            raise SettingError(
                f"{self.settings.start} has another shape than {self.settings.name}; give both the "
                "same [body] and tokenizer, or start from random weights with --start ''"
            )
        for network in (self.optimiser.network, self.optimiser.average):
            network.load_state_dict(model.network.state_dict())

    def log(self, line: dict[str, Any]) -> None:
        print(json.dumps({"model": self.settings.name, **line}), flush=True)
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")

    def export(self) -> None:
        s, folder = self.settings, Path(self.settings.tokenizer)
        start = self.tokenizer.id_of(self.tokenizer.bos or END) or self.end
        export(
            self.optimiser.average, s.family, self.out, folder,
            start=start, end=self.end, mask=self.mask,
        )  # fmt: skip
