"""Captured: a step replayed as one CUDA graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch

from lastword.canvas.state import each, tensors
from lastword.slots.rows import Rows

MOST_GRAPHS = 16  # of a model; the one that was used longest ago goes

log = logging.getLogger("lastword")

Advance = Callable[[Rows], Rows]


class Captured:
    """One step over rows whose tensors keep their addresses: a launch, and nothing on the host.

    Parts that ask the device something, or draw from a generator of the host, cannot be captured: `reason`
    then says which question it was, and whoever holds this runs the same code uncaptured.
    """

    def __init__(self, advance: Advance, rows: Rows) -> None:
        self._rows = each(torch.clone, rows)
        self._stage = torch.empty(rows.stage.shape, dtype=rows.stage.dtype, pin_memory=True)
        self._advance = advance  # what it made when it first ran is read by every replay
        self._graph: torch.cuda.CUDAGraph | None = None
        self.reason: str | None = None
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        asking = torch.cuda.get_sync_debug_mode()
        try:
            with torch.cuda.stream(side):
                advance(self.rows)  # compiles kernels, makes handles and stores
                torch.cuda.set_sync_debug_mode("error")
                advance(self.rows)
            torch.cuda.set_sync_debug_mode(asking)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
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
    def rows(self) -> Rows:
        """The rows as they stand, without what was worked out of them before."""
        return each(lambda tensor: tensor, self._rows)

    def __call__(self, rows: Rows, *, once: bool = False) -> Rows:
        """The rows after one step, or as many as it takes until one of them waits for something else.

        The next call overwrites them.
        """
        assert self._graph is not None
        if next(tensors(rows)) is not next(tensors(self._rows)):
            _copy(rows, self._rows)
        before = self._stage.copy_(self._rows.stage).clone()
        while True:
            self._graph.replay()
            self._stage.copy_(self._rows.stage)  # waits for the pass, and for nothing else
            if once or not torch.equal(self._stage, before):
                return self.rows


class Graphs:
    """The captured steps of one model, by what they do and the shape of the rows, and their memories."""

    def __init__(self) -> None:
        self.at_work = Lock()  # a decoding holds it: another one would write to the same memory
        self._memories: dict[Hashable, Any] = {}
        self._captured: dict[Hashable, Captured] = {}

    def memory(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The memory that graphs of this shape read and write: one, since they are never at work at once."""
        if key not in self._memories:
            self._memories.clear()  # a canvas of another shape: its graphs hold the old addresses
            self._captured.clear()
            self._memories[key] = make()
        return self._memories[key]

    def forget(self) -> None:
        """The memory has another address: whatever was captured is over."""
        self._captured.clear()

    def captured(self, key: Hashable, make: Callable[[], Captured]) -> Captured:
        """The graph of this step for such rows, made when it is first needed."""
        found = self._captured.pop(key, None) or make()
        self._captured[key] = found
        if len(self._captured) > MOST_GRAPHS:
            del self._captured[next(iter(self._captured))]
        return found


_GRAPHS: WeakKeyDictionary[Any, Graphs] = WeakKeyDictionary()


def graphs_of(model: Any) -> Graphs:
    """Kept as long as the model is."""
    if model not in _GRAPHS:
        _GRAPHS[model] = Graphs()
    return _GRAPHS[model]


def _copy(new: Rows, old: Rows) -> None:
    torch._foreach_copy_(list(tensors(old)), list(tensors(new)))
