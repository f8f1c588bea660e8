"""Ranks: the processes that hold one model between them.

Every rank runs the same program and makes the same calls: the same prompts, recipe and seeds. What a layer
says is summed over the ranks and the logits are gathered, so every rank decides the same and gets the
same tokens. No rank leads, and decoding knows nothing of it.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from hashlib import sha256
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from lastword.errors import CheckpointError, RankError, SettingError

MOST_RANKS = 1024
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}

_Made = TypeVar("_Made")


class Ranks:
    """This process and the others that hold the rest of the model."""

    def __init__(self, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        self.rank, self.count, self.device = dist.get_rank(), dist.get_world_size(), device
        self.mesh = init_device_mesh(device.type, (self.count,))

    @classmethod
    def joined(cls, count: int, device: torch.device) -> Ranks:
        """The ranks of this run, which must be `count`; under torchrun they meet here."""
        if device.index is not None or device.type not in BACKENDS:
            raise SettingError(
                f"load(device={str(device)!r}, parallel={count}) was given; with parallel every rank takes a "
                "device of its own: give cpu, cuda or auto"
            )
        if device.type == "cuda":
            known = dist.get_rank() if dist.is_initialized() else os.environ.get("RANK", "0")
            own = int(os.environ.get("LOCAL_RANK", known))
            device = torch.device("cuda", own % torch.cuda.device_count())
            torch.cuda.set_device(device)
        _meet(count, device)
        if dist.get_world_size() != count:
            raise SettingError(
                f"load(parallel={count}) was given in a run of {dist.get_world_size()} ranks, all of which "
                f"hold the model; give parallel={dist.get_world_size()}, or start {count} ranks"
            )
        try:
            dist.all_reduce(torch.zeros(1, device=device))
        except RuntimeError as wrong:
            raise SettingError(
                f"the {count} ranks cannot exchange tensors on {device.type} over {dist.get_backend()} "
                f"({_first_line(wrong)}); start them with {BACKENDS[device.type]}"
            ) from wrong
        return cls(device)

    def summed(self, own: Tensor) -> Tensor:
        """The sum of what every rank says, in place."""
        dist.all_reduce(own)
        return own

    def gathered(self, own: _Made) -> list[_Made]:
        """What every rank says, in their order."""
        every: list[Any] = [None] * self.count
        dist.all_gather_object(every, own)
        return every

    def check_same(self, *given: Tensor | None) -> None:
        """Refuse a pass that the ranks were not all asked for: their parts would be of different answers."""
        digest = torch.zeros((), dtype=torch.long, device=self.device)
        for place, tensor in enumerate(given):
            digest = digest * 31 + (1 if tensor is None else _digest(tensor, place))
        digest = digest >> 1  # the smallest number has no opposite
        said = torch.stack((digest, -digest))
        try:
            dist.all_reduce(said, dist.ReduceOp.MAX)
        except RuntimeError as gone:
            raise RankError(
                f"rank {self.rank} cannot reach the other ranks any more ({_first_line(gone)}); one of them "
                "has ended: see what it said, and start all of them again"
            ) from gone
        most, least = said.tolist()
        if most != -least:
            raise RankError(
                f"the {self.count} ranks were asked for different passes; every rank must make the same "
                "calls in the same order: the same prompts, recipe and seeds"
            )

    def all_or_none(self, make: Callable[[], tuple[_Made, object]]) -> _Made:
        """What `make` makes, if it succeeds in every rank, with the same facts in all of them."""
        try:
            made, facts = make()
        except Exception as wrong:
            self.gathered(("", _first_line(wrong)))
            raise
        every = self.gathered((sha256(repr(facts).encode()).hexdigest(), ""))
        for rank, (_, reason) in enumerate(every):
            if reason:
                raise CheckpointError(f"rank {rank} cannot load its part of the model: {reason}")
        if len({*every}) > 1:
            raise RankError(
                f"the {self.count} ranks loaded different models; give every rank the same checkpoint and "
                "the same arguments of load"
            )
        return made


def _digest(tensor: Tensor, place: int) -> Tensor:
    """A number of what a tensor holds and of its shape."""
    flat = tensor.flatten().long()
    odd = torch.arange(len(flat), device=flat.device) * 0x5851F42D4C957F2D + 2 * place + 1
    return ((flat + 1) * odd).sum() + (hash((place, *tensor.shape)) >> 1)


def _meet(count: int, device: torch.device) -> None:
    """Join the process group that torchrun's variables describe, unless the program has joined one."""
    if not dist.is_available():
        raise SettingError("this torch has no torch.distributed, which parallel= needs; install one")
    if dist.is_initialized():
        return
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise SettingError(
            f"load(parallel={count}) was given in a process that is no rank of any; start the program as "
            f"torchrun --nproc-per-node {count} PROGRAM, or call torch.distributed.init_process_group in "
            f"each of {count} processes first"
        )
    try:
        dist.init_process_group(BACKENDS[device.type])
    except (RuntimeError, ValueError) as wrong:
        raise SettingError(
            f"the {count} ranks cannot meet over {BACKENDS[device.type]} ({_first_line(wrong)}); start them "
            "with torchrun, which sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        ) from wrong
    atexit.register(_leave)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]
