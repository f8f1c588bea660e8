"""Steps that are replayed, with a graph that a CPU can run: the same tokens and ledgers as without."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import lastword
from lastword.canvas.tree import tree_map
from lastword.decoding import static_shapes as turns
from lastword.decoding.cuda_graph import CapturedStep, _copy
from lastword.decoding.static_shapes import PhaseScheduler
from tests.decoding.asking import PROMPTS, answers, shapes
from tests.decoding.test_fixed_shapes import LENGTHS, packed
from tests.laws.axes import tiny

RULES = [
    lastword.MostConfident(lastword.EqualShares(2.5)),
    lastword.EntropyBound(1.0),
    lastword.EntropyBound(50.0),  # a block in one pass: rows open block after block
    lastword.AboveThreshold(0.3, pace=1.5),
]
CACHES = [lastword.NoCache(), lastword.DualCache(), lastword.DualCache(0)]


class OnCpu(CapturedStep):
    """As captured on a GPU: the rows keep their tensors, and a replay writes to them."""

    def __init__(self, advance, rows):
        self._rows, self._advance = tree_map(torch.clone, rows), advance
        self._told = torch.empty(2, len(rows.phase), dtype=torch.long)
        self._graph, self.reason, self.replays = self, None, 0

    def replay(self):
        self.replays += 1
        _copy(self._advance(self.rows), self._rows)


@pytest.fixture
def graphs(monkeypatch):
    """Every step that could be captured is, by its shape."""
    kept = {}

    def captured(self, rows, shape, advance, patience=0):
        canvas = rows.canvas
        key = (id(self), *canvas.tokens.shape, canvas.start, shape)
        if key not in kept:
            kept[key] = OnCpu(lambda own: advance(self._stepper, own)[0], rows)
        return kept[key]

    monkeypatch.setattr(PhaseScheduler, "_replays", True)
    monkeypatch.setattr(PhaseScheduler, "_captured", captured)
    monkeypatch.setattr(turns, "WIDTHS", 4)  # as canvases are small
    monkeypatch.setattr(turns, "LEAVING", 2)
    return kept


@pytest.mark.parametrize("cache", CACHES, ids=str)
@pytest.mark.parametrize("length", LENGTHS, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("name", ["llada-tiny-eos", "dream-tiny"])
def test_replayed_steps_write_what_others_write(graphs, name, rule, length, cache):
    recipe = lastword.Recipe(length=length, unmask=rule, cache=cache, block=4)
    bare = isinstance(cache, lastword.NoCache)
    with packed(tiny(name)) if bare else nullcontext(tiny(name)) as model:
        for slots, prompts in ((1, PROMPTS[:1]), (3, PROMPTS)):
            plain = answers(model, recipe, prompts, max_batch_size=slots)
            with shapes(fixed=True):
                assert answers(model, recipe, prompts, max_batch_size=slots, use_cuda_graphs=True) == plain
    assert sum(graph.replays for graph in graphs.values()) >= len(graphs) > 0


def test_rows_without_blocks_leave_some_at_a_time(graphs):
    """The host looks after every second of six rows, and the answers are the same."""
    recipe = lastword.Recipe(length=lastword.Survival(limit=14), block=None)
    recipe = replace(recipe, cache=lastword.NoCache(), unmask=lastword.MostConfident())
    with packed(tiny("llada-tiny-eos")) as model:
        plain = answers(model, recipe)
        with shapes(fixed=True):
            assert answers(model, recipe, use_cuda_graphs=True) == plain
