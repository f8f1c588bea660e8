"""Committed text: what goes out is never taken back, and in the end it is all there."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.canvas.tokens import TokenIds
from lastword.errors import NumericError
from lastword.serve.detokenizer import REPLACEMENT, IncrementalDetokenizer
from tests.serve.engines import stopped

MASK, END, OTHER_END = 256, 257, 258
IDS = TokenIds(mask=MASK, end=END, pad=END, vocab_size=259, turn_ends=(OTHER_END,))


class Bytes:
    """A token a byte, so that a character may take several."""

    bos = None
    chat_template = None

    def encode(self, text):
        return list(text.encode())

    def chat(self, messages, *, continue_last=False):
        raise NotImplementedError

    def decode(self, ids, *, skip_special=True):
        return bytes(one for one in ids if one < 256).decode(errors="replace")


def committed(*stop):
    return IncrementalDetokenizer(Bytes(), IDS, stop)


def canvas(text, masks=0):
    return [*text.encode(), *[MASK] * masks]


def test_text_behind_a_mask_is_held_back():
    own = committed()
    assert own.read([*b"ab", MASK, *b"de"]) == "ab"
    assert own.read([*b"ab", MASK, *b"de"]) == ""
    assert own.read(canvas("abcde", 3)) == "cde"
    assert (own.text, own.count) == ("abcde", 5)


def test_text_ends_before_the_first_end_token():
    for end in (END, OTHER_END):
        own = committed()
        assert own.read([*b"ab", end, *b"cd"]) == "ab"
        assert own.read([*b"ab", end, *b"cd"], complete=True) == ""
        assert own.text == "ab"


def test_half_a_character_is_held_back():
    own, euro = committed(), "€".encode()
    assert own.read([*b"a", *euro[:1], MASK, MASK]) == "a"
    assert own.read([*b"a", *euro[:2], MASK]) == ""
    assert own.read([*b"a", *euro]) == "€"


def test_half_a_character_that_stays_one_goes_out_at_the_end():
    own = committed()
    assert own.read([*b"a", 0xE2, MASK]) == "a"
    assert own.read([*b"a", 0xE2, END]) == ""
    assert own.read([*b"a", 0xE2, END], complete=True) == REPLACEMENT


def test_a_stop_string_across_tokens_ends_the_text_before_it():
    own = committed("stop")
    assert own.read(canvas("go st", 4)) == "go "
    assert own.read(canvas("go sto", 3)) == ""
    assert own.read(canvas("go stop", 2)) == ""
    assert (own.text, own.stopped, own.count) == ("go ", "stop", 3)
    assert own.read(canvas("go stop it"), complete=True) == ""


def test_what_only_looked_like_a_stop_string_goes_out():
    own = committed("stop")
    assert own.read(canvas("a sto", 2)) == "a "
    assert own.read(canvas("a stone", 0)) == "stone"
    assert own.stopped is None
    own = committed("stop")
    own.read(canvas("a sto", 2))
    assert own.read([*b"a sto", END], complete=True) == "sto"


@pytest.mark.parametrize(
    ("stop", "text", "by"),
    [
        (("cd", "bc"), "a", "bc"),
        (("d", "bcde"), "abc", "d"),
        (("cd", "bcd"), "a", "bcd"),
        (("x", "y"), "abcdef", None),
    ],
)
def test_the_first_of_several_stop_strings_ends_the_text(stop, text, by):
    own = committed(*stop)
    assert own.read(canvas("abcdef"), complete=True) == text
    assert own.stopped == by
    bit_by_bit = committed(*stop)
    for written in range(7):
        bit_by_bit.read(canvas("abcdef"[:written], 6 - written), complete=written == 6)
    assert (bit_by_bit.text, bit_by_bit.stopped) == (text, by)


def test_a_row_that_begins_anew_goes_on_where_it_was():
    own = committed()
    assert own.read(canvas("abc", 3)) == "abc"
    for written in range(4):  # it was failed, and writes the same again
        assert own.read(canvas("abcdef"[:written], 6 - written)) == ""
    assert own.read(canvas("abcdef")) == "def"


def test_a_row_that_writes_something_else_is_refused():
    own = committed()
    own.read(canvas("abc", 3))
    own.read(canvas("ab", 4))
    with pytest.raises(NumericError, match="no longer true"):
        own.read(canvas("abX", 3))


def test_a_row_that_begins_anew_may_be_within_a_character():
    own = committed()
    assert own.read(canvas("a€", 3)) == "a€"
    assert own.read([*b"a", *"€".encode()[:2], MASK, MASK]) == ""
    assert own.read(canvas("a€b", 1)) == "b"


TEXTS = st.text(alphabet="ab€é\n\U0001f600", max_size=12)
STOPS = st.lists(st.text(alphabet="ab€\n", min_size=1, max_size=3), max_size=3)


@given(text=TEXTS, stops=STOPS, ended=st.booleans(), data=st.data())
@settings(max_examples=100, deadline=None)
def test_what_was_read_in_any_order_is_the_text(text, stops, ended, data):
    """Slots are filled in any order, the row may begin anew, and it is read after any of its passes."""
    whole = [*text.encode(), *([END, *b"ab"] if ended else [])]
    wanted = stopped(text, stops)
    own, read = committed(*stops), ""
    for _ in range(data.draw(st.integers(1, 2))):
        now = [MASK] * len(whole)
        for slot in data.draw(st.permutations(range(len(whole)))):
            now[slot] = whole[slot]
            if data.draw(st.booleans()):
                read += own.read(now)
                assert wanted.startswith(read)
    read += own.read(whole, complete=True)
    assert read == own.text == wanted
    assert own.stopped is None or own.stopped in stops
    # As many tokens as it takes to write the text.
    assert own.count == len(wanted.encode())
