from __future__ import annotations

import pickle

import pytest
import torch

from lastword.clock import Clock
from lastword.commit import Never

RULES = [Never()]


@pytest.fixture
def asked(predicted):
    prediction = predicted(torch.zeros(5, 8), torch.zeros(2, 8))
    return prediction, prediction.canvas, Clock.start(2).tick(prediction.canvas, None)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_answers_once_per_row(rule, asked):
    ready = rule.ready(*asked)
    assert ready.dtype == torch.bool
    assert ready.shape == (2,)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_is_plain_data(rule):
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert isinstance(rule.reads_answer, bool)


def test_never_is_never_ready_and_reads_nothing_more(asked):
    assert not Never().ready(*asked).any()
    assert not Never().reads_answer


def test_a_rule_that_is_ready_fills_every_mask_at_once(toy):
    from lastword.commit import CommitRule
    from lastword.decode import decode
    from lastword.length import Fixed
    from lastword.recipe import Recipe

    class AfterTwo(CommitRule):
        def ready(self, prediction, canvas, clock):
            return torch.full((len(canvas.horizon),), clock.index >= 1)

    steps = list(decode(toy, [[1, 2], [3]], Recipe(length=Fixed(9), commit=AfterTwo(), block=4)))
    assert len(steps) == 2
    assert steps[0].chosen.sum(-1).tolist() == [1, 1]
    assert steps[1].chosen.sum(-1).tolist() == [8, 8]
    assert not steps[1].canvas.masked.any()
