"""Optimisation: initial weights, two optimisers with one schedule, and a running average of the weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from lastword.models.layers import BidirectionalTransformer, TransformerConfig
from training.muon import Muon
from training.settings import Rate


def fresh(shape: TransformerConfig, seed: int) -> BidirectionalTransformer:
    """Return a new network whose blocks are the identity, because their output projections are zero."""
    network = BidirectionalTransformer(shape)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        if name.endswith((".out.weight", ".down.weight", ".bias")):
            nn.init.zeros_(parameter)
        elif "norm" not in name:
            std = 0.02 if name == "head.weight" else shape.hidden_size**-0.5
            nn.init.normal_(parameter, std=std, generator=generator)
    return network


class Optimiser:
    """An optimiser: Muon for the matrices of the blocks, AdamW for embedding, head, norms and biases."""

    def __init__(self, network: BidirectionalTransformer, rate: Rate, steps: int) -> None:
        self.rate, self.steps = rate, steps
        self.network, self.average = network, copy.deepcopy(network).requires_grad_(False)
        self.weights: list[nn.Parameter] = [*network.parameters()]
        self.averages: list[Tensor] = [*self.average.parameters()]
        matrices = [p for p in network.blocks.parameters() if p.ndim == 2]
        matrix_ids = {id(p) for p in matrices}
        others = [p for p in self.weights if id(p) not in matrix_ids]
        # No weight decay here: it would shrink norms and the embeddings of rare tokens.
        self.optimisers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=rate.muon, weight_decay=rate.weight_decay),
            torch.optim.AdamW(others, lr=rate.adam, betas=(0.9, 0.95), weight_decay=0.0, foreach=True),
        ]
        self.peaks = (rate.muon, rate.adam)

    def factor(self, step: int) -> float:
        """Return the learning rate of a step as a share of the peak: warm-up, constant, then linear decay to zero."""
        decay = (self.steps - step) / max(1.0, self.rate.decay * self.steps)
        return min(1.0, (step + 1) / max(1, self.rate.warmup), decay)

    def step(self, step: int) -> None:
        """Apply the gradients, without a synchronisation with the device."""
        nn.utils.clip_grad_norm_(self.weights, self.rate.clip, foreach=True)
        for optimiser, peak in zip(self.optimisers, self.peaks, strict=True):
            optimiser.param_groups[0]["lr"] = peak * self.factor(step)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        # The average decays faster in the first steps; otherwise it would keep the initial weights for long.
        keep = min(self.rate.average, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.averages, [w.detach() for w in self.weights], 1 - keep)

    def state(self) -> dict[str, Any]:
        return {
            "weights": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["weights"])
        self.average.load_state_dict(state["average"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
