from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.columns import Window
from lastword.errors import SettingError
from lastword.policies.unmask.schedule import Cosine, EqualShares, Timesteps


def counts(schedule, masks, block=None):
    """How many masks each pass fills until none is left, block after block."""
    filled = []
    for first in range(0, masks, block or masks):
        left = opened = min(block or masks, masks - first)
        step = 0
        while left:
            clock = Clock(
                step=torch.tensor([len(filled)]),
                window=Window(torch.tensor([first]), torch.tensor([first + opened])),
                in_window=torch.tensor([step]),
                masks_at_start=torch.tensor([opened]),
                block_start=torch.tensor([step == 0]),
                blocks_started=torch.tensor([first // (block or masks) + 1]),
                horizon=torch.tensor([masks]),
            )
            filled.append(schedule.quota(torch.tensor([left]), clock).item())
            left, step = left - filled[-1], step + 1
    return filled


@pytest.mark.parametrize(
    ("masks", "steps", "plan"),
    [(32, 32, [1] * 32), (32, 16, [2] * 16), (32, 10, [4, 4] + [3] * 8), (7, 3, [3, 2, 2]), (5, 1, [5])],
)
def test_equal_shares_give_the_remainder_to_the_first_passes(masks, steps, plan):
    assert counts(EqualShares(masks / steps), masks) == plan


def test_equal_shares_start_anew_in_every_block():
    assert counts(EqualShares(8 / 5), 24, block=8) == [2, 2, 2, 1, 1] * 3


def test_equal_shares_in_a_short_last_block():
    assert counts(EqualShares(2.0), 7, block=4) == [2, 2, 2, 1]


def test_a_pace_below_one_still_fills_one_mask_per_pass():
    assert counts(EqualShares(0.5), 6) == [1] * 6


def test_every_number_of_steps_is_reached_by_its_pace():
    for masks in range(1, 130):
        assert all(EqualShares(masks / steps).steps(masks) == steps for steps in range(1, masks + 1))


# What Dream's loop does, run with its own code: models.md, section 2.7.
DREAM = {
    (256, 256): [0] + [1] * 254 + [2],
    (1024, 1024): [0, 0] + [1] * 1021 + [3],
    (256, 128): [1] + [2] * 126 + [3],
    (512, 64): [7] + [8] * 62 + [9],
}


@pytest.mark.parametrize(("tokens", "steps"), DREAM)
def test_timesteps_follow_dreams_plan_idle_passes_included(tokens, steps):
    assert counts(Timesteps(tokens / steps, keep_idle=True), tokens) == DREAM[tokens, steps]


@pytest.mark.parametrize(("tokens", "steps"), DREAM)
def test_timesteps_leave_out_the_passes_that_fill_nothing(tokens, steps):
    busy = [count for count in DREAM[tokens, steps] if count]
    assert counts(Timesteps(tokens / steps), tokens) == busy


def test_dream_idles_514_passes_for_512_tokens_in_1024_steps():
    kept = counts(Timesteps(0.5, keep_idle=True), 512)
    assert len(kept) == 1024
    assert kept.count(0) == 514
    assert counts(Timesteps(0.5), 512) == [count for count in kept if count]


def test_timesteps_are_float32_where_float64_plans_otherwise():
    # 934 tokens: the first length where float32 rounding adds a second idle pass.
    assert counts(Timesteps(keep_idle=True), 933).count(0) == 1
    assert counts(Timesteps(keep_idle=True), 934).count(0) == 2


def test_timesteps_take_the_share_of_the_last_step_for_everything():
    assert counts(Timesteps(tokens_per_step=100.0), 7) == [7]
    assert counts(Timesteps(eps=0.5, tokens_per_step=2.0), 10)[-1] > 2


@pytest.mark.parametrize(("masks", "steps"), [(256, 8), (256, 12), (8, 3), (40, 7), (9, 2), (5, 1)])
def test_cosine_leaves_the_cosines_share(masks, steps):
    """MaskGIT's keep-count, written out: floor(N cos(pi t / 2T)), none after the last pass."""
    left = [math.floor(masks * math.cos(math.pi / 2 * t / steps) + 1e-9) for t in range(1, steps)] + [0]
    assert counts(Cosine(masks / steps), masks) == [a - b for a, b in zip([masks, *left], left)]


def test_cosine_starts_slowly_and_ends_fast():
    filled = counts(Cosine(256 / 8), 256)
    assert filled == sorted(filled)
    assert filled[0] < 256 / 8 < filled[-1]


def test_cosine_does_not_fall_short_where_the_share_is_whole():
    # Two thirds of the way half the masks are left; cos(26 pi / 78) is a hair below 1/2 in float64.
    assert math.cos(math.pi * 26 / 78) < 0.5
    assert sum(counts(Cosine(2.0), 78)[:26]) == 39


def test_cosine_never_idles():
    for masks, pace in product([1, 2, 3, 7, 30], [0.2, 0.5, 1.0]):
        filled = counts(Cosine(pace), masks)
        assert min(filled) >= 1, (masks, pace)
        assert sum(filled) == masks, (masks, pace)


@pytest.mark.parametrize("schedule", [EqualShares, Timesteps, Cosine])
def test_a_pace_that_is_no_pace_is_refused(schedule):
    for pace in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(SettingError, match=str(pace)):
            schedule(pace)


def test_timesteps_refuse_an_eps_outside_its_range():
    for eps in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(SettingError, match="eps"):
            Timesteps(eps=eps)


def test_a_row_with_nothing_left_gets_nothing_and_the_others_their_own(ids):
    canvas = Canvas.blank([[1], [1]], torch.tensor([2, 9]), ids)
    where = canvas.masked.clone()
    where[1] = False
    done = canvas.write(where, torch.zeros_like(canvas.tokens))
    clock = Clock.start(canvas).tick(canvas, None).tick(done, None)
    alone = Canvas.blank([[1]], torch.tensor([9]), ids)
    own_clock = Clock.start(alone).tick(alone, None).tick(alone, None)
    for schedule in (EqualShares(), Timesteps(), Timesteps(keep_idle=True), Cosine(3.0)):
        quota = schedule.quota(done.masked.sum(-1), clock)
        assert quota[0] == 0, schedule
        assert quota[1] == schedule.quota(alone.masked.sum(-1), own_clock)[0], schedule
