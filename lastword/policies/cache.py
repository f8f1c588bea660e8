"""Cache policies: which columns to recompute in a forward pass."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from types import NoneType

import torch
from jaxtyping import Bool
from torch import Tensor

from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.contracts import check_returned, name_of
from lastword.errors import SettingError
from lastword.models.storage import CacheStorage, FeatureStorage, KVStorage
from lastword.validation import Part, check_int, check_number, checked_field


@dataclass(frozen=True)
class CacheTraits:
    """The properties of a cache on which other parts depend."""

    stores_states: bool = True  # whether anything is kept from pass to pass
    starts_filled: bool = False  # whether `create_storage` stores all columns, so that the first pass may skip some
    # Whether the pass at a block start computes the whole answer, and later passes of the block only a part of it.
    refreshes_by_block: bool = False
    stale_suffix: bool = False  # whether later passes of a block have no logits for the slots after it
    covers_stored_columns: bool = False  # whether a pass also has logits for columns that are not stale
    # Whether `stale` can run inside a CUDA graph: without host synchronisation or data-dependent shapes.
    capturable: bool = False


class Cache(Part):
    """A policy that chooses the columns that a pass recomputes; a storage keeps the tensors of all others.

    The storage may recompute more columns in single layers, as that of FeatureCache does.
    """

    @property
    def traits(self) -> CacheTraits:
        return CacheTraits()

    @abstractmethod
    def create_storage(self, canvas: Canvas) -> CacheStorage | None:
        """Return an empty storage for this canvas, or None if nothing is kept between passes."""

    @abstractmethod
    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        """Return the columns that every layer recomputes; in a row's first pass these must be all its columns."""


def create_storage(cache: Cache, canvas: Canvas) -> CacheStorage | None:
    """Return the checked result of `cache.create_storage`."""
    storage, owner = cache.create_storage(canvas), name_of(cache, "create_storage")
    if cache.traits.stores_states:
        check_returned(owner, storage, CacheStorage, "a CacheStorage, or None if its traits have stores_states=False")
        if isinstance(storage, KVStorage) and storage.size() != canvas.tokens.numel():
            raise SettingError(f"{owner} returned a storage of another size; give KVStorage(*canvas.tokens.shape)")
    else:
        check_returned(owner, storage, NoneType, "None, as its traits have stores_states=False")
    return storage


@dataclass(frozen=True)
class NoCache(Cache):
    """Recompute every column in every forward pass.

    Exact: attention is bidirectional, so one new token affects every column.
    """

    name = "none"
    cost_summary = "every column; exact"
    source = "LLaDA, Dream"
    traits = CacheTraits(stores_states=False, capturable=True)

    def create_storage(self, canvas: Canvas) -> None:
        return None

    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        return canvas.valid


@dataclass(frozen=True)
class BlockCache(Cache):
    """Recompute the answer at the start of a block, and the prompt at the start of every `prompt_every`-th block.

    The first block always computes the prompt; with `prompt_every=0` no other block does. A long prompt
    is expensive to recompute, and its keys and values change little while the answer is filled.
    """

    prompt_every: int = checked_field(1, check_int, minimum=0)

    def create_storage(self, canvas: Canvas) -> CacheStorage:
        return KVStorage(*canvas.tokens.shape)

    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        before = clock.blocks_started - 1
        prompt = (before % self.prompt_every if self.prompt_every else before) == 0
        refreshed = clock.block_start[:, None] & (canvas.answer | prompt[:, None])
        return canvas.valid & (refreshed | self.stale_in_block(canvas, clock))

    @abstractmethod
    def stale_in_block(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        """Return the columns that every pass of a block recomputes."""


@dataclass(frozen=True)
class DualCache(BlockCache):
    """Recompute the current block only; keep the keys and values of all other columns.

    Fast-dLLM's dual cache (Wu et al., 2025): one full pass when a block starts, then passes as wide as the block.
    Coarser than the prefix cache, because the masks to the right are not updated while the block is filled. Parts that
    read the whole answer (commit rules, policies that resize) can do so when a block starts and in the pass after a
    resize. With one block for the whole answer this is the prefix cache. Fast-dLLM uses `prompt_every=1`.
    """

    name = "dual"
    cost_summary = "a full forward pass per block, then the block alone"
    source = "Fast-dLLM (Wu et al., 2025)"
    traits = CacheTraits(refreshes_by_block=True, stale_suffix=True, capturable=True)

    def stale_in_block(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        return clock.window.columns(canvas.width)


@dataclass(frozen=True)
class PrefixCache(BlockCache):
    """Recompute the current block and all columns to its right; keep the keys and values to its left.

    Fast-dLLM's prefix cache (Wu et al., 2025): one full pass when a block starts, then passes from the block to the
    end. An approximation, because every filled mask changes the keys and values of all columns, and the kept ones date
    from the block start. With one block for the whole answer, only those of the prompt are kept.
    """

    name = "prefix"
    cost_summary = "a full forward pass per block, then block and suffix"
    source = "Fast-dLLM (Wu et al., 2025)"
    traits = CacheTraits(refreshes_by_block=True, capturable=True)

    def stale_in_block(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        first = clock.window.first[:, None]
        return torch.arange(canvas.width, device=first.device) >= first


@dataclass(frozen=True)
class FeatureCache(Cache):
    """Recompute the prompt every `prompt_interval` and the answer every `response_interval` forward passes.

    dLLM-Cache (Liu et al., 2025). In between, each layer recomputes the share `update_ratio` of answer columns whose
    attention values changed most (by cosine similarity) since they were stored. The first layer recomputes all columns
    in every pass. The defaults are the authors' for LLaDA-Base on GSM8K; `FeatureCache(1, 1)` is exact.

    A column that a layer sends through attention and MLP counts as one computed token in that layer; costs are averaged
    over layers and rounded up in every pass. The projection to the compared values is not counted: for LLaDA-8B it is a
    thirteenth of a column. Keys, values and the outputs of attention and MLP are stored for every layer except the
    first: twice the memory of the block caches for LLaDA-8B, eight times for Dream-7B (grouped-query attention).

    Differences from the released code: prompt lengths may differ by row, padding is not attended to, any head grouping
    works (all key-value heads of a column form one vector to compare), and values are compared in float32.
    """

    name = "feature"
    cost_summary = "a full forward pass at intervals, else a share of the answer"
    source = "dLLM-Cache (Liu et al., 2025, arXiv 2506.06295)"
    traits = CacheTraits(covers_stored_columns=True)

    prompt_interval: int = checked_field(25, check_int, minimum=1)
    response_interval: int = checked_field(5, check_int, minimum=1)
    update_ratio: float = checked_field(0.25, check_number, minimum=0, maximum=1)

    def create_storage(self, canvas: Canvas) -> CacheStorage:
        return FeatureStorage(len(canvas.tokens), canvas.width, self.update_ratio)

    def stale(self, canvas: Canvas, clock: Clock) -> Bool[Tensor, "B L"]:
        prompt = (clock.step % self.prompt_interval == 0)[:, None]
        response = (clock.step % self.response_interval == 0)[:, None]
        return canvas.valid & torch.where(canvas.answer, response, prompt)
