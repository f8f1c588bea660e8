from __future__ import annotations

import jaxtyping
import pytest
import torch

from lastword.canvas.columns import Columns, first_true

# Row 0 read two columns, row 1 three, row 2 took no part.
CHOSEN = torch.tensor([[0, 1, 0, 1, 0], [1, 1, 0, 0, 1], [0, 0, 0, 0, 0]]).bool()


def test_columns_stand_from_left_to_right_and_a_shorter_row_repeats_its_last():
    columns = Columns.from_mask(CHOSEN)
    assert columns.index[:2].tolist() == [[1, 3, 3], [0, 1, 4]]
    assert columns.read.int().tolist() == [[1, 1, 0], [1, 1, 1], [0, 0, 0]]
    assert columns.rows.tolist() == [0, 1]
    assert columns.width == 5


def test_what_is_taken_at_the_columns_and_spread_again_is_what_was_there():
    columns = Columns.from_mask(CHOSEN)
    values = torch.arange(15).reshape(3, 5)
    taken = columns.gather(values)
    assert taken[:2].tolist() == [[1, 3, 3], [5, 6, 9]]
    there = columns.scatter(taken, fill=-1)
    assert torch.equal(there[:2], torch.where(CHOSEN, values, -1)[:2])
    assert torch.equal(columns.gather(there)[:2], taken[:2])
    for seed in range(20):
        chosen = torch.rand(4, 7, generator=torch.Generator().manual_seed(seed)) < 0.4
        columns = Columns.from_mask(chosen)
        values = torch.arange(28.0).reshape(4, 7)
        part = chosen.any(-1)
        spread = columns.scatter(columns.gather(values), fill=-1.0)
        assert torch.equal(spread[part], torch.where(chosen, values, -1.0)[part]), seed


def test_a_mask_goes_there_and_back_in_every_row():
    columns = Columns.from_mask(CHOSEN)
    everywhere = torch.ones_like(CHOSEN)
    assert torch.equal(columns.gather(everywhere), columns.read)  # False where nothing was read
    assert torch.equal(columns.scatter(columns.read), CHOSEN)
    some = torch.tensor([[0, 0, 0, 1, 1], [1, 0, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    assert torch.equal(columns.scatter(columns.gather(some)), some & CHOSEN)


def test_a_repeated_column_keeps_the_value_of_its_first():
    """The repetition may hold anything: False in a mask, whatever a view puts where nothing was read."""
    columns = Columns.from_mask(CHOSEN)
    values = torch.tensor([[1.0, 2.0, -torch.inf], [3.0, 4.0, 5.0], [0.0, 0.0, 0.0]])
    assert columns.scatter(values, 9.0)[0].tolist() == [9, 1, 9, 2, 9]
    taken = torch.tensor([[False, True, False], [False] * 3, [False] * 3])
    assert columns.scatter(taken).nonzero().tolist() == [[0, 3]]


def test_a_pass_that_read_nothing_has_no_columns():
    columns = Columns.from_mask(torch.zeros(2, 4, dtype=torch.bool))
    assert columns.index.shape == columns.read.shape == (2, 0)
    assert columns.rows.tolist() == []
    assert columns.scatter(columns.gather(torch.arange(8).reshape(2, 4)), 7).tolist() == [[7] * 4] * 2


def test_leftmost_is_the_first_that_is_true_or_beyond_the_last():
    rows = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]).bool()
    assert first_true(rows).tolist() == [1, 0, 3, 4]
    wide = torch.ones(1, 5000, dtype=torch.bool)  # of many that tie, too
    wide[0, :4000] = False
    assert first_true(wide).tolist() == [4000]


def test_shapes_are_checked_while_these_tests_run():
    with pytest.raises(jaxtyping.TypeCheckError):
        Columns.from_mask(CHOSEN[0])
