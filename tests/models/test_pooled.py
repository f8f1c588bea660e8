"""A pool: rows reserve what they need, move when they outgrow it, and disturb nobody."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.models.storage import PooledKVStorage

ROWS, WIDTH = 4, 16
MOVES = st.lists(
    st.tuples(st.integers(0, ROWS - 1), st.integers(0, 3), st.integers(0, 9), st.booleans()),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 40), MOVES)
def test_what_a_row_wrote_stays_its_own(columns, moves):
    pool, known, owners = PooledKVStorage(ROWS, WIDTH, columns), {}, {}
    for number, (row, first, count, leaves) in enumerate(moves, 1):
        if leaves:
            pool.release(row)
            known.pop(row, None)
            continue
        if row not in known:
            known[row], owners[row] = {"first": first, "count": 0}, object()
        own = known[row]
        own["count"] = max(own["count"], count + 1)
        pool.reserve(row, own["first"], own["count"], owner=owners[row])
        last = own["first"] + own["count"] - 1
        part = pool.at(torch.tensor([row]))
        value = torch.full((1, 1, 1, 1), float(number))
        part.update(0, torch.tensor([[last]]), value, value)
        own[last] = number
        kept = pool.by_row(0, torch.zeros(ROWS, 1, 1, 1))[0][:, 0, :, 0]
        for other, written in known.items():
            for column, wrote in written.items():
                if isinstance(column, int):
                    assert kept[other, column] == wrote


def test_a_row_that_fits_stays_where_it_is():
    pool, me = PooledKVStorage(2, 8, 16), object()
    pool.reserve(0, 2, 6, owner=me)
    before = pool.offsets(torch.device("cpu")).clone()
    pool.reserve(0, 2, 5, owner=me)
    assert torch.equal(pool.offsets(torch.device("cpu")), before)


def test_another_row_in_the_same_slot_begins_anew():
    pool = PooledKVStorage(1, 8, 16)
    pool.reserve(0, 4, 4, owner=object())
    pool.reserve(0, 1, 3, owner=object())
    assert pool.offsets(torch.device("cpu")).tolist() == [-1]


def test_the_pool_grows_where_nothing_else_helps():
    pool = PooledKVStorage(3, 8, 10)
    pool.reserve(0, 0, 6, owner="a")
    pool.reserve(1, 0, 6, owner="b")
    assert pool.times_grown == 1
    # A row without a region writes behind all of them.
    assert pool.offsets(torch.device("cpu")).tolist() == [0, 6, pool.size() - 8]
