"""Captured steps, as far as a CPU can run them. What needs a GPU is in test_gpu.py."""

import gc
import logging
import weakref
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import lastword
from lastword.canvas.canvas import tree_map, tree_tensors
from lastword.decoding import static_shapes as scheduling
from lastword.decoding.cuda_graph import CapturedStep, GraphCache, _copy, graphs_of
from lastword.decoding.loop import Step
from lastword.decoding.running_batch import RunningBatch
from lastword.decoding.static_shapes import PhaseScheduler
from lastword.decoding.step import BatchState, PassShape, Phase, Stepper
from lastword.errors import SettingError
from lastword.models.storage import KVStorage
from tests.decoding.decoded import PROMPTS, answers, static_shapes, steps
from tests.decoding.test_static_shapes import LENGTHS, packed
from tests.laws.axes import tiny

RECIPE = lastword.Recipe(length=lastword.Fixed(9), cache=lastword.DualCache(), block=4)
RULES = [
    lastword.MostConfident(lastword.EqualShares(2.5)),
    lastword.EntropyBound(1.0),
    lastword.EntropyBound(50.0),  # a block in one pass: every pass starts a block
    lastword.AboveThreshold(0.3, max_tokens_per_step=1.5),
]
CACHES = [lastword.NoCache(), lastword.DualCache(), lastword.DualCache(0)]
MODELS = ["llada-tiny-eos", "dream-tiny"]
# Every rule with every length, and each of them with every cache and model.
COMBINATIONS = [
    pytest.param(MODELS[(i + j // 2) % 2], rule, length, CACHES[(i + j) % 3], id=f"{rule}-{length}")
    for i, length in enumerate(LENGTHS)
    for j, rule in enumerate(RULES)
]


class OnCpu(CapturedStep):
    """Replays a step on the CPU as a graph would: the state keeps its tensors and is written in place."""

    def __init__(self, step, state, pool=None):
        self._state, self._step = tree_map(torch.clone, state), step
        self._status = torch.empty((2, len(state.phase)), dtype=torch.long)
        self._graph, self.failure, self.replays = self, None, 0

    def replay(self):
        self.replays += 1
        _copy(self._step(self.state), self._state)


@pytest.fixture
def graphs(monkeypatch):
    """Capture every step that a GPU would capture, at its first request; return the captured steps."""
    cache, captured = GraphCache(), {}
    real = cache.captured

    def recorded(key, *arguments):
        captured[key] = real(key, *arguments)
        return captured[key]

    monkeypatch.setattr(cache, "captured", recorded)
    monkeypatch.setattr(PhaseScheduler, "_replays", True)
    monkeypatch.setattr(scheduling, "graphs_of", lambda model: cache)
    monkeypatch.setattr(scheduling, "CapturedStep", OnCpu)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    for name, small in (
        ("COLUMN_MULTIPLE", 4),  # canvases are small
        ("EVICT_SHARE", 2),
        ("MIN_REQUESTS", 0),
        ("MIN_REQUESTS_BLOCK_START", 0),
    ):
        monkeypatch.setattr(scheduling, name, small)
    return captured


@pytest.mark.parametrize(("name", "rule", "length", "cache"), COMBINATIONS)
def test_replayed_steps_write_what_dynamic_steps_write(graphs, name, rule, length, cache):
    recipe = lastword.Recipe(length=length, unmask=rule, cache=cache, block=4)
    no_cache = isinstance(cache, lastword.NoCache)
    with packed(tiny(name)) if no_cache else nullcontext(tiny(name)) as model:
        for rows, prompts in ((1, PROMPTS[:1]), (3, PROMPTS)):
            dynamic = answers(model, recipe, prompts, max_batch_size=rows)
            with static_shapes():
                assert answers(model, recipe, prompts, max_batch_size=rows, use_cuda_graphs=True) == dynamic
    assert sum(graph.replays for graph in graphs.values()) >= len(graphs) > 0


@pytest.mark.parametrize("length", LENGTHS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_block_start_of_a_single_row_has_a_static_shape(graphs, name, length):
    """The recomputed columns are rounded up, also where the last block is short."""
    every = (LENGTHS.index(length) + MODELS.index(name)) % 3
    recipe = replace(RECIPE, unmask=lastword.EntropyBound(1.0), length=length, cache=lastword.DualCache(every))
    for prompt in PROMPTS[:3]:
        dynamic = answers(tiny(name), recipe, [prompt])
        with static_shapes():
            assert answers(tiny(name), recipe, [prompt], use_cuda_graphs=True) == dynamic
    assert any(key[-1].recompute is not None for key in graphs)


def test_finished_rows_without_blocks_are_evicted_some_at_a_time(graphs):
    recipe = replace(RECIPE, length=lastword.Survival(limit=14), block=None, cache=lastword.NoCache())
    with packed(tiny("llada-tiny-eos")) as model:
        dynamic = answers(model, recipe)
        with static_shapes():
            assert answers(model, recipe, use_cuda_graphs=True) == dynamic


def test_a_failed_capture_is_logged_counted_and_runs_uncaptured(monkeypatch, caplog):
    class Fails(CapturedStep):
        def __init__(self, step, state, pool=None):
            self.failure = "operation not permitted"

    cache = GraphCache()
    monkeypatch.setattr(PhaseScheduler, "_replays", True)
    monkeypatch.setattr(scheduling, "graphs_of", lambda model: cache)
    monkeypatch.setattr(scheduling, "CapturedStep", Fails)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    dynamic = answers(tiny("llada-tiny"), RECIPE)
    with static_shapes():
        assert answers(tiny("llada-tiny"), RECIPE, use_cuda_graphs=True) == dynamic
        *_, last = steps(tiny("llada-tiny"), RECIPE, use_cuda_graphs=True)
    assert last.graph_fallbacks > 0


def test_without_a_gpu_a_capture_fails_with_a_warning(state, monkeypatch, caplog):
    class Stream:
        def wait_stream(self, other):
            pass

    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **kwargs: empty(*size, **kwargs))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    with caplog.at_level(logging.WARNING, "lastword"):
        captured = CapturedStep(lambda rows: 1 / 0, state)
    assert "division by zero" in captured.failure
    assert "division by zero" in caplog.text
    with pytest.raises(RuntimeError, match="division by zero"):
        captured(state)


@pytest.fixture
def state(monkeypatch):
    """The state before the first pass."""
    states, real = [], RunningBatch.sync_phases
    monkeypatch.setattr(RunningBatch, "sync_phases", lambda self: states.append(self.state) or real(self))
    next(iter(steps(tiny("llada-tiny"), RECIPE)))
    return states[0]


def countdown(state, replays):
    """A captured step that writes a token of the first row; after so many replays the row is done."""

    def step(rows):
        count = int(rows.clock.step[0]) + 1
        rows.clock.step[0] = count
        rows.canvas.tokens[0, rows.canvas.start] = count
        rows.phase[0] = Phase.IN_BLOCK if count < replays else Phase.DONE
        return rows

    captured = OnCpu(step, state)
    captured._state.phase.fill_(Phase.IN_BLOCK)
    return captured


def test_a_graph_is_replayed_until_a_row_changes_phase(state):
    captured = countdown(state, replays=3)
    after = captured(captured.state)
    assert captured.replays == 3
    assert after.phase.tolist() == [Phase.DONE] + [Phase.IN_BLOCK] * (len(PROMPTS) - 1)
    assert int(after.canvas.tokens[0, after.canvas.start]) == 3


def test_only_the_state_of_another_step_is_copied(state):
    other = tree_map(torch.clone, state)
    other.phase.fill_(Phase.IN_BLOCK)
    captured = countdown(state, replays=1)
    before = [*tree_tensors(captured._state)]
    other.canvas.tokens[1] = 5
    after = captured(other)
    assert (after.canvas.tokens[1] == 5).all()
    assert all(new is old for new, old in zip(tree_tensors(after), before))  # addresses stay
    after.canvas.tokens[1] = 6
    after.phase.fill_(Phase.IN_BLOCK)
    assert (captured(after).canvas.tokens[1] == 6).all()


def test_values_cached_on_a_canvas_do_not_outlive_a_replay(state):
    assert state.canvas.masked.any()
    captured = countdown(state, replays=1)
    captured._state.canvas.tokens.fill_(0)
    assert not captured.state.canvas.masked.any()


def test_graphs_of_one_shape_share_storage():
    graphs = GraphCache()
    first = graphs.storage("4 rows", object)
    graphs._captured["4 rows"] = object()
    assert graphs.storage("4 rows", object) is first
    assert graphs._captured
    assert graphs.storage("5 rows", object) is not first
    assert not graphs._captured  # they hold the addresses of the old storage
    assert graphs.storage("4 rows", object) is not first


def test_a_shape_is_captured_after_enough_requests_and_old_graphs_are_dropped(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr("lastword.decoding.cuda_graph.MAX_GRAPHS", 2)
    graphs, pools = GraphCache(), []

    def capture(pool):
        pools.append(pool)
        return CapturedStep.__new__(CapturedStep)

    first, second, third, fourth = (graphs.captured("a", capture, min_requests=2) for _ in range(4))
    assert first is second is None
    assert third is fourth is not None
    assert pools == ["pool"]
    for key in "bac":
        graphs.captured(key, capture)
    assert [*graphs._captured] == ["a", "c"]


def test_graphs_are_freed_with_their_model(monkeypatch):
    monkeypatch.setattr(PhaseScheduler, "_replays", True)
    monkeypatch.setattr(scheduling, "CapturedStep", OnCpu)
    monkeypatch.setattr(scheduling, "MIN_REQUESTS", 0)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    model = lastword.load("toy")
    assert graphs_of(model) is graphs_of(model) is not graphs_of(lastword.load("toy"))
    with static_shapes():
        for _ in lastword.decode(model, [[1, 2, 3]], lastword.Recipe(length=lastword.Fixed(9)), use_cuda_graphs=True):
            pass
    (step,) = graphs_of(model)._captured.values()
    assert step.replays
    reference = weakref.ref(model)
    del model, step
    gc.collect()
    assert reference() is None


def test_nothing_is_replayed_on_a_cpu(monkeypatch):
    def fail(*arguments):
        raise AssertionError("captured")

    monkeypatch.setattr(scheduling, "graphs_of", fail)
    with static_shapes():
        replayed = answers(tiny("llada-tiny"), RECIPE, use_cuda_graphs=True)
    assert replayed == answers(tiny("llada-tiny"), RECIPE)


def test_a_replayed_step_has_no_prediction():
    step = next(iter(steps(tiny("llada-tiny"), RECIPE)))
    assert step.chosen is step.details.chosen
    assert step.prediction is step.details.prediction
    fields = {name: getattr(step, name) for name in Step.__dataclass_fields__}
    replayed = Step(**fields | {"details": None})
    for name in ("chosen", "prediction"):
        with pytest.raises(SettingError, match=r"CUDA graph.*use_cuda_graphs=False"):
            getattr(replayed, name)


@pytest.mark.parametrize(
    ("phases", "starts"),
    [
        ([Phase.BLOCK_START], True),
        ([Phase.IN_BLOCK, Phase.DONE], False),
        ([Phase.BLOCK_START] + 4 * [Phase.IN_BLOCK], True),
        ([Phase.BLOCK_START] + 5 * [Phase.IN_BLOCK], False),
        ([Phase.BLOCK_START] * 2 + 5 * [Phase.IN_BLOCK], True),
    ],
)
def test_block_starts_wait_until_they_are_worth_a_pass(phases, starts, state):
    """One row that starts a block does not delay many that are inside one, and does not wait forever."""
    shapes = []

    class Recorder(Stepper):
        storage, recipe = KVStorage(*state.canvas.tokens.shape), RECIPE

        def __init__(self):
            pass

        def __call__(self, rows, shape):
            shapes.append(shape)
            return rows, None

    PhaseScheduler(Recorder(), tiny("llada-tiny"), use_cuda_graphs=False)(state, phases)
    expected = PassShape(Phase.BLOCK_START) if starts else PassShape(Phase.IN_BLOCK, static=True)
    assert shapes == [expected]


def rows_of(state, index):
    return tree_map(lambda tensor: tensor.index_select(0, index), state)


def test_rows_can_be_selected_and_replaced(state):
    """The canvas becomes as wide as the wider one."""
    index = torch.tensor([4, 1])
    some = rows_of(state, index)
    wider = some.widened(some.canvas.width + 3)
    assert not wider.canvas.masked[:, -3:].any()
    wider.clock.step.fill_(7)
    merged = state.with_rows(torch.tensor([0, 5]), wider)
    assert isinstance(merged, BatchState)
    assert merged.canvas.width == wider.canvas.width
    assert merged.clock.step.tolist() == [7, 0, 0, 0, 0, 7]
    assert torch.equal(merged.canvas.prompt_length[[0, 5]], state.canvas.prompt_length[index])
    others = torch.arange(1, 5)
    for old, new in zip(tree_tensors(rows_of(state, others)), tree_tensors(rows_of(merged, others))):
        assert torch.equal(old, new[:, : old.shape[1]] if old.ndim > 1 else new)
