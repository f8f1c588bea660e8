"""A training run: data on the device, weights, optimiser, and checkpoints.

A run is a function of its settings: every random number depends on the seed and the step, so a run
that stops and resumes is the run that never stopped.
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
    """The state of a training run, and its step."""

    def __init__(self, settings: Settings, out: Path, device: torch.device, *, compiled: bool = False) -> None:
        self.settings, self.out, self.device = settings, out, device
        self.tokenizer = tokenizer = read_tokenizer(Path(settings.tokenizer))
        self.end, self.mask = (token_number(tokenizer, END), token_number(tokenizer, MASKS[settings.family]))
        self.train = self._batches("train", settings.seed)
        self.validation = self._batches("validation", 0)
        network = fresh(settings.shape(tokenizer.size), settings.seed).to(device)
        self.optimiser = Optimiser(network, settings.rate, settings.steps)
        # Symbolic sizes: one compilation serves every row width.
        self.loss = torch.compile(objective.loss, dynamic=True) if compiled else objective.loss

    def _batches(self, split: str, seed: int) -> Batches:
        s = self.settings
        fill = self.end if s.rows_are == "padded" else None
        frame = Frame.of(s, self.tokenizer)
        examples = Examples.read(Path(s.corpus), split).shuffled(seed)
        texts = documents(examples, frame, fill, self.device)
        return Batches(texts, s.rows, self.mask, shifted=s.shifted, seed=seed)

    def advance(self, step: int) -> tuple[Tensor, int]:
        """Take a step; return its loss, still on the device, and the number of columns computed."""
        batch = self.train(step, causal=step < self.settings.causal_steps)
        with self._mixed():
            loss = self.loss(self.optimiser.network, batch.inputs, batch.targets, batch.weights, batch.causal)
        torch.autograd.backward(loss)
        self.optimiser.step(step)
        return loss.detach(), batch.inputs.numel()

    @torch.no_grad()
    def validate(self) -> float:
        """The loss of the averaged weights on held-out documents: the same batches every time."""
        total = 0.0
        for step in range(VALIDATION_BATCHES):
            b = self.validation(step)
            with self._mixed():
                total += objective.loss(self.optimiser.average, b.inputs, b.targets, b.weights, b.causal).item()
        return total / VALIDATION_BATCHES

    def _mixed(self) -> AbstractContextManager[Any]:
        """Products in bf16, sums and weights in float32; plain float32 where there is no GPU."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def save(self, step: int) -> None:
        state = {"step": step, "settings": dataclasses.asdict(self.settings)}
        part = self.out / "checkpoint.part"
        torch.save(state | self.optimiser.state(), part)
        part.replace(self.out / "checkpoint.pt")  # a killed run leaves the old one whole

    def resume(self) -> int:
        """Take up the checkpoint; returns the next step. Only `steps` may differ from its settings."""
        path = self.out / "checkpoint.pt"
        if not path.is_file():
            raise CheckpointError(f"{path} is not there; start without --resume")
        state = torch.load(path, map_location=self.device, weights_only=True)
        now, then = dataclasses.asdict(self.settings), state["settings"]
        changed = [name for name in now if now[name] != then[name] and name != "steps"]
        if changed:
            raise SettingError(
                f"{path} was trained with other settings ({', '.join(changed)}); give it the same "
                "ones, or start without --resume"
            )
        self.optimiser.restore(state)
        return int(state["step"])

    def begin(self) -> None:
        """Take the weights of the model the settings start from, if any: instruct from base."""
        if not self.settings.start:
            return
        model: Any = lastword.load(self.settings.start, device=self.device, dtype=torch.float32)
        if model.network.config != self.optimiser.network.config:
            raise SettingError(
                f"{self.settings.start} has another shape than {self.settings.name}; give both the "
                "same [body] and tokenizer, or start at random with --start ''"
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
