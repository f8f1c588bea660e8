from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest
import torch

import lastword
from lastword.canvas.canvas import Canvas, Clock
from lastword.canvas.columns import Columns
from lastword.decoding.forward import BatchCost, Forward, PassInputs
from lastword.decoding.loop import decode
from lastword.decoding.sampling import RowGenerators, Sampling
from lastword.errors import SettingError
from lastword.models.storage import KVStorage, RowKVStorage
from lastword.policies.cache import Cache, DualCache, FeatureCache, NoCache, PrefixCache
from lastword.policies.commit import Never, StableMargin
from lastword.policies.length.fixed import Fixed
from lastword.policies.length.wrappers import GrowWhenFull
from lastword.policies.unmask.rule import MostConfident
from lastword.policies.unmask.threshold import AboveThreshold
from lastword.recipe.recipe import Recipe

CACHES = [NoCache(), PrefixCache(), DualCache(), FeatureCache(), PrefixCache(0), DualCache(3)]
BATCH = [[5, 42, 17, 100, 63], [9, 11]]


@dataclass(frozen=True)
class Everything(Cache):
    """A cache that keeps everything and trusts nothing."""

    def create_storage(self, canvas):
        return KVStorage(len(canvas.horizon), canvas.width)

    def stale(self, canvas, clock):
        return canvas.valid


def test_an_opening_window_recomputes_all_of_its_row(ids):
    canvas = Canvas.blank([[1, 2], [3]], torch.tensor([4, 2]), ids)
    clock = Clock.start(canvas).tick(canvas, None)
    for cache in CACHES:
        assert torch.equal(cache.stale(canvas, clock), canvas.valid), cache


def test_a_cache_is_plain_data_and_keeps_something_or_opens_no_memory(ids):
    canvas = Canvas.blank([[1]], torch.tensor([2]), ids)
    for cache in CACHES:
        assert pickle.loads(pickle.dumps(cache)) == cache
        assert cache.traits.stores_states == (cache.create_storage(canvas) is not None) == (cache != NoCache()), cache


def later_pass(ids):
    """The second pass of a row whose first block, columns 2 and 3, is half filled."""
    canvas = Canvas.blank([[1, 2]], torch.tensor([4]), ids)
    clock = Clock.start(canvas).tick(canvas, 2)
    first = torch.tensor([[False, False, True, False, False, False]])
    canvas = canvas.write(first, torch.full((1, 6), 5))
    return canvas, clock.tick(canvas, 2)


@pytest.mark.parametrize(
    ("cache", "stale"),
    [
        (NoCache(), [1, 1, 1, 1, 1, 1]),
        (PrefixCache(), [0, 0, 1, 1, 1, 1]),
        (DualCache(), [0, 0, 1, 1, 0, 0]),
        (DualCache(0), [0, 0, 1, 1, 0, 0]),
    ],
    ids=str,
)
def test_what_goes_stale_within_a_block(cache, stale, ids):
    canvas, clock = later_pass(ids)
    assert cache.stale(canvas, clock).int().tolist() == [stale]


@pytest.mark.parametrize("kind", [PrefixCache, DualCache])
@pytest.mark.parametrize(
    ("every", "with_prompt"), [(1, [1, 1, 1, 1, 1]), (2, [1, 0, 1, 0, 1]), (3, [1, 0, 0, 1, 0]), (0, [1, 0, 0, 0, 0])]
)
def test_an_opening_recomputes_the_answer_and_the_prompt_at_intervals(kind, every, with_prompt, ids):
    canvas = Canvas.blank([[1, 2]], torch.tensor([5]), ids)
    clock, found = Clock.start(canvas), []
    for slot in range(5):  # blocks of one slot: every step opens one
        clock = clock.tick(canvas, 1)
        stale = kind(every).stale(canvas, clock)
        assert torch.equal(stale & canvas.answer, canvas.answer)
        found.append(int(stale[0, 0]))
        assert stale[0, 0] == stale[0, 1]
        column = torch.arange(canvas.width)[None]
        canvas = canvas.write(column == 2 + slot, torch.full((1, 7), 5))
    assert found == with_prompt


@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.parametrize("kind", [PrefixCache, DualCache])
def test_a_kept_prompt_is_as_old_as_its_last_refresh(kind, name, request):
    """The reference is the bare network: a full pass, then the answer over the prompt of that pass."""
    model, prompt = request.getfixturevalue(name), [5, 42, 17]
    recipe = Recipe(length=Fixed(6), cache=kind(0), block=2)
    every, before, openings = torch.arange(9)[None], None, 0
    memory = RowKVStorage(KVStorage(1, 9), torch.tensor([0]), None, torch.zeros(1).long())
    for step in decode(model, [prompt], recipe):
        canvas = step.prediction.canvas
        if step.clock.block_start:
            openings += 1
            columns = every if openings == 1 else every[:, 3:]
            hidden = model.network.hidden(canvas.tokens, None, columns, memory)
            first = int(step.prediction.columns.index[0, 0]) - (name == "dream")
            expected = model.head(hidden)[0, first - int(columns[0, 0])]
            torch.testing.assert_close(step.prediction.logits[0, 0], expected, atol=1e-4, rtol=0)
            spent = step.cost.tokens_computed.item() - (before or 0)
            assert spent == columns.shape[1]
        else:  # as the cache does, block by block
            first, last = int(step.clock.window.first), int(step.clock.window.last)
            begins = first - (name == "dream" and bool(canvas.masked[0, first]))
            columns = every[:, begins : (last if kind is DualCache else 9)]
            model.network.hidden(canvas.tokens, None, columns, memory)
        before = step.cost.tokens_computed.item()
    assert openings == 3


@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.parametrize("cache", [PrefixCache(0), DualCache(0), DualCache(2)], ids=str)
def test_rows_that_keep_their_prompts_decode_as_if_alone(cache, name, request):
    """Rows open their blocks out of step, and one of them grows."""
    model = request.getfixturevalue(name)
    length = GrowWhenFull(Fixed(9), increment=4, limit=17)
    recipe = Recipe(length, AboveThreshold(0.02), cache=cache, block=4)
    prompts = [[5, 42, 17, 100, 63], [9, 11], [7]]
    together = lastword.generate(model, prompts, recipe=recipe)
    for prompt, answer in zip(prompts, together):
        alone = lastword.generate(model, prompt, recipe=recipe)
        assert (answer.canvas, answer.cost) == (alone.canvas, alone.cost)
    full = lastword.generate(model, prompts, recipe=recipe.with_choices(cache=type(cache)()))
    assert sum(a.cost.tokens_computed for a in together) < sum(a.cost.tokens_computed for a in full)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, None, "2"])
@pytest.mark.parametrize("kind", [PrefixCache, DualCache])
def test_the_prompt_is_kept_for_a_whole_number_of_openings(kind, wrong):
    with pytest.raises((SettingError, TypeError), match="prompt_every"):
        kind(wrong)


@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.parametrize(
    ("cache", "block"),
    [
        (Everything(), 5),
        (PrefixCache(), 1),  # one slot a block: every pass opens one, and recomputes all
        (DualCache(), 1),
        (FeatureCache(1, 1), 5),
        (FeatureCache(1, 1, 0.0), None),
    ],
    ids=str,
)
def test_a_cache_that_recomputes_everything_equals_no_cache(name, cache, block, request):
    """Passes with `FeatureCache` are padded and the others packed, so they round differently."""
    model = request.getfixturevalue(name)
    plain, cached = (
        list(decode(model, BATCH, Recipe(length=Fixed(12), cache=kept, block=block))) for kept in (NoCache(), cache)
    )
    assert len(plain) == 12
    for a, b in zip(plain, cached, strict=True):
        assert torch.equal(a.prediction.columns.index, b.prediction.columns.index)
        assert torch.equal(a.prediction.columns.read, b.prediction.columns.read)
        tolerance = 1e-4 if isinstance(cache, FeatureCache) else 0
        torch.testing.assert_close(a.prediction.logits, b.prediction.logits, atol=tolerance, rtol=0)
        assert torch.equal(a.canvas.tokens, b.canvas.tokens)


@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.parametrize("cache", [PrefixCache(), DualCache()], ids=str)
def test_with_two_slots_a_block_the_second_pass_differs(name, cache, request):
    """Otherwise the law above would hold for nothing."""
    model = request.getfixturevalue(name)
    logits = [
        [next(steps).prediction.logits for _ in range(2)]
        for kept in (NoCache(), cache)
        for steps in [decode(model, BATCH, Recipe(length=Fixed(12), cache=kept, block=2))]
    ]
    (opening, second), (same, stale) = logits
    assert torch.equal(opening, same)
    assert (second - stale).abs().max() > 1e-2


@pytest.mark.parametrize("cache", [PrefixCache(), DualCache()], ids=str)
def test_dream_reads_a_blocks_first_column_from_the_one_before_it(cache, dream):
    """That column lies outside the block: it is recomputed as well, and paid for.

    The reference is the bare network: a full pass when the block opened, then the block and the
    column before it, whose output predicts the block's first.
    """
    prompt, block, found = [5, 42, 17], 4, 0
    recipe = Recipe(Fixed(12), MostConfident(), cache=cache, block=block)
    before, opened, spent = Canvas.blank([prompt], torch.tensor([12]), dream.ids), None, 0
    every = torch.arange(15)[None]
    for step in decode(dream, [prompt], recipe):
        first, last = int(step.clock.window.first), int(step.clock.window.last)
        cost, spent = int(step.cost.tokens_computed) - spent, int(step.cost.tokens_computed)
        if step.clock.block_start:
            opened = before
        elif before.masked[0, first]:
            memory = RowKVStorage(KVStorage(1, 15), torch.tensor([0]), None, torch.zeros(1).long())
            dream.network.hidden(opened.tokens, None, every, memory)
            columns = every[:, first - 1 : (last if cache == DualCache() else 15)]
            hidden = dream.network.hidden(before.tokens, None, columns, memory)
            expected = dream.head(hidden)[0, 0]
            logits = step.prediction.logits[0, 0]  # reads from the block's first mask on
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
            assert cost == columns.shape[1]
            found += 1
        before = step.canvas
    assert found > 2


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_rows_out_of_step_come_back_in_order(name, request):
    """Rows that open a block run apart from those within one; each must get its own logits."""
    model, rows = request.getfixturevalue(name), 5
    canvas = Canvas.blank([[n + 1] * (n + 1) for n in range(rows)], torch.full((rows,), 6), model.ids)
    forward = Forward(model, Sampling(), RowGenerators(range(rows)))
    storage, read = DualCache().create_storage(canvas), canvas.answer
    spent = BatchCost.zeros(rows)
    columns = Columns.from_mask(read)
    forward(canvas, PassInputs(columns, stale=canvas.valid), spent, storage=storage)
    fresh = torch.tensor([False, True, False, True, True])[:, None]
    fresh = canvas.valid & (fresh | canvas.answer)
    mixed, _ = forward(canvas, PassInputs(columns, stale=fresh), spent, storage=storage)
    expected, _ = forward(canvas, PassInputs(columns), spent)
    torch.testing.assert_close(mixed.logits, expected.logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.parametrize("cache", [PrefixCache(), DualCache(), FeatureCache()], ids=str)
def test_what_is_read_is_right_wherever_it_lies(cache, name, request):
    """A rule may read the whole answer while the cache refreshes a block, or nothing at all."""
    model = request.getfixturevalue(name)
    canvas = Canvas.blank([[5, 6, 7], [8]], torch.tensor([9, 6]), model.ids)
    forward, storage = Forward(model, Sampling(), RowGenerators(range(2))), cache.create_storage(canvas)
    answer = Columns.from_mask(canvas.answer)
    spent = BatchCost.zeros(2)
    full, _ = forward(canvas, PassInputs(answer, stale=canvas.valid), spent, storage=storage)
    block = canvas.answer & (torch.arange(canvas.width) < canvas.start + 3)
    again, _ = forward(canvas, PassInputs(answer, stale=block), spent, storage=storage)
    torch.testing.assert_close(again.logits, full.logits, atol=1e-4, rtol=0)


def test_a_model_without_keys_and_values_refuses_a_cache(toy):
    with pytest.raises(SettingError, match="NoCache"):
        next(decode(toy, [[1]], Recipe(length=Fixed(3), cache=Everything())))


@pytest.mark.parametrize(
    ("cache", "later"), [(PrefixCache(), 3 * 8 + 3 * 4), (DualCache(), 6 * 4), (NoCache(), 6 * 11)], ids=str
)
@pytest.mark.parametrize("name", ["llada", "dream"])
def test_who_asks_for_the_answer_gets_what_the_cache_computes(name, cache, later, request):
    """Two blocks of four: the passes that open one read all 8 slots, the others pay for no column more."""
    model = request.getfixturevalue(name)
    never_sure = StableMargin(start_threshold=1e6, end_threshold=1e6)
    asking = Recipe(length=Fixed(8), commit=never_sure, cache=cache, block=4)
    plain = asking.with_choices(commit=Never())
    steps, same = (list(decode(model, [[5, 42, 17]], recipe)) for recipe in (asking, plain))
    assert torch.equal(steps[-1].canvas.tokens, same[-1].canvas.tokens)
    for step in steps:
        computed = cache.stale(step.prediction.canvas, step.clock)
        assert torch.equal(step.prediction.read_mask, step.prediction.canvas.answer & computed)
    # The output before the block speaks for its first column in Dream: one column more in later passes.
    before = 6 if name == "dream" and cache != NoCache() else 0
    assert steps[-1].cost.tokens_computed.tolist() == [2 * 11 + later + before]


@pytest.mark.parametrize(("name", "layers"), [("llada", 3), ("dream", 2)])
def test_who_asks_a_cache_that_covers_stored_columns_gets_the_answer_in_every_pass(name, layers, request):
    """Even of columns that no layer but the first recomputed."""
    model = request.getfixturevalue(name)
    kept = FeatureCache(100, 100, 0.0)
    assert [cache for cache in CACHES if cache.traits.covers_stored_columns] == [FeatureCache()]
    asking = Recipe(length=Fixed(8), commit=StableMargin(start_threshold=1e6, end_threshold=1e6), cache=kept, block=4)
    for step in decode(model, [[5, 42, 17]], asking):
        assert torch.equal(step.prediction.read_mask, step.prediction.canvas.answer)
    assert step.cost.tokens_computed.tolist() == [11 + 7 * -(-11 // layers)]
