"""Parts that declare themselves capturable run without synchronising with the host.

Tensors on the meta device have shapes and no values: code that works on them takes no branch on a value.
A dispatch mode rejects the operators that would make the host wait for a GPU, or that have outputs whose
shape depends on values.
"""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import lastword
from lastword.canvas.canvas import Canvas, Clock, tree_map
from lastword.canvas.columns import Columns, cached_arange
from lastword.decoding.prediction import Prediction
from lastword.decoding.sampling import RowGenerators, Sampling
from lastword.policies.length.policy import ModelLimits
from lastword.policies.length.wrappers import combined_traits
from lastword.recipe.registry import PARTS, default_length

REJECTED = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::nonzero",
    "aten::masked_select",
    "aten::unique_dim",
    "aten::_unique2",
    "aten::repeat_interleave.Tensor",
    "aten::multinomial",
}
TIMESTEPS = lastword.Timesteps(2.0)
LENGTHS = [
    lastword.Fixed(12),
    lastword.Survival(12),
    lastword.Secant(12),
    lastword.Budget(lastword.Fixed(12), max_passes=40),
    lastword.StopAtEnd(lastword.Fixed(12)),
    lastword.GrowWhenFull(lastword.Fixed(8), increment=4, limit=12),
    default_length(12),
]
RULES = [
    lastword.AboveThreshold(),
    lastword.AboveThreshold(0.5, max_tokens_per_step=2.0),
    lastword.Factor(),
    lastword.LocalLeap(),
    lastword.EntropyBound(),
    lastword.EntropyBound(order="margin"),
    lastword.LeftmostFirst(),
    *(
        rule(schedule)
        for rule in (lastword.MostConfident, lastword.LargestMargin, lastword.LowestEntropy)
        for schedule in (lastword.EqualShares(2.0), lastword.Cosine(2.0))
    ),
]
COMMITS = [
    lastword.Never(),
    lastword.Prophet(),
    lastword.Prophet("margin", answer_start=2, literals=((0, 3), (-1, 4))),
    lastword.StableMargin(),
]
CACHES = [lastword.NoCache(), lastword.PrefixCache(), lastword.DualCache(), lastword.DualCache(2)]
# Parts that need the values of a pass on the host, draw random numbers, or change what a pass computes.
NOT_CAPTURABLE = [
    lastword.AtRandom(),
    lastword.CoinFlip(),
    lastword.MaskGit(),
    lastword.SlowFast(),
    lastword.MostConfident(TIMESTEPS),
    lastword.MostConfident(order_temperature=0.5),
    lastword.LeftmostFirst(lastword.MostConfident(TIMESTEPS)),
    lastword.FeatureCache(),
    lastword.SurvivalAtStep(1, lastword.Survival(12)),
    lastword.Reread(lastword.Survival(12)),
    lastword.Daedal(4, 12),
    lastword.RhoEos(4, 12),
    lastword.Calibrated(),
]


class NoHostSync(TorchDispatchMode):
    """A dispatch mode that raises where the host would wait for the device or copy data to it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        if name in REJECTED or torch.Tag.dynamic_output_shape in func.tags:
            raise AssertionError(f"{name} synchronises with the host")
        if name == "aten::_to_copy" and args[0].device != torch.device("meta"):
            raise AssertionError("data is copied from the host")
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def step(ids):
    """The canvas, clock and prediction of a pass over one block of each of three rows, without values."""
    cached_arange.cache_clear()  # other tests put tensors of another kind on the meta device
    canvas = Canvas.blank([[0], [0, 1], [1]], torch.tensor([8, 6, 8]), ids, start=2)
    clock = Clock.start(canvas).tick(canvas, 4)
    columns = Columns.from_window(clock.window.first, 4, canvas.masked & clock.window.columns(canvas.width))
    canvas, clock, index, read = tree_map(
        lambda values: values.to("meta"), (canvas, clock, columns.index, columns.read)
    )
    canvas = replace(canvas, static=True)
    columns = Columns(index, read, columns.width, static=True)
    logits = torch.zeros(3, 4, 8, device="meta")
    return canvas, clock, Prediction.from_logits(logits, columns, canvas, Sampling(), RowGenerators(range(3)))


def call(part, canvas, clock, prediction):
    """Run what decoding runs of a part in every pass."""
    open_masks = prediction.columns.gather(canvas.masked & clock.window.columns(canvas.width))
    if isinstance(part, lastword.UnmaskRule):
        state = part.initial_state(canvas)
        part.visible_columns(canvas, clock, state)
        return part.choose(prediction, open_masks, clock, state)
    if isinstance(part, lastword.CommitRule):
        return part.ready(prediction, canvas, clock)
    if isinstance(part, lastword.Cache):
        return part.stale(canvas, clock)
    return part.revise(canvas, prediction, clock, ())


def traits(part):
    return combined_traits(part) if isinstance(part, lastword.LengthPolicy) else part.traits


@pytest.mark.parametrize("part", [*LENGTHS, *RULES, *COMMITS, *CACHES], ids=str)
def test_a_capturable_part_never_waits_for_the_device(part, step):
    assert traits(part).capturable
    if isinstance(part, lastword.LengthPolicy):
        part = part.resolved(ModelLimits(12))
    with NoHostSync():
        call(part, *step)


@pytest.mark.parametrize("part", NOT_CAPTURABLE, ids=str)
def test_other_parts_do_not_declare_themselves_capturable(part):
    assert not traits(part).capturable


def test_a_wrapper_is_capturable_if_the_policy_inside_is():
    assert not combined_traits(lastword.StopAtEnd(lastword.Reread(lastword.Survival(12)))).capturable


def test_every_built_in_part_is_listed():
    listed = {type(part) for part in (*LENGTHS, *RULES, *COMMITS, *CACHES, *NOT_CAPTURABLE)}
    parts = {cls for axis in ("length", "unmask", "commit", "cache") for cls in PARTS[axis].values()}
    assert {cls for cls in parts if cls.__module__.startswith("lastword.")} <= listed


@pytest.mark.parametrize(
    "part",
    [
        lastword.MostConfident(TIMESTEPS),
        lastword.MostConfident(order_temperature=0.5),
        lastword.AtRandom(),
        lastword.CoinFlip(),
        lastword.MaskGit(),
        lastword.SurvivalAtStep(1, lastword.Survival(8)),
        lastword.RhoEos(4, 12),
    ],
    ids=str,
)
def test_the_check_notices_a_part_that_waits(part, step):
    with pytest.raises((AssertionError, NotImplementedError), match=r"host|meta tensor"), NoHostSync():
        call(part, *step)
