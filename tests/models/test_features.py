from __future__ import annotations

import pytest
import torch

from lastword.models.storage import FeatureStorage

VALID = torch.ones(1, 6, dtype=torch.bool)
ANSWER = torch.tensor([[False, False, True, True, True, True]])


def stored(values, share):
    """A memory of one row whose layer 1 holds `values` [L, D], seen with one head."""
    memory = FeatureStorage(1, 6, share)
    everything = memory.at(torch.tensor([0]), VALID, ANSWER, ANSWER, VALID)
    every = torch.arange(6)[None]
    everything.update(1, every, values[None, None], values[None, None])
    everything.fill(1, "mlp", every, values[None])
    return memory


def turned(values, *columns):
    """The values with some columns turned further and further away."""
    turned = values.clone()
    for step, column in enumerate(columns, start=1):
        turned[column] += step * values[column].flip(0)
    return turned


def part(memory, stale, fresh):
    """What layer 1 recomputes when its values are now `fresh`."""
    row = memory.at(torch.tensor([0]), stale, ANSWER, ANSWER, VALID)
    return row, row.select(1, fresh[None], lambda x: x[:, None])[0].tolist()


BEFORE = torch.tensor([[1.0, 0.0]]).repeat(6, 1) * torch.arange(1, 7)[:, None]
NOTHING = torch.zeros_like(VALID)


def test_the_columns_whose_values_turned_most_are_recomputed():
    _, columns = part(stored(BEFORE, 0.5), NOTHING, turned(BEFORE, 3, 5, 4))
    assert columns == [4, 5]


def test_growing_longer_is_no_turn():
    fresh = turned(BEFORE, 3)
    fresh[5] *= 100
    _, columns = part(stored(BEFORE, 0.25), NOTHING, fresh)
    assert columns == [3]


def test_of_equals_the_leftmost():
    _, columns = part(stored(BEFORE, 0.5), NOTHING, BEFORE)
    assert columns == [2, 3]


def test_stale_columns_come_on_top_of_the_share():
    prompt = VALID & ~ANSWER
    _, columns = part(stored(BEFORE, 0.25), prompt, turned(BEFORE, 4))
    assert sorted(columns) == [0, 1, 4]


def test_the_prompt_is_never_a_matter_of_choice():
    _, columns = part(stored(BEFORE, 1.0), NOTHING, turned(BEFORE, 0, 1))
    assert sorted(columns) == [2, 3, 4, 5]


def test_tiny_turns_are_told_apart():
    """1 - cosine of these is below what float32 can tell from 0."""
    fresh = BEFORE.clone()
    fresh[4, 1] = 2e-5 * fresh[4, 0]
    fresh[5, 1] = 4e-5 * fresh[5, 0]
    _, columns = part(stored(BEFORE, 0.25), NOTHING, fresh)
    assert columns == [5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_no_turn(dtype):
    """The last bit of a value differs with the shape of a batch; of equals, the leftmost."""
    before, rounding = BEFORE.to(dtype), torch.finfo(dtype).eps / 2
    fresh = before.clone()
    fresh[4, 1] = rounding * fresh[4, 0]
    fresh[5, 1] = -rounding * fresh[5, 0]
    _, columns = part(stored(before, 0.5), NOTHING, fresh)
    assert columns == [2, 3]


def test_a_column_that_turned_comes_before_equals_on_its_left():
    fresh = BEFORE.clone()
    fresh[3, 1] = 1e-7 * fresh[3, 0]
    fresh[5, 1] = 2e-5 * fresh[5, 0]
    _, columns = part(stored(BEFORE, 0.5), NOTHING, fresh)
    assert columns == [5, 2]


def test_values_of_the_answer_are_renewed_those_of_the_prompt_kept():
    memory, fresh = stored(BEFORE, 0.25), BEFORE + 1
    part(memory, NOTHING, fresh)
    _, values = memory.attention.by_row(1, fresh[None, None])
    assert torch.equal(values[0, 0], torch.where(ANSWER[0, :, None], fresh, BEFORE))


def test_a_share_of_nothing_asks_no_column_and_renews_no_value():
    memory = stored(BEFORE, 0.0)
    row, columns = part(memory, NOTHING, BEFORE + 1)
    assert columns == []
    _, values = memory.attention.by_row(1, BEFORE[None, None])
    assert torch.equal(values[0, 0], BEFORE)
    assert torch.equal(row.fill(1, "mlp", torch.zeros(1, 0).long(), BEFORE[None, :0])[0], BEFORE)


def test_the_first_layer_recomputes_everything_and_keeps_nothing():
    row = FeatureStorage(1, 6, 0.5).at(torch.tensor([0]), NOTHING, ANSWER, ANSWER, VALID)
    assert row.select(0, BEFORE[None], lambda x: x[:, None]) is None
    keys, values = row.update(0, torch.arange(6)[None], BEFORE[None, None], BEFORE[None, None])
    assert torch.equal(keys, values)


def test_columns_are_counted_as_the_mean_over_layers_rounded_up():
    memory = stored(BEFORE, 0.25)
    row, _ = part(memory, NOTHING, BEFORE)
    assert row.tokens_computed.tolist() == [4]  # 6 and 1 in two layers
    row.select(2, BEFORE[None], lambda x: x[:, None])
    assert row.tokens_computed.tolist() == [3]  # 6, 1 and 1 in three


def test_a_row_with_nothing_to_recompute_keeps_what_it_has_beside_one_that_has():
    """A quarter of 3 columns is none; the slot its neighbour needs must not be written."""
    rows, valid = torch.tensor([0, 1]), VALID.expand(2, -1)
    answer = torch.stack((ANSWER[0], torch.tensor([False, False, False, True, True, True])))
    memory, every = FeatureStorage(2, 6, 0.25), torch.arange(6).expand(2, -1)
    row, both = memory.at(rows, valid, answer, answer, valid), BEFORE.expand(2, -1, -1)
    row.update(1, every, both[:, None], both[:, None])
    row.fill(1, "mlp", every, both)
    row = memory.at(rows, NOTHING.expand(2, -1), answer, answer, valid)
    columns = row.select(1, turned(BEFORE, 4).expand(2, -1, -1), lambda x: x[:, None])
    assert columns.shape == (2, 1)
    written = torch.full((2, 1, 2), 9.0)
    keys, _ = row.update(1, columns, written[:, None], written[:, None])
    said = row.fill(1, "mlp", columns, written)
    assert (said[0] == 9).any()
    assert (keys[0] == 9).any()
    assert torch.equal(said[1], BEFORE)
    assert torch.equal(keys[1, 0], BEFORE)
    assert row.tokens_computed.tolist() == [4, 3]


def test_columns_that_do_not_exist_for_a_pass_are_no_matter_of_choice():
    seen = torch.tensor([[True, True, True, True, False, False]])
    row = stored(BEFORE, 1.0).at(torch.tensor([0]), NOTHING, ANSWER, ANSWER, seen)
    columns = row.select(1, turned(BEFORE, 4, 5)[None], lambda x: x[:, None])
    assert sorted(columns[0].tolist()) == [2, 3]
