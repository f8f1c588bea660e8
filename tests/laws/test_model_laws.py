"""What must hold for every forward pass of a native model."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from lastword.canvas.columns import column_indices
from lastword.models.storage import KVStorage, RowKVStorage
from tests.golden.cases import model

families = st.sampled_from(["llada", "dream"])
seeds = st.integers(0, 2**16)


def random_canvas(family, seed, rows=2, width=20):
    """Tokens with masks, and a row whose first columns are padding."""
    dice = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 300, (rows, width), generator=dice)
    masked = torch.rand(rows, width, generator=dice) < 0.4
    tokens[masked] = model(family).ids.mask
    valid = torch.ones(rows, width, dtype=torch.bool)
    valid[-1, : int(torch.randint(0, 5, (1,), generator=dice))] = False
    return tokens, valid


def every_column(tokens):
    return torch.arange(tokens.shape[1]).expand(tokens.shape[0], -1)


@settings(max_examples=12)
@given(families, seeds, st.data())
def test_partial_reads_equal_full_reads(family, seed, data):
    tokens, valid = random_canvas(family, seed)
    full = model(family)(tokens, every_column(tokens), valid=valid)
    some = data.draw(st.lists(st.integers(6, 19), min_size=1, unique=True).map(sorted))
    read = torch.tensor(some).expand(len(tokens), -1)
    part = model(family)(tokens, read, valid=valid)
    torch.testing.assert_close(part, full[:, some], atol=1e-5, rtol=0)


@settings(max_examples=12)
@given(families, seeds)
def test_padding_on_the_left_changes_nothing(family, seed):
    tokens, valid = random_canvas(family, seed)
    padded = model(family)(tokens, every_column(tokens)[:, 6:], valid=valid)
    first = int(valid[-1].to(torch.int8).argmax())
    alone = model(family)(tokens[-1:, first:], every_column(tokens)[-1:, 6:] - first)
    torch.testing.assert_close(padded[-1:], alone, atol=1e-4, rtol=0)


@settings(max_examples=12)
@given(families, seeds, st.data())
def test_recomputing_unchanged_columns_changes_nothing(family, seed, data):
    tokens, valid = random_canvas(family, seed)
    memory = RowKVStorage(KVStorage(*tokens.shape), torch.arange(len(tokens)), None, torch.zeros(1).long())
    every = every_column(tokens)
    full = model(family)(tokens, every, valid=valid, stale=every, storage=memory)
    first = data.draw(st.integers(6, 18))
    last = data.draw(st.integers(first + 1, 20))
    stale = every[:, first:last]
    again = model(family)(tokens, stale, valid=valid, stale=stale, storage=memory)
    torch.testing.assert_close(again, full[:, first:last], atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_memory_makes_a_difference_when_a_column_changes(family):
    tokens, valid = random_canvas(family, seed=1)
    every = every_column(tokens)
    memory = RowKVStorage(KVStorage(*tokens.shape), torch.arange(len(tokens)), None, torch.zeros(1).long())
    model(family)(tokens, every, valid=valid, stale=every, storage=memory)
    changed = tokens.clone()
    changed[:, 8] = 7
    stale = every[:, 10:]
    remembered = model(family)(changed, stale, valid=valid, stale=stale, storage=memory)
    recomputed = model(family)(changed, stale, valid=valid)
    assert (remembered - recomputed).abs().max() > 1e-3


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4))
def test_columns_of_lists_the_true_columns_in_order(rows):
    chosen = torch.tensor(rows)
    columns = column_indices(chosen)
    for row, listed in zip(chosen, columns):
        expected = row.nonzero()[:, 0].tolist()
        assert listed.tolist()[: len(expected)] == expected
        assert expected == [] or set(listed.tolist()) == set(expected)
