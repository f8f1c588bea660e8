from __future__ import annotations

import torch

from lastword.decoding.forward import BatchCost, TokenCost

VALID = torch.tensor([3, 4])


def test_nothing_costs_nothing():
    assert BatchCost.zeros(2).row(1) == TokenCost(0, 0, 0)


def test_a_pass_counts_columns_and_their_squares():
    cost = BatchCost.zeros(2).add_pass(torch.tensor([True, True]), VALID, VALID)
    assert cost.row(0) == TokenCost(forward_passes=1, tokens_computed=3, attention_pairs=9)
    assert cost.row(1) == TokenCost(1, 4, 16)


def test_rows_that_took_no_part_pay_nothing():
    cost = BatchCost.zeros(2).add_pass(torch.tensor([False, True]), VALID, VALID)
    assert cost.row(0) == TokenCost(0, 0, 0)


def test_recomputed_columns_times_attended_columns():
    stale = torch.tensor([1, 2])
    cost = BatchCost.zeros(2).add_pass(torch.tensor([True, True]), stale, VALID)
    assert cost.row(0) == TokenCost(1, 1, 3)
    assert cost.row(1) == TokenCost(1, 2, 8)


def test_guidance_is_one_pass_of_twice_the_columns():
    once = BatchCost.zeros(2).add_pass(torch.tensor([True, False]), VALID, VALID)
    cost = once.add_pass(torch.tensor([True, False]), VALID, VALID, passes=0)
    assert cost.row(0) == TokenCost(1, 6, 18)


def test_costs_add_up_and_leave_the_old_one_alone():
    once = BatchCost.zeros(2).add_pass(torch.tensor([True, True]), VALID, VALID)
    twice = once.add_pass(torch.tensor([True, True]), VALID, VALID)
    assert twice.row(1) == TokenCost(2, 8, 32)
    assert once.row(1).forward_passes == 1
