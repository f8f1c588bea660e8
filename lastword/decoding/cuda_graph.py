"""Capture a decoding step as a CUDA graph and replay it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lastword.canvas.tree import tree_map, tree_tensors
from lastword.decoding.batch_state import BatchState, Phase
from lastword.models.kernels.attention import planning

MAX_GRAPHS = 48  # of a model; the one that was used longest ago goes

MOST_SEEN = 4096  # kinds of steps that are counted

log = logging.getLogger("lastword")

Advance = Callable[[BatchState], BatchState]


class CapturedStep:
    """One step over rows whose tensors keep their addresses: a launch, and nothing on the host.

    Parts that ask the device something, or draw from a generator of the host, cannot be captured: `reason`
    then says which question it was, and whoever holds this runs the same code uncaptured.
    """

    def __init__(self, advance: Advance, rows: BatchState, pool: Any = None) -> None:
        self._rows = tree_map(torch.clone, rows)
        self._told = torch.empty((2, *rows.phase.shape), dtype=torch.long, pin_memory=True)
        self._advance = advance  # what it made when it first ran is read by every replay
        self._graph: torch.cuda.CUDAGraph | None = None
        self.reason: str | None = None
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        asking = torch.cuda.get_sync_debug_mode()
        try:
            with torch.cuda.stream(side), planning():
                advance(self.rows)  # compiles kernels, makes handles and stores
                torch.cuda.set_sync_debug_mode("error")
                advance(self.rows)
            torch.cuda.set_sync_debug_mode(asking)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool), planning():
                after = advance(self.rows)
                _copy(after, self._rows)
            self._graph = graph
        except Exception as asked:
            torch.cuda.set_sync_debug_mode(asking)
            torch.cuda.current_stream().wait_stream(side)
            first: BaseException = asked
            while first.__context__ is not None:  # ending a capture that failed fails as well
                first = first.__context__
            self.reason = str(first).partition("\n")[0]
            log.info("passes within a block run uncaptured: %s", self.reason)

    @property
    def rows(self) -> BatchState:
        """The rows as they stand, without what was worked out of them before."""
        return tree_map(lambda tensor: tensor, self._rows)

    def __call__(self, rows: BatchState, *, once: bool = False, least: int = 1) -> BatchState:
        """The rows after one step, or as many as it takes until one of them waits for something else.

        Or until `least` of them do, unless one has grown: the graph may have no room for it. The next call
        overwrites them.
        """
        assert self._graph is not None
        if next(tree_tensors(rows)) is not next(tree_tensors(self._rows)):
            _copy(rows, self._rows)
        before = self._ask().clone()
        while True:
            self._graph.replay()
            after = self._ask()
            changed = int((after != before).any(0).sum())
            at_work = 0 < int(after[0].max()) <= int(Phase.BLOCK_START)  # and nobody has an error
            if once or changed >= least or not at_work or bool((after[1] > before[1]).any()):
                return self.rows

    def _ask(self) -> Tensor:  # [2, B]
        """What the rows wait for and how long they are; waits for the pass, and for nothing else."""
        for told, own in zip(self._told, (self._rows.phase, self._rows.canvas.horizon)):
            told.copy_(own, non_blocking=True)
        if self._rows.phase.is_cuda:
            torch.cuda.current_stream().synchronize()
        return self._told


class GraphCache:
    """The captured steps of one model, by what they do and the shape of the rows, and their memories."""

    def __init__(self) -> None:
        self.at_work = Lock()  # a decoding holds it: another one would write to the same memory
        self._memories: dict[Hashable, Any] = {}
        self._captured: dict[Hashable, CapturedStep] = {}
        self._seen: Counter[Hashable] = Counter()  # steps that were wanted before they were captured
        # Graphs are replayed one at a time, and what they leave is copied out: they share their memory.
        self._pool: Any = None

    def memory(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The memory that graphs of this shape read and write: one, since they are never at work at once."""
        if key not in self._memories:
            self._memories.clear()  # a canvas of another shape: its graphs hold the old addresses
            self.forget()
            self._memories[key] = make()
        return self._memories[key]

    def forget(self) -> None:
        """The memory has another address: whatever was captured is over, and so is what it shared."""
        self._captured.clear()
        self._pool = None

    def captured(
        self, key: Hashable, make: Callable[[Any], CapturedStep], patience: int = 0
    ) -> CapturedStep | None:
        """The graph of this step for such rows, made when it is wanted more often than `patience`; or None.

        `make` is given the memory that graphs share.
        """
        found = self._captured.pop(key, None)
        if found is None:
            self._seen[key] += 1
            if self._seen[key] <= patience:
                if len(self._seen) > MOST_SEEN:
                    self._seen.clear()
                return None
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            found = make(self._pool)
        self._captured[key] = found
        if len(self._captured) > MAX_GRAPHS:
            del self._captured[next(iter(self._captured))]
        return found if found.reason is None else None


_GRAPHS: WeakKeyDictionary[Any, GraphCache] = WeakKeyDictionary()


def graphs_of(model: Any) -> GraphCache:
    """Kept as long as the model is."""
    if model not in _GRAPHS:
        _GRAPHS[model] = GraphCache()
    return _GRAPHS[model]


def _copy(new: BatchState, old: BatchState) -> None:
    """What has changed, all tensors of a dtype in one kernel."""
    kinds: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for to, own in zip(tree_tensors(old), tree_tensors(new)):
        if own is not to:
            kinds.setdefault(to.dtype, []).append((to, own.contiguous()))
    for pairs in kinds.values():
        torch._foreach_copy_([to for to, _ in pairs], [own for _, own in pairs])
