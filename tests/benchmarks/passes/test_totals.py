"""Totals of a decoding: forward passes, computed tokens, padding and the use of the batch."""

from dataclasses import replace

import torch

import lastword
from benchmarks.passes.replay import Lengths, Replay
from benchmarks.passes.shapes import TINY, random_model
from benchmarks.passes.totals import StepTotals
from lastword.decoding.forward import BatchCost, TokenCost
from lastword.policies.cache import DualCache
from lastword.policies.unmask.rule import MostConfident
from lastword.policies.unmask.schedule import EqualShares

CPU = torch.device("cpu")
PROMPTS = [[3] * length for length in (5, 9, 7, 12)]
LENGTHS = [Lengths(24, 10), Lengths(20, 30), Lengths(9, 9), Lengths(16, 16)]
RECIPE = lastword.Recipe(
    length=Replay.of(PROMPTS, LENGTHS), unmask=MostConfident(EqualShares(3.0)), cache=DualCache(), block=8
)


def steps(recipe=RECIPE, slots=None):
    model = random_model(TINY, CPU, torch.float32)
    return lastword.decode(model, PROMPTS, recipe, max_batch_size=slots, use_cuda_graphs=True)


def counted(model, call):
    """Columns that went through the first layer."""
    seen = 0

    def count(module, given):
        nonlocal seen
        seen += given[0].shape[:-1].numel()

    handle = model.network.blocks[0].register_forward_pre_hook(count)
    call()
    handle.remove()
    return seen


def test_computed_columns_are_those_that_the_layers_saw(monkeypatch):
    monkeypatch.setattr("lastword.decoding.step.STATIC_DEVICES", {"cpu"})
    model = random_model(TINY, CPU, torch.float32)
    every = []

    def call():
        told = lastword.decode(model, PROMPTS, RECIPE, max_batch_size=1, use_cuda_graphs=True)
        every.append(StepTotals.of(told, len(PROMPTS)))

    computed = counted(model, call)
    (totals,) = every
    own = sum(row.cost.tokens_computed for row in totals.finished)
    assert totals.useful == own / computed
    assert totals.useful < 1  # last blocks are narrower than what is computed of them
    assert totals.forward_passes == sum(row.cost.forward_passes for row in totals.finished)


def test_a_step_is_counted_by_what_it_did(monkeypatch):
    monkeypatch.setattr("lastword.decoding.step.STATIC_DEVICES", {"cpu"})
    first, *_, last = steps(slots=2)

    def step(prompts, passes, columns, opening, *, seen=first.details, done=()):
        spent = BatchCost(torch.tensor(passes), torch.tensor(columns), torch.zeros(2, dtype=torch.long))
        clock = replace(first.clock, block_start=torch.tensor(opening))
        return replace(first, request_ids=prompts, cost=spent, clock=clock, details=seen, finished=done)

    done = (replace(last.finished[0], cost=TokenCost(5, 77, 0)),)
    told = [
        step((0, 1), [1, 1], [20, 30], [True, True]),  # 50 columns, packed
        step((0, None), [4, 1], [44, 30], [False, True], seen=None),  # replayed: 3 passes of 2 x 8
        step((0, 2), [4, 1], [44, 40], [False, True]),  # 40 columns; nothing waits now
        step((0, 2), [5, 2], [52, 48], [False, False], done=done),  # 2 x 8
    ]
    totals = StepTotals.of(told, 3)
    assert totals.forward_passes == 1 + 3 + 1 + 1
    assert totals.useful == 77 / (50 + 48 + 40 + 16)
    assert totals.occupancy == (2 + 3 * 1) / (2 + 3 * 2)


def test_slots_are_in_use_until_nothing_waits():
    totals = StepTotals.of(steps(slots=2), len(PROMPTS))
    assert totals.occupancy == 1.0
    assert totals.useful is None  # on a CPU
    assert StepTotals.of(steps(), len(PROMPTS)).occupancy is None
    assert sorted(row.request_id for row in totals.finished) == [0, 1, 2, 3]
