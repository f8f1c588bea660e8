"""Cache policies: which columns to recompute in a forward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock
from lastword.models.storage import CacheStorage, FeatureStorage, KVStorage
from lastword.validation import check_int, check_number


@dataclass(frozen=True)
class CacheTraits:
    """What a cache says of itself: what other parts have to be ready for."""

    stores_states: bool = True  # does anything outlive a pass?
    # Is all of the answer computed where a block opens, and only a part until the next one?
    refreshes_by_block: bool = False
    stale_suffix: bool = False  # has a pass within a block no logits for what lies behind it?
    covers_stored_columns: bool = False  # does its memory speak for the columns that are not stale?
    # Whether `stale` can run inside a CUDA graph: without host synchronisation or data-dependent shapes.
    capturable: bool = False


class Cache(ABC):
    """Which columns went stale and must be recomputed in this pass; the rest is in memory.

    The memory a cache opens may recompute more of them, layer by layer.
    """

    @property
    def traits(self) -> CacheTraits:
        return CacheTraits()

    @abstractmethod
    def create_storage(self, canvas: Canvas) -> CacheStorage | None:
        """A memory for this canvas, or None to keep nothing."""

    @abstractmethod
    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        """The columns every layer recomputes; all of a row's columns in its first pass."""


@dataclass(frozen=True)
class NoCache(Cache):
    """Exact: attention sees both ways, so one new token changes every column's state."""

    name: ClassVar[str] = "none"
    cost_summary: ClassVar[str] = "every column in every pass; exact"
    source: ClassVar[str] = "the plain loops of LLaDA and Dream"

    traits = CacheTraits(stores_states=False, capturable=True)

    def create_storage(self, canvas: Canvas) -> None:
        return None

    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        return canvas.valid


@dataclass(frozen=True)
class BlockCache(Cache):
    """Recompute the answer when a window opens, the prompt too at every `prompt_every`-th opening.

    The first opening always computes the prompt; with 0 no other does. A longer prompt makes the openings
    dearer, and what it says of itself changes little while the answer fills.
    """

    prompt_every: int = 1

    def __post_init__(self) -> None:
        check_int(type(self).__name__, "prompt_every", self.prompt_every, minimum=0)

    def create_storage(self, canvas: Canvas) -> CacheStorage:
        return KVStorage(*canvas.tokens.shape)

    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        before = clock.blocks_started - 1
        prompt = (before % self.prompt_every if self.prompt_every else before) == 0
        refreshed = clock.block_start[:, None] & (canvas.answer | prompt[:, None])
        return canvas.valid & (refreshed | self.stale_in_block(canvas, clock))

    @abstractmethod
    def stale_in_block(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        """The columns every pass of a block recomputes."""


@dataclass(frozen=True)
class DualCache(BlockCache):
    """Recompute the block alone; keep what lies left and right of it.

    Fast-dLLM's dual cache (Wu et al., 2025): one full pass when a block opens, then passes as wide as
    the block. Coarser than the prefix cache: the masks to the right do not see the block fill.
    Parts that read the whole answer (early commits, policies that resize) get it when a block opens, and
    again in the pass after a resize. With one block for the whole answer this is the prefix cache.
    `prompt_every=0` computes the prompt in the row's first pass alone and the answer at every opening,
    `prompt_every=4` the prompt at every fourth opening; Fast-dLLM's is 1.
    """

    name: ClassVar[str] = "dual"
    cost_summary: ClassVar[str] = "a full pass when a block opens, then the block alone"
    source: ClassVar[str] = "Fast-dLLM (Wu et al., 2025)"

    traits = CacheTraits(refreshes_by_block=True, stale_suffix=True, capturable=True)

    def stale_in_block(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        return clock.window.columns(canvas.width)


@dataclass(frozen=True)
class PrefixCache(BlockCache):
    """Recompute from the block's first column to the end; keep what lies left of it.

    Fast-dLLM's prefix cache (Wu et al., 2025): one full pass when a block opens, then passes over
    block and suffix. An approximation: a commit changes every column's state, and the kept ones
    are as old as the block. With one block for the whole answer, what is kept is the prompt.
    `prompt_every` is that of DualCache.
    """

    name: ClassVar[str] = "prefix"
    cost_summary: ClassVar[str] = "a full pass when a block opens, then block and suffix"
    source: ClassVar[str] = "Fast-dLLM (Wu et al., 2025)"

    traits = CacheTraits(refreshes_by_block=True, capturable=True)

    def stale_in_block(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        first = clock.window.first[:, None]
        return torch.arange(canvas.width, device=first.device) >= first


@dataclass(frozen=True)
class FeatureCache(Cache):
    """Recompute the prompt every `prompt_interval` passes, the answer every `response_interval`.

    dLLM-Cache (Liu et al., 2025). In between, each layer recomputes the `share` of answer columns whose
    values changed most (cosine) since they were stored, and takes from memory what it said about
    the others; with a share of 0 it recomputes none. The first layer recomputes everything in every
    pass. Needs no blocks. Defaults are the authors' for LLaDA-Base on GSM8K; `FeatureCache(1, 1)`
    is exact.

    Cost: in columns, averaged over layers and rounded up in every pass. A column counts in a
    layer that sends it through attention and MLP; projecting the values to choose by does not, which
    is a thirteenth of such a column for LLaDA-8B. Memory: keys, values and two outputs of every
    layer but the first: twice what the block caches keep for LLaDA-8B, eight times for Dream-7B,
    whose grouped heads make keys and values small.

    We differ from the released code where it is narrower: prompt lengths are per row, padding is
    hidden, grouped heads work for any grouping (all key-value heads of a column form one vector to
    compare, where theirs has Dream's factor of 7 written in), and values are compared in float32.
    """

    name: ClassVar[str] = "feature"
    cost_summary: ClassVar[str] = "a full pass at intervals, in between a share of the answer in every layer"
    source: ClassVar[str] = "dLLM-Cache (Liu et al., 2025, arXiv 2506.06295)"

    prompt_interval: int = 25
    response_interval: int = 5
    update_ratio: float = 0.25

    def __post_init__(self) -> None:
        check_int("FeatureCache", "prompt_interval", self.prompt_interval, minimum=1)
        check_int("FeatureCache", "response_interval", self.response_interval, minimum=1)
        check_number("FeatureCache", "update_ratio", self.update_ratio, minimum=0, maximum=1)

    traits = CacheTraits(covers_stored_columns=True)

    def create_storage(self, canvas: Canvas) -> CacheStorage:
        return FeatureStorage(len(canvas.tokens), canvas.width, self.update_ratio)

    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        prompt = (clock.step % self.prompt_interval == 0)[:, None]
        response = (clock.step % self.response_interval == 0)[:, None]
        return canvas.valid & torch.where(canvas.answer, response, prompt)
