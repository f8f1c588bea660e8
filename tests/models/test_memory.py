from __future__ import annotations

import pytest
import torch

from lastword.canvas.columns import column_indices
from lastword.models.storage import KVStorage


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_what_is_written_comes_back_at_its_columns():
    memory = KVStorage(rows=2, width=4)
    columns = torch.tensor([[0, 2], [1, 3]])
    keys, values = numbers(2, 3, 2, 5), numbers(2, 3, 2, 5, seed=1)
    all_keys, all_values = memory.at(torch.tensor([0, 1])).update(0, columns, keys, values)
    assert all_keys.shape == (2, 3, 4, 5)
    assert torch.equal(all_keys[0][:, [0, 2]], keys[0])
    assert torch.equal(all_values[1][:, [1, 3]], values[1])
    assert not all_keys[0][:, [1, 3]].any()


def test_later_writes_replace_their_columns_only():
    memory = KVStorage(rows=1, width=3)
    row, everything = torch.tensor([0]), torch.tensor([[0, 1, 2]])
    first = numbers(1, 1, 3, 2)
    memory.at(row).update(0, everything, first, first)
    second = numbers(1, 1, 1, 2, seed=1)
    keys, _ = memory.at(row).update(0, torch.tensor([[1]]), second, second)
    assert torch.equal(keys[0, :, [0, 2]], first[0, :, [0, 2]])
    assert torch.equal(keys[0, :, 1], second[0, :, 0])


def test_rows_and_layers_do_not_mix():
    memory = KVStorage(rows=2, width=1)
    column, ones = torch.tensor([[0]]), torch.ones(1, 1, 1, 1)
    memory.at(torch.tensor([1])).update(0, column, ones, ones)
    other_row, _ = memory.at(torch.tensor([0])).update(0, column, 2 * ones, ones)
    other_layer, _ = memory.at(torch.tensor([1])).update(7, column, 3 * ones, ones)
    kept, _ = memory.by_row(0, ones)
    assert (other_row.item(), other_layer.item(), kept[1].item()) == (2, 3, 1)


@pytest.mark.parametrize("width", [2, 6])
def test_a_memory_may_change_its_width_on_the_right(width):
    memory = KVStorage(rows=1, width=4)
    keys = numbers(1, 2, 4, 3)
    memory.at(torch.tensor([0])).update(0, torch.tensor([[0, 1, 2, 3]]), keys, keys)
    memory.fit(width)
    wider, _ = memory.by_row(0, keys)
    kept = min(width, 4)
    assert wider.shape[2] == width
    assert torch.equal(wider[:, :, :kept], keys[:, :, :kept])
    assert not wider[:, :, kept:].any()


def test_columns_of_lists_true_columns_and_repeats_the_last():
    chosen = torch.tensor([[0, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1]]).bool()
    assert column_indices(chosen).tolist() == [[1, 3, 3, 3], [0, 0, 0, 0], [0, 1, 2, 3]]


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_recomputing_every_column_through_memory_equals_no_memory(name, request):
    model = request.getfixturevalue(name)
    tokens = torch.arange(12).view(1, -1) + 40
    read = torch.tensor([[7, 8, 11]])
    memory = KVStorage(1, 12).at(torch.tensor([0]))
    every = torch.arange(12)[None]
    valid = torch.ones_like(tokens, dtype=torch.bool)
    cached = model(tokens, read, valid=valid, stale=every, storage=memory)
    torch.testing.assert_close(cached, model(tokens, read), atol=1e-5, rtol=0)
