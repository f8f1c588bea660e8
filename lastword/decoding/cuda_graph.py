"""CUDA graphs: capture and replay of decoding steps, and the captured steps of each model."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lastword.canvas.canvas import tree_map, tree_tensors
from lastword.decoding.step import BatchState, Phase
from lastword.models.kernels.attention import plan_for_shape

MAX_GRAPHS = 48  # per model; beyond that, the least recently used one is dropped
MAX_COUNTED = 4096  # keys whose requests are counted; with more, all counts restart

log = logging.getLogger("lastword")

StepFunction = Callable[[BatchState], BatchState]


class CapturedStep:
    """A decoding step captured as a CUDA graph, which reads and writes one state at fixed addresses.

    Only steps of recipes whose parts are declared capturable are captured. If a capture fails nevertheless,
    `failure` holds the reason, a warning is logged, and the caller runs the step uncaptured.
    """

    def __init__(self, step: StepFunction, state: BatchState, pool: Any = None) -> None:
        self._state = tree_map(torch.clone, state)
        self._status = torch.empty((2, *state.phase.shape), dtype=torch.long, pin_memory=True)
        self._step = step  # kept alive, because every replay reads its tensors
        self._graph: torch.cuda.CUDAGraph | None = None
        self.failure: str | None = None
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side), plan_for_shape():
                for _ in range(2):  # warm-up: compiles kernels, creates library handles and cache storage
                    step(self.state)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool), plan_for_shape():
                _copy(step(self.state), self._state)
            self._graph = graph
        except Exception as error:
            torch.cuda.current_stream().wait_stream(side)
            first: BaseException = error
            while first.__context__ is not None:  # the first error; leaving a failed capture raises another one
                first = first.__context__
            self.failure = str(first).partition("\n")[0]
            log.warning("a decoding step could not be captured as a CUDA graph and runs slower: %s", self.failure)

    @property
    def state(self) -> BatchState:
        """The tensors that the graph reads and writes, in new objects without outdated cached properties."""
        return tree_map(lambda tensor: tensor, self._state)

    def __call__(self, state: BatchState, *, once: bool = False, min_changed: int = 1) -> BatchState:
        """Replay the step and return the state after it, which the next call overwrites.

        Without `once`, replay until `min_changed` rows change phase or horizon, one grows or fails, or all are done.
        """
        if self._graph is None:
            raise RuntimeError(f"this step was not captured: {self.failure}")
        if next(tree_tensors(state)) is not next(tree_tensors(self._state)):
            _copy(state, self._state)
        before = self._read_status().clone()
        while True:
            self._graph.replay()
            after = self._read_status()
            changed = int((after != before).any(0).sum())
            running = 0 < int(after[0].max()) <= int(Phase.BLOCK_START)  # some row has masks, and none has an error
            # A row that has grown may need more columns than the graph computes.
            if once or changed >= min_changed or not running or bool((after[1] > before[1]).any()):
                return self.state

    def _read_status(self) -> Tensor:  # [2, B]
        """Return phase and horizon of every row in a reused host tensor; only here does the host wait for the GPU."""
        for host, tensor in zip(self._status, (self._state.phase, self._state.canvas.horizon)):
            host.copy_(tensor, non_blocking=True)
        if self._state.phase.is_cuda:
            torch.cuda.current_stream().synchronize()
        return self._status


class GraphCache:
    """The captured steps of one model by step shape, and the cache storage that they read and write."""

    def __init__(self) -> None:
        self.in_use = Lock()  # held by the decoding run that replays graphs: one per model at a time
        self._storages: dict[Hashable, Any] = {}
        self._captured: dict[Hashable, CapturedStep] = {}
        self._requested: Counter[Hashable] = Counter()
        self._pool: Any = None  # memory of all graphs, shared because only one is replayed at a time

    def storage(self, key: Hashable, create: Callable[[], Any]) -> Any:
        """Return the cache storage of a key; a new key drops the previous storage and the graphs that use it."""
        if key not in self._storages:
            self._storages.clear()
            self.clear()
            self._storages[key] = create()
        return self._storages[key]

    def clear(self) -> None:
        """Drop all graphs; called when tensors whose addresses they hold were replaced."""
        self._captured.clear()
        self._pool = None

    def captured(
        self, key: Hashable, capture: Callable[[Any], CapturedStep], min_requests: int = 0
    ) -> CapturedStep | None:
        """Return the captured step of a key; None in the first `min_requests` calls with that key.

        The next call runs `capture` with the graphs' memory pool. A step whose capture failed is returned too:
        see `CapturedStep.failure`.
        """
        step = self._captured.pop(key, None)
        if step is None:
            self._requested[key] += 1
            if self._requested[key] <= min_requests:
                if len(self._requested) > MAX_COUNTED:
                    self._requested.clear()
                return None
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            step = capture(self._pool)
        self._captured[key] = step
        if len(self._captured) > MAX_GRAPHS:
            del self._captured[next(iter(self._captured))]
        return step


_GRAPHS: WeakKeyDictionary[Any, GraphCache] = WeakKeyDictionary()
_GRAPHS_LOCK = Lock()


def graphs_of(model: Any) -> GraphCache:
    """Return the graph cache of a model; it lives as long as the model."""
    with _GRAPHS_LOCK:
        if model not in _GRAPHS:
            _GRAPHS[model] = GraphCache()
        return _GRAPHS[model]


def _copy(new: BatchState, old: BatchState) -> None:
    """Copy the tensors of `new` into those of `old`, except shared ones, with one kernel per dtype."""
    by_dtype: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for target, source in zip(tree_tensors(old), tree_tensors(new)):
        if source is not target:
            by_dtype.setdefault(target.dtype, []).append((target, source.contiguous()))
    for pairs in by_dtype.values():
        torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])
