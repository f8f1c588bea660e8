"""Storage of keys, values and layer outputs: what is written comes back, for every row on its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from lastword.models.storage import FeatureStorage, KVStorage, PooledKVStorage, RowKVStorage

CPU = torch.device("cpu")
FIRST_ROW = torch.tensor([0])


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Keys and values


def at(storage, rows):
    """Return the storage of some rows for a pass over all columns."""
    return RowKVStorage(storage, rows, None, torch.zeros_like(rows))


def test_keys_are_stored_at_their_columns():
    storage = KVStorage(rows=2, width=4)
    columns = torch.tensor([[0, 2], [1, 3]])
    keys, values = numbers(2, 3, 2, 5), numbers(2, 3, 2, 5, seed=1)
    all_keys, all_values = at(storage, torch.tensor([0, 1])).update(0, columns, keys, values)
    assert all_keys.shape == (2, 3, 4, 5)
    assert torch.equal(all_keys[0][:, [0, 2]], keys[0])
    assert torch.equal(all_values[1][:, [1, 3]], values[1])
    assert not all_keys[0][:, [1, 3]].any()


def test_later_writes_replace_their_columns_only():
    storage = KVStorage(rows=1, width=3)
    first, second = numbers(1, 1, 3, 2), numbers(1, 1, 1, 2, seed=1)
    at(storage, FIRST_ROW).update(0, torch.tensor([[0, 1, 2]]), first, first)
    keys, _ = at(storage, FIRST_ROW).update(0, torch.tensor([[1]]), second, second)
    assert torch.equal(keys[0, :, [0, 2]], first[0, :, [0, 2]])
    assert torch.equal(keys[0, :, 1], second[0, :, 0])


def test_rows_and_layers_do_not_mix():
    storage = KVStorage(rows=2, width=1)
    column, ones = torch.tensor([[0]]), torch.ones(1, 1, 1, 1)
    at(storage, torch.tensor([1])).update(0, column, ones, ones)
    other_row, _ = at(storage, FIRST_ROW).update(0, column, 2 * ones, ones)
    other_layer, _ = at(storage, torch.tensor([1])).update(7, column, 3 * ones, ones)
    stored, _ = storage.by_row(0, ones)
    assert (other_row.item(), other_layer.item(), stored[1].item()) == (2, 3, 1)


@pytest.mark.parametrize("width", [2, 6])
def test_the_width_may_change_on_the_right(width):
    storage, keys = KVStorage(rows=1, width=4), numbers(1, 2, 4, 3)
    at(storage, FIRST_ROW).update(0, torch.tensor([[0, 1, 2, 3]]), keys, keys)
    storage.fit(width)
    stored, _ = storage.by_row(0, keys)
    common = min(width, 4)
    assert stored.shape[2] == width
    assert torch.equal(stored[:, :, :common], keys[:, :, :common])
    assert not stored[:, :, common:].any()


# Pools: rows reserve what they need, move when they outgrow it, and do not disturb each other

ROWS, WIDTH = 4, 16
MOVES = st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=30)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 40), MOVES)
def test_no_row_overwrites_another_in_a_pool(columns, moves):
    pool, known, owners = PooledKVStorage(ROWS, WIDTH, columns), {}, {}
    for number, (row, first, count, leaves) in enumerate(moves, 1):
        if leaves:
            pool.release(row)
            known.pop(row, None)
            continue
        if row not in known:
            known[row], owners[row] = {"first": first, "count": 0}, object()
        written = known[row]
        written["count"] = max(written["count"], count + 1)
        pool.reserve(row, written["first"], written["count"], owner=owners[row])
        last = written["first"] + written["count"] - 1
        value = torch.full((1, 1, 1, 1), float(number))
        at(pool, torch.tensor([row])).update(0, torch.tensor([[last]]), value, value)
        written[last] = number
        stored = pool.by_row(0, torch.zeros(ROWS, 1, 1, 1))[0][:, 0, :, 0]
        for other, columns_of_row in known.items():
            for column, value in columns_of_row.items():
                if isinstance(column, int):
                    assert stored[other, column] == value


def test_a_row_that_fits_its_region_stays_there():
    pool, owner = PooledKVStorage(2, 8, 16), object()
    pool.reserve(0, 2, 6, owner=owner)
    before = pool.offsets(CPU).clone()
    pool.reserve(0, 2, 5, owner=owner)
    assert torch.equal(pool.offsets(CPU), before)


def test_a_new_owner_of_a_row_starts_with_an_empty_region():
    pool = PooledKVStorage(1, 8, 16)
    pool.reserve(0, 4, 4, owner="first")
    pool.reserve(0, 1, 3, owner="second")
    assert pool.offsets(CPU).tolist() == [-1]


def test_the_pool_grows_if_nothing_else_makes_room():
    pool = PooledKVStorage(3, 8, 10)
    pool.reserve(0, 0, 6, owner="a")
    pool.reserve(1, 0, 6, owner="b")
    assert pool.times_grown == 1
    # A row without a region writes behind the pool.
    assert pool.offsets(CPU).tolist() == [0, 6, pool.size() - 8]


def test_a_pool_keeps_its_width():
    with pytest.raises(ValueError, match="8 columns cannot hold one of 9"):
        PooledKVStorage(1, 8, 16).fit(9)


# Features: the columns whose values changed most are recomputed

VALID = torch.ones(1, 6, dtype=torch.bool)
ANSWER = torch.tensor([[False, False, True, True, True, True]])
NOTHING = torch.zeros_like(VALID)
EVERY = torch.arange(6)[None]
BEFORE = torch.tensor([[1.0, 0.0]]).repeat(6, 1) * torch.arange(1, 7)[:, None]


def stored_features(share, values=BEFORE):
    """Return storage of one row whose layer 1 holds `values` [L, D] of one head."""
    storage = FeatureStorage(1, 6, share)
    row = storage.at(FIRST_ROW, VALID, ANSWER, ANSWER, VALID)
    row.update(1, EVERY, values[None, None], values[None, None])
    row.fill(1, "mlp", EVERY, values[None])
    return storage


def changed(*columns):
    """Return the values with some columns turned further and further away."""
    values = BEFORE.clone()
    for step, column in enumerate(columns, start=1):
        values[column] += step * BEFORE[column].flip(0)
    return values


def select(storage, values, *, layer=1, stale=NOTHING, valid=VALID):
    """Return the row and the columns that a layer recomputes when its values are `values`."""
    row = storage.at(FIRST_ROW, stale, ANSWER, ANSWER, valid)
    return row, row.select(layer, values[None], lambda x: x[:, None])[0].tolist()


def scaled_at(column, factor, values=BEFORE):
    values = values.clone()
    values[column] *= factor
    return values


def turned(*angles, dtype=torch.float32):
    """Return the values with single columns turned by small angles."""
    values = BEFORE.to(dtype).clone()
    for column, angle in angles:
        values[column, 1] = angle * values[column, 0]
    return values


BF16 = torch.bfloat16
SELECTIONS = {
    "those that changed most": (0.5, changed(3, 5, 4), [4, 5]),
    "growing longer is not a change of direction": (0.25, scaled_at(5, 100, changed(3)), [3]),
    "of equals the leftmost": (0.5, BEFORE, [2, 3]),
    "never the prompt": (1.0, changed(0, 1), [2, 3, 4, 5]),
    # 1 - cosine of these is below the resolution of float32.
    "small changes are told apart": (0.25, turned((4, 2e-5), (5, 4e-5)), [5]),
    # The last bit of a value depends on the shape of the batch.
    "rounding in float32 is not a change": (0.5, turned((4, 6e-8), (5, -6e-8)), [2, 3]),
    "rounding in bf16 is not a change": (0.5, turned((4, 4e-3), (5, -4e-3), dtype=BF16), [2, 3]),
    "a change comes before equals on its left": (0.5, turned((3, 1e-7), (5, 2e-5)), [2, 5]),
}


@pytest.mark.parametrize("case", SELECTIONS)
def test_selected_columns(case):
    share, values, expected = SELECTIONS[case]
    _, columns = select(stored_features(share, BEFORE.to(values.dtype)), values)
    assert sorted(columns) == expected


def test_stale_columns_come_on_top_of_the_share():
    _, columns = select(stored_features(0.25), changed(4), stale=VALID & ~ANSWER)
    assert sorted(columns) == [0, 1, 4]


def test_columns_that_do_not_exist_for_a_pass_are_not_selected():
    seen = torch.tensor([[True, True, True, True, False, False]])
    _, columns = select(stored_features(1.0), changed(4, 5), valid=seen)
    assert sorted(columns) == [2, 3]


def test_values_of_the_answer_are_replaced_those_of_the_prompt_kept():
    storage, values = stored_features(0.25), BEFORE + 1
    select(storage, values)
    _, stored = storage.attention.by_row(1, values[None, None])
    assert torch.equal(stored[0, 0], torch.where(ANSWER[0, :, None], values, BEFORE))


def test_a_share_of_zero_selects_no_column_and_replaces_no_value():
    storage = stored_features(0.0)
    row, columns = select(storage, BEFORE + 1)
    assert columns == []
    _, stored = storage.attention.by_row(1, BEFORE[None, None])
    assert torch.equal(stored[0, 0], BEFORE)
    assert torch.equal(row.fill(1, "mlp", torch.zeros(1, 0).long(), BEFORE[None, :0])[0], BEFORE)


def test_the_first_layer_recomputes_everything_and_stores_nothing():
    row = FeatureStorage(1, 6, 0.5).at(FIRST_ROW, NOTHING, ANSWER, ANSWER, VALID)
    assert row.select(0, BEFORE[None], lambda x: x[:, None]) is None
    keys, values = row.update(0, EVERY, BEFORE[None, None], BEFORE[None, None])
    assert torch.equal(keys, values)


def test_tokens_computed_are_the_mean_over_layers_rounded_up():
    row, _ = select(stored_features(0.25), BEFORE)
    assert row.tokens_computed.tolist() == [4]  # 6 and 1 in two layers
    row.select(2, BEFORE[None], lambda x: x[:, None])
    assert row.tokens_computed.tolist() == [3]  # 6, 1 and 1 in three


def test_a_row_with_nothing_to_recompute_is_not_written():
    """A quarter of 3 columns is none; the entry that the other row needs must not be written."""
    rows, valid = torch.tensor([0, 1]), VALID.expand(2, -1)
    answer = torch.stack((ANSWER[0], torch.tensor([False, False, False, True, True, True])))
    storage, both = FeatureStorage(2, 6, 0.25), BEFORE.expand(2, -1, -1)
    row = storage.at(rows, valid, answer, answer, valid)
    row.update(1, EVERY.expand(2, -1), both[:, None], both[:, None])
    row.fill(1, "mlp", EVERY.expand(2, -1), both)
    row = storage.at(rows, NOTHING.expand(2, -1), answer, answer, valid)
    columns = row.select(1, changed(4).expand(2, -1, -1), lambda x: x[:, None])
    assert columns.shape == (2, 1)
    written = torch.full((2, 1, 2), 9.0)
    keys, _ = row.update(1, columns, written[:, None], written[:, None])
    outputs = row.fill(1, "mlp", columns, written)
    assert (outputs[0] == 9).any()
    assert (keys[0] == 9).any()
    assert torch.equal(outputs[1], BEFORE)
    assert torch.equal(keys[1, 0], BEFORE)
    assert row.tokens_computed.tolist() == [4, 3]
