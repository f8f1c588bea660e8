from __future__ import annotations

import torch

from lastword.canvas.cost import Cost, Work

VALID = torch.tensor([3, 4])


def test_nothing_costs_nothing():
    assert Cost.nothing(2).row(1) == Work(0, 0, 0)


def test_a_pass_counts_columns_and_their_squares():
    cost = Cost.nothing(2).plus_pass(torch.tensor([True, True]), VALID, VALID)
    assert cost.row(0) == Work(passes=1, columns=3, squares=9)
    assert cost.row(1) == Work(1, 4, 16)


def test_rows_that_took_no_part_pay_nothing():
    cost = Cost.nothing(2).plus_pass(torch.tensor([False, True]), VALID, VALID)
    assert cost.row(0) == Work(0, 0, 0)


def test_recomputed_columns_times_attended_columns():
    stale = torch.tensor([1, 2])
    cost = Cost.nothing(2).plus_pass(torch.tensor([True, True]), stale, VALID)
    assert cost.row(0) == Work(1, 1, 3)
    assert cost.row(1) == Work(1, 2, 8)


def test_guidance_is_one_pass_of_twice_the_columns():
    once = Cost.nothing(2).plus_pass(torch.tensor([True, False]), VALID, VALID)
    cost = once.plus_pass(torch.tensor([True, False]), VALID, VALID, passes=0)
    assert cost.row(0) == Work(1, 6, 18)


def test_costs_add_up_and_leave_the_old_one_alone():
    once = Cost.nothing(2).plus_pass(torch.tensor([True, True]), VALID, VALID)
    twice = once.plus_pass(torch.tensor([True, True]), VALID, VALID)
    assert twice.row(1) == Work(2, 8, 32)
    assert once.row(1).passes == 1
