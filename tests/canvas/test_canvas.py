from __future__ import annotations

import pytest
import torch

from lastword.canvas.canvas import Canvas
from lastword.errors import PromptError, SettingError
from lastword.prompts import validate_prompts


@pytest.fixture
def canvas(ids):
    """Two rows: 1 2 3 _ _ and, padded on both sides, 4 _ _ _ (mask 6, pad 7)."""
    return Canvas.blank([[1, 2, 3], [4]], torch.tensor([2, 3]), ids)


def test_answers_begin_in_one_column_and_padding_goes_outside(canvas):
    assert canvas.start == 3
    assert canvas.tokens.tolist() == [[1, 2, 3, 6, 6, 7], [7, 7, 4, 6, 6, 6]]


def test_valid_columns_are_prompt_and_answer(canvas):
    assert canvas.valid.int().tolist() == [[1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1]]
    assert canvas.answer.int().tolist() == [[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1]]


def test_filling_masks_moves_nothing(canvas):
    filled = canvas.write(canvas.masked, torch.zeros_like(canvas.tokens))
    assert filled.changed_since(canvas).tolist() == [False, False]


def test_a_row_that_changed_its_length_moved(canvas):
    assert canvas.crop(torch.tensor([2, 1])).changed_since(canvas).tolist() == [False, True]


def test_a_row_whose_written_tokens_changed_moved(canvas):
    filled = canvas.write(canvas.masked, torch.zeros_like(canvas.tokens))
    changed = filled.tokens.clone()
    changed[0, 4] = 5
    assert filled.replace_answer(changed).changed_since(filled).tolist() == [True, False]


def test_a_write_returns_a_new_canvas(canvas):
    where = torch.zeros(2, 6, dtype=torch.bool)
    where[0, 4] = True
    written = canvas.write(where, torch.full((2, 6), 5))
    assert written.answer_ids(0) == [6, 5]
    assert canvas.answer_ids(0) == [6, 6]


def test_a_write_does_not_work_out_again_where_the_answer_lies(canvas):
    answer, masked = canvas.answer, canvas.masked
    written = canvas.write(masked, torch.full_like(canvas.tokens, 1))
    assert written.answer is answer
    assert not written.masked.any()
    assert written.crop(canvas.horizon - 1).answer.sum() == answer.sum() - len(canvas.horizon)


def test_a_write_changes_neither_prompt_nor_padding_nor_what_is_written(canvas):
    everywhere = torch.ones(2, 6, dtype=torch.bool)
    once = canvas.write(everywhere, torch.full((2, 6), 5))
    assert once.tokens.tolist() == [[1, 2, 3, 5, 5, 7], [7, 7, 4, 5, 5, 5]]
    assert torch.equal(once.write(everywhere, torch.full((2, 6), 2)).tokens, once.tokens)


def test_masked_counts_down_to_nothing(canvas):
    assert canvas.masked.sum(-1).tolist() == [2, 3]
    full = canvas.write(canvas.masked, torch.zeros_like(canvas.tokens))
    assert not full.masked.any()


def test_a_mask_id_in_the_prompt_is_refused(ids):
    with pytest.raises(PromptError, match="mask token"):
        validate_prompts([[6, 1]], ids)


def test_overwrite_may_change_answers_but_never_prompts(canvas):
    written = canvas.write(canvas.masked, torch.full((2, 6), 5))
    hooked = written.replace_answer(torch.full((2, 6), 0))
    assert hooked.tokens.tolist() == [[1, 2, 3, 0, 0, 7], [7, 7, 4, 0, 0, 0]]


def test_ended_marks_end_tokens_of_the_answer_only(ids):
    canvas = Canvas.blank([[7, 1]], torch.tensor([2]), ids)
    tokens = torch.tensor([[0, 0, 3, 7]])
    assert canvas.write(canvas.masked, tokens).ended.int().tolist() == [[0, 0, 0, 1]]


def spans(window):
    return list(zip(window.first.tolist(), window.last.tolist()))


def test_without_blocks_the_window_is_the_answer_until_it_is_full(canvas):
    assert spans(canvas.window(None)) == [(3, 5), (3, 6)]
    where = canvas.masked.clone()
    where[1] = False
    done = canvas.write(where, torch.zeros_like(canvas.tokens))
    assert spans(done.window(None)) == [(3, 3), (3, 6)]


def test_window_is_the_first_block_with_masks_and_the_last_one_may_be_short(ids):
    canvas = Canvas.blank([[1]], torch.tensor([7]), ids)
    seen = []
    while canvas.masked.any():
        window = canvas.window(3)
        seen += spans(window)
        inside = window.columns(canvas.width)
        canvas = canvas.write(inside, torch.zeros_like(canvas.tokens))
    assert seen == [(1, 4), (4, 7), (7, 8)]


def test_rows_may_stand_in_different_blocks(canvas):
    where = torch.zeros(2, 6, dtype=torch.bool)
    where[1, 3:5] = True
    assert spans(canvas.write(where, torch.zeros_like(canvas.tokens)).window(2)) == [(3, 5), (5, 6)]


def test_a_block_wider_than_the_answer_ends_with_it(canvas):
    assert spans(canvas.window(100)) == [(3, 5), (3, 6)]


def test_a_row_that_only_ever_gets_masks_is_given_up(canvas):
    open_masks = canvas.masked
    written = canvas.write(open_masks, torch.tensor([[6] * 6, [5] * 6]))
    after = written.abandon(open_masks, open_masks)
    assert after.abandoned.int().tolist() == [[0, 0, 0, 1, 1, 0], [0] * 6]
    assert not after.masked.any()
    assert after.answer_ids(0) == [6, 6]


def test_a_row_is_not_given_up_while_some_open_mask_was_not_tried(canvas):
    tried = canvas.masked.clone()
    tried[:, 3] = False
    assert not canvas.abandon(canvas.masked, tried).abandoned.any()


def test_unfinished_is_the_whole_answer_of_rows_with_masks(canvas):
    first_done = canvas.masked.clone()
    first_done[1] = False
    written = canvas.write(first_done, torch.zeros_like(canvas.tokens))
    assert written.unfinished.int().tolist() == [[0] * 6, [0, 0, 0, 1, 1, 1]]


@pytest.mark.parametrize("slots", [0, -1])
def test_a_horizon_without_slots_is_refused(ids, slots):
    with pytest.raises(SettingError, match="has 1 to 1048576 slots"):
        Canvas.blank([[1], [1]], torch.tensor([3, slots]), ids)


def test_no_prompts_at_all_are_refused(ids):
    with pytest.raises(PromptError):
        validate_prompts([], ids)


def test_an_answer_grows_at_its_end(canvas):
    mask = canvas.ids.mask
    longer = canvas.extend(torch.tensor([3, 0]))
    assert [longer.answer_ids(row) for row in (0, 1)] == [[mask] * 5, [mask] * 3]
    assert longer.width == 8
    assert longer.horizon.tolist() == [5, 3]
    assert torch.equal(longer.tokens[:, : canvas.start], canvas.tokens[:, : canvas.start])
    assert longer.masked.sum(-1).tolist() == [5, 3]


def test_an_answer_may_grow_by_more_than_its_width(canvas):
    assert canvas.extend(torch.tensor([40, 1])).answer_ids(0) == [canvas.ids.mask] * 42


def test_an_answer_may_be_followed_by_end_tokens_that_are_not_the_model_s(canvas):
    closed = canvas.append_suffix(canvas.ids.end, torch.tensor([2, 1]))
    assert closed.suffix.tolist() == [2, 1]
    assert [closed.answer_ids(row) for row in (0, 1)] == [[6, 6, 7, 7], [6, 6, 6, 7]]
    assert not closed.ended.any()
    assert closed.min_horizon.tolist() == [1, 1]
    longer = closed.extend(torch.tensor([1, 0]))
    assert longer.answer_ids(0) == [6, 6, 6, 7, 7]
    assert longer.crop(torch.tensor([4, 2])).suffix.tolist() == [1, 0]
    ended = closed.write(closed.masked, torch.full_like(closed.tokens, 7))
    assert ended.ended.sum(-1).tolist() == [2, 3]


def test_a_cropped_answer_grows_masks_again(canvas):
    again = canvas.crop(torch.tensor([1, 1])).extend(torch.tensor([1, 2]))
    assert [again.answer_ids(row) for row in (0, 1)] == [[6, 6], [6, 6, 6]]
    assert again.width == canvas.width


def test_masks_may_be_inserted_anywhere_in_an_answer(ids):
    canvas = Canvas.blank([[0, 0], [0]], torch.tensor([3, 4]), ids)
    canvas = canvas.replace_answer(torch.tensor([[0, 0, 1, 6, 3, 7], [7, 0, 1, 2, 3, 4]]))
    longer = canvas.insert_masks(torch.tensor([3, 4]), torch.tensor([2, 0]))
    assert longer.answer_ids(0) == [1, 6, 6, 6, 3]
    assert longer.answer_ids(1) == [1, 2, 3, 4]
    assert longer.tokens[:, :2].tolist() == [[0, 0], [7, 0]]
    assert longer.tokens[1, 6:].tolist() == [ids.pad]


def test_a_mask_that_was_given_up_stays_so_where_it_moves(ids):
    canvas = Canvas.blank([[0]], torch.tensor([3]), ids)
    for column, moved in [(3, [0, 1, 1, 1, 1, 0]), (1, [0, 0, 1, 1, 1, 1])]:
        there = torch.arange(4)[None] == column
        longer = canvas.abandon(there, there).insert_masks(torch.tensor([2]), torch.tensor([2]))
        assert longer.masked.int().tolist() == [moved]


@pytest.mark.parametrize(
    ("answer", "least"),
    [
        ([6, 6, 6, 6], 1),  # nothing written: one slot
        ([1, 2, 6, 6], 2),  # text
        ([1, 6, 3, 6], 3),  # masks within the text stay
        ([1, 2, 7, 6], 3),  # the end token that closes the text stays
        ([1, 6, 6, 7], 1),  # an end token behind masks does not need its slot
        ([6, 7, 3, 6], 1),  # text behind an end token is none
        ([1, 2, 7, 3], 3),
        ([7, 7, 7, 7], 1),
        ([1, 2, 3, 4], 4),
    ],
)
def test_the_least_horizon_keeps_the_text(answer, least, ids):
    canvas = Canvas.blank([[7], [0]], torch.tensor([4, 2]), ids)
    canvas = canvas.replace_answer(torch.tensor([[0, *answer], [0, 1, 2, 5, 5]]))
    assert canvas.min_horizon.tolist() == [least, 2]
