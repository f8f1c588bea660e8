"""Tensors in tuples and dataclasses, changed together."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from lastword.canvas.canvas import Canvas, Clock, tree_map, tree_tensors, tree_to, tree_where
from lastword.canvas.tokens import TokenIds


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclass(frozen=True, eq=False)
class Both:
    number: int
    pair: Pair
    nothing: torch.Tensor | None = None
    ids: TokenIds | None = None


def both(first, second, number=3):
    pair = Pair(torch.tensor(first), torch.tensor(second))
    return Both(number, pair, ids=TokenIds(mask=6, end=7, pad=7, vocab_size=8))


def test_every_tensor_is_changed_and_nothing_else():
    old = both([1, 2], [[3], [4]])
    new = tree_map(lambda tensor: tensor + 1, old)
    assert isinstance(new.pair, Pair)
    assert (new.pair.first.tolist(), new.pair.second.tolist()) == ([2, 3], [[4], [5]])
    assert (new.number, new.nothing) == (3, None)
    assert new.ids is old.ids
    assert old.pair.first.tolist() == [1, 2]


def test_a_tensor_is_changed_beside_its_like():
    old, new = both([1, 2], [3, 4]), both([10, 20], [30, 40], number=4)
    sums = tree_map(torch.add, old, new)
    assert (sums.pair.first.tolist(), sums.pair.second.tolist()) == ([11, 22], [33, 44])
    assert sums.number == 3  # what is no tensor is that of the first


def test_a_state_may_be_empty_or_plain():
    assert tree_map(torch.neg, ()) == ()
    assert tree_map(torch.neg, None) is None
    changed = tree_map(torch.neg, (torch.tensor([1]),))
    assert type(changed) is tuple
    assert changed[0].tolist() == [-1]


def test_tensors_come_in_order():
    found = tree_tensors((both([1], [2]), torch.tensor([3]), None, "text"))
    assert [tensor.tolist() for tensor in found] == [[1], [2], [3]]


def test_rows_are_merged_whatever_their_shape():
    taken = torch.tensor([True, False])
    new, old = both([1, 2], [[3, 3], [4, 4]]), both([10, 20], [[30, 30], [40, 40]])
    rows = tree_where(taken, new, old)
    assert rows.pair.first.tolist() == [1, 20]
    assert rows.pair.second.tolist() == [[3, 3], [40, 40]]


def test_what_did_not_change_is_not_merged():
    """A tensor that is the same is handed on: a graph would copy it in every pass."""
    rows = both([1, 2], [3, 4])
    same = tree_where(torch.tensor([True, False]), rows, rows)
    assert same.pair.first is rows.pair.first


def test_rows_move_with_what_they_hold():
    moved = tree_to(both([1, 2], [3, 4]), torch.device("meta"))
    assert {tensor.device.type for tensor in tree_tensors(moved)} == {"meta"}
    assert moved.number == 3


def test_a_canvas_and_a_clock_are_such_rows():
    """What was worked out of a canvas does not go along: the tokens may be others."""
    ids = TokenIds(mask=6, end=7, pad=7, vocab_size=8)
    canvas = Canvas.blank([[1], [2, 3]], torch.tensor([2, 3]), ids)
    clock = Clock.start(canvas).tick(canvas, 2)
    assert canvas.masked.sum() == 5
    assert clock.window.columns(canvas.width).sum() == 4
    first = torch.tensor([1])
    one = tree_map(lambda tensor: tensor.index_select(0, first), canvas)
    own = tree_map(lambda tensor: tensor.index_select(0, first), clock)
    assert (one.start, one.masked.sum().item()) == (canvas.start, 3)
    assert own.window.columns(one.width).shape == (1, one.width)
    filled = tree_map(torch.zeros_like, canvas)
    assert not filled.masked.any()
