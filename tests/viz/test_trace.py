"""Which pass filled each slot, whatever becomes of the canvas."""

import pytest
from hypothesis import given, settings, strategies as some

import lastword
from lastword.viz.frames import RowTrace, align_frame

TOY = lastword.load("toy")
M, E = TOY.ids.mask, TOY.ids.end


def trace():
    return RowTrace(TOY.tokenizer, TOY.ids)


def test_a_slot_keeps_the_pass_that_filled_it():
    row = trace()
    assert row.begin([M, M, M]).filled_at == (None, None, None)
    assert row.after([0, M, M], [0.5, None, None], 4).filled_at == (1, None, None)
    frame = row.after([0, M, 2], [None, None, 0.75], 8)
    assert (frame.filled_at, frame.confidence) == ((1, None, 2), (0.5, None, 0.75))
    assert (frame.forward_passes, frame.tokens_computed, frame.text, frame.end) == (2, 8, "a", None)


def test_what_was_there_before_the_first_pass_was_given():
    assert trace().begin([M, M, E, E]).filled_at == (None, None, 0, 0)


def test_without_a_beginning_the_first_pass_has_its_confidence():
    frame = trace().after([0, M], [0.5, None], 4)
    assert (frame.forward_passes, frame.filled_at, frame.confidence) == (1, (1, None), (0.5, None))


def test_a_canvas_that_is_cut_and_one_that_grows_at_its_end():
    row = trace()
    row.begin([M, M, M, M])
    row.after([0, M, M, M], [0.5, None, None, None], 4)
    assert row.after([0, E], [None, 0.6, None, None], 8).filled_at == (1, 2)
    assert row.after([0, E, M, M], [None, None], 9).filled_at == (1, 2, None, None)


def test_masks_inserted_before_what_is_written_move_it():
    row = trace()
    row.begin([M, M, M, M, E])
    row.after([0, M, M, 3, E], [0.4, None, None, 0.6, None], 4)
    frame = row.after([0, M, M, M, M, 3, E], [None] * 5, 8)
    assert frame.filled_at == (1, None, None, None, None, 1, 0)
    assert frame.confidence[5] == 0.6


def test_what_a_pass_wrote_tells_where_masks_were_inserted():
    """Without it, a token behind the inserted masks could as well stand before them."""
    row = trace()
    row.begin([M, M, M, M, E])
    frame = row.after([M, M, 5, M, M, E], [None, 0.5, None, None, None], 4)
    assert (frame.filled_at, frame.confidence[2]) == ((None, None, 1, None, None, 0), 0.5)


def test_masks_inserted_where_the_right_end_falls_off():
    assert align_frame([0, M, 2, E, E], [0, M, M, M, 2], M) == [0, 1, None, None, 2]


def test_a_rewritten_answer_is_new():
    row = trace()
    row.begin([M, M])
    row.after([0, 1], [0.5, 0.5], 4)
    frame = row.after([5, 1], [None, None], 8)
    assert (frame.filled_at, frame.confidence) == ((2, 1), (None, 0.5))


def test_passes_that_nobody_looked_at_count():
    row = trace()
    row.begin([M, M])
    frame = row.after([0, 1], [], 40, forward_passes=7)
    assert (frame.forward_passes, frame.filled_at, frame.confidence) == (7, (7, 7), (None, None))


class Bytes:
    """A token a byte."""

    bos = chat_template = None
    encode = chat = print  # nobody asks

    def decode(self, ids, *, skip_special=True):
        return bytes(ids).decode(errors="replace")


answers = some.lists(some.sampled_from([0, 1, M, M, M, E]), max_size=12)


@settings(deadline=None, max_examples=60)
@given(some.lists(some.tuples(answers, some.lists(some.none() | some.floats(0, 1), max_size=14))))
def test_no_answer_breaks_it(steps):
    row = trace()
    for answer, sure in steps:
        frame = row.after(answer, sure, 1)
        assert len(frame.tokens) == len(frame.texts) == len(frame.filled_at) == len(answer)
        assert [token is None for token in frame.tokens] == [at is None for at in frame.filled_at]


@settings(deadline=None, max_examples=60)
@given(answers, answers)
def test_every_slot_comes_from_one_place(old, new):
    found = align_frame(old, new, M)
    kept = [slot for slot in found if slot is not None]
    assert len(found) == len(new)
    assert kept == sorted(set(kept))
    assert all(slot < len(old) for slot in kept)


def test_parts_of_a_character_are_shown_as_that_character():
    ids = lastword.TokenIds(mask=256, end=257, pad=257, vocab_size=258)
    frame = RowTrace(Bytes(), ids).after([*"a→b".encode(), 256], [], 1)
    assert frame.texts == ("a", "→", "", "", "b", "")
    assert frame.text == "a→b"


def test_a_model_without_a_tokenizer_shows_ids():
    frame = RowTrace(None, TOY.ids).after([4, M], [], 1)
    assert (frame.texts, frame.text) == (("4 ", ""), "4 ")


@pytest.mark.parametrize(
    "length",
    [
        lastword.Daedal(initial=8, limit=24, expansion_factor=4),
        lastword.RhoEos(initial=8, limit=24),
        "default",
        "fixed:20",
        "grow-when-full:(fixed:4)",
    ],
)
def test_every_policy_can_be_watched(length):
    model = lastword.load("tiny-llada-base")
    prompt = "def add(a, b):\n    return"
    answer = lastword.generate(model, prompt, length=length, block=8, frames=True)
    last = answer.frames[-1]
    assert last.text == answer.text
    assert [token for token in last.tokens if token is not None] == answer.canvas
    assert [frame.forward_passes for frame in answer.frames] == [*range(answer.cost.forward_passes + 1)]
    assert last.tokens_computed == answer.cost.tokens_computed
    wrote = [at for at, fixed in enumerate(last.filled_at) if fixed]
    assert wrote
    assert all(0 < last.confidence[at] <= 1 for at in wrote)
