"""Captured passes: what can be told without a GPU. What only one shows is in test_gpu.py."""

import gc
import weakref

import pytest
import torch

import lastword
from lastword.canvas.tree import tree_map, tree_tensors
from lastword.decoding.batch_state import BatchState, Phase
from lastword.decoding.cuda_graph import CapturedStep, GraphCache, graphs_of
from lastword.decoding.loop import Step
from lastword.decoding.running_batch import RunningBatch
from lastword.decoding.static_shapes import PhaseScheduler
from lastword.decoding.step import Stepper
from lastword.errors import SettingError
from lastword.models.storage import KVStorage
from tests.decoding.asking import PROMPTS, answers, shapes, steps
from tests.laws.axes import tiny

RECIPE = lastword.Recipe(length=lastword.Fixed(9), cache=lastword.DualCache(), block=4)


@pytest.fixture
def rows(monkeypatch):
    """Rows as a decoding begins with."""
    begun = []
    monkeypatch.setattr(RunningBatch, "sync_phases", lambda self: begun.append(self.state) or look(self))
    next(iter(steps(tiny("llada-tiny"), RECIPE)))
    return begun[0]


look = RunningBatch.sync_phases


class Graph:
    """Replayed, it writes one token of the first row; after so many replays that row is done."""

    def __init__(self, captured, replays):
        self.captured, self.left, self.replays = captured, replays, 0

    def replay(self):
        self.replays += 1
        self.left -= 1
        own = self.captured._rows
        own.canvas.tokens[0, own.canvas.start] = self.replays
        own.phase[0] = Phase.IN_BLOCK if self.left else Phase.DONE


def captured(rows, replays):
    """A step that was captured; no graph of a CPU can be."""
    made = CapturedStep.__new__(CapturedStep)
    made._rows, made._told = tree_map(torch.clone, rows), torch.empty(2, len(rows.phase)).long()
    made._rows.phase.fill_(Phase.IN_BLOCK)
    made._graph, made.reason = Graph(made, replays), None
    return made


def test_a_graph_is_replayed_until_a_row_waits_for_something_else(rows):
    step = captured(rows, replays=3)
    after = step(step.rows)
    assert step._graph.replays == 3
    assert after.phase.tolist() == [Phase.DONE] + [Phase.IN_BLOCK] * (len(PROMPTS) - 1)
    assert int(after.canvas.tokens[0, after.canvas.start]) == 3


def test_rows_of_others_are_copied_and_its_own_are_not(rows):
    within = tree_map(torch.clone, rows)
    within.phase.fill_(Phase.IN_BLOCK)
    step = captured(rows, replays=1)
    held = [*tree_tensors(step._rows)]
    within.canvas.tokens[1] = 5
    after = step(within)
    assert (after.canvas.tokens[1] == 5).all()
    assert all(one is other for one, other in zip(tree_tensors(after), held))  # addresses stay
    after.canvas.tokens[1] = 6  # what a later replay would have written
    step._graph.left = 1
    after.phase.fill_(Phase.IN_BLOCK)
    assert (step(after).canvas.tokens[1] == 6).all()


def test_what_was_worked_out_of_rows_is_not_kept_with_them(rows):
    assert rows.canvas.masked.any()
    step = captured(rows, replays=1)
    step._rows.canvas.tokens.fill_(0)
    assert not step.rows.canvas.masked.any()


def test_graphs_of_one_shape_share_a_memory():
    graphs, made = GraphCache(), []

    def make():
        made.append(object())
        return made[-1]

    first = graphs.memory("4 rows", make)
    graphs._captured["4 rows"] = object()
    assert graphs.memory("4 rows", make) is first
    assert graphs._captured
    assert graphs.memory("5 rows", make) is not first
    assert not graphs._captured  # they hold the addresses of the old one
    assert graphs.memory("4 rows", make) is not first


def test_graphs_go_with_their_model():
    class Model:
        pass

    model = Model()
    graphs = graphs_of(model)
    assert graphs_of(model) is graphs
    assert graphs_of(Model()) is not graphs
    kept = weakref.ref(graphs)
    del model, graphs
    gc.collect()
    assert kept() is None


def test_nothing_is_replayed_on_a_cpu(monkeypatch):
    def none(*given):
        raise AssertionError("captured")

    monkeypatch.setattr("lastword.decoding.static_shapes.graphs_of", none)
    with shapes(fixed=True):
        replayed = answers(tiny("llada-tiny"), RECIPE, use_cuda_graphs=True)
    assert replayed == answers(tiny("llada-tiny"), RECIPE)


def test_a_replayed_step_has_nothing_to_look_at():
    seen = next(iter(steps(tiny("llada-tiny"), RECIPE)))
    fields = [getattr(seen, name) for name in Step.__dataclass_fields__]
    assert seen.chosen is seen.details.chosen
    assert seen.prediction is seen.details.prediction
    replayed = Step(*fields[:-1], None)
    for name in ("chosen", "prediction"):
        with pytest.raises(SettingError, match=r"replayed as a captured graph.*use_cuda_graphs=False"):
            getattr(replayed, name)


@pytest.mark.parametrize(
    ("waiting", "openings"),
    [
        ([Phase.BLOCK_START], True),
        ([Phase.IN_BLOCK, Phase.DONE], False),
        ([Phase.BLOCK_START] + 4 * [Phase.IN_BLOCK], True),
        ([Phase.BLOCK_START] + 5 * [Phase.IN_BLOCK], False),
        ([Phase.BLOCK_START] * 2 + 5 * [Phase.IN_BLOCK], True),
    ],
)
def test_openings_wait_until_they_are_worth_a_pass(waiting, openings, rows):
    """One row that opens does not hold up many that are within their blocks, and is not forgotten."""

    asked = []

    class Asked(Stepper):
        memory, recipe = KVStorage(*rows.canvas.tokens.shape), RECIPE

        def __init__(self):
            pass

        def __call__(self, rows, turn):
            asked.append("opening")
            return rows, None

        def within(self, rows):
            asked.append("within")
            return rows, None

    PhaseScheduler(Asked(), tiny("llada-tiny"), replay=False)(rows, waiting)
    assert asked == ["opening" if openings else "within"]


def test_rows_can_be_taken_and_replaced(rows):
    """On a canvas as wide as the wider."""
    index = torch.tensor([4, 1])
    some = rows.select(index)
    wider = some.widened(some.canvas.width + 3)
    assert not wider.canvas.masked[:, -3:].any()
    wider.clock.step.fill_(7)
    put = rows.with_rows(torch.tensor([0, 5]), wider)
    assert isinstance(put, BatchState)
    assert put.canvas.width == wider.canvas.width
    assert put.clock.step.tolist() == [7, 0, 0, 0, 0, 7]
    assert torch.equal(put.canvas.prompt_length[[0, 5]], rows.canvas.prompt_length[index])
    for old, new in zip(
        tree_tensors(rows.select(torch.arange(1, 5))), tree_tensors(put.select(torch.arange(1, 5)))
    ):
        assert torch.equal(old, new[:, : old.shape[1]] if old.ndim > 1 else new)
