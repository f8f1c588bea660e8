"""Tests of the totals of a decoding: forward passes, computed tokens, padding and the use of the batch."""

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


def steps(recipe=RECIPE, max_batch_size=None):
    model = random_model(TINY, CPU, torch.float32)
    return lastword.decode(model, PROMPTS, recipe, max_batch_size=max_batch_size, use_cuda_graphs=True)


def tokens_in_first_layer(model, call):
    """Return the number of tokens in the inputs of the first layer during a call."""
    tokens = 0

    def count(module, inputs):
        nonlocal tokens
        tokens += inputs[0].shape[:-1].numel()

    handle = model.network.blocks[0].register_forward_pre_hook(count)
    call()
    handle.remove()
    return tokens


def test_computed_tokens_are_those_of_the_layers(monkeypatch):
    monkeypatch.setattr("lastword.decoding.step.STATIC_DEVICES", {"cpu"})
    model = random_model(TINY, CPU, torch.float32)
    model.packs = False  # packed passes have no modules whose inputs could be counted
    totals = StepTotals(len(PROMPTS))

    def call():
        for step in lastword.decode(model, PROMPTS, RECIPE, max_batch_size=1, use_cuda_graphs=True):
            totals.add(step)

    computed = tokens_in_first_layer(model, call)
    needed = sum(row.cost.tokens_computed for row in totals.finished)
    assert totals.useful == needed / computed
    assert totals.useful < 1  # the last block of a row is padded
    assert totals.forward_passes == sum(row.cost.forward_passes for row in totals.finished)


def test_each_kind_of_step_is_counted(monkeypatch):
    monkeypatch.setattr("lastword.decoding.step.STATIC_DEVICES", {"cpu"})
    first, *_, last = steps(max_batch_size=2)

    def step(prompts, passes, tokens, block_start, *, details=first.details, finished=()):
        cost = BatchCost(torch.tensor(passes), torch.tensor(tokens), torch.zeros(2, dtype=torch.long))
        clock = replace(first.clock, block_start=torch.tensor(block_start))
        return replace(first, request_ids=prompts, cost=cost, clock=clock, details=details, finished=finished)

    finished = (replace(last.finished[0], cost=TokenCost(5, 77, 0)),)
    every = [
        step((0, 1), [1, 1], [20, 30], [True, True]),  # 50 tokens, packed
        step((0, None), [4, 1], [44, 30], [False, True], details=None),  # graph replay: 3 passes of 2 x 8 tokens
        step((0, 2), [4, 1], [44, 40], [False, True]),  # 40 tokens; no prompt is waiting from here on
        step((0, 2), [5, 1], [52, 40], [False, True]),  # 2 x 8 tokens; prompt 2 takes no part before its next block
        step((0, 2), [6, 2], [60, 48], [False, False], finished=finished),  # 2 x 8 tokens
    ]
    totals = StepTotals.of(every, 3)
    assert totals.forward_passes == 1 + 3 + 1 + 1 + 1
    assert totals.useful == 77 / (50 + 48 + 40 + 16 + 16)
    assert totals.occupancy == (2 + 3 * 1) / (2 + 3 * 2)


def test_the_batch_is_full_while_prompts_are_waiting():
    totals = StepTotals.of(steps(max_batch_size=2), len(PROMPTS))
    assert totals.occupancy == 1.0
    assert totals.useful is None  # on a CPU
    assert StepTotals.of(steps(), len(PROMPTS)).occupancy is None
    assert sorted(row.request_id for row in totals.finished) == [0, 1, 2, 3]
