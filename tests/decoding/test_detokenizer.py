"""Incremental detokenization: streamed text never changes and is complete in the end."""

import pytest
from hypothesis import given, settings, strategies as st

from lastword.canvas.tokens import TokenIds
from lastword.decoding.detokenizer import REPLACEMENT, IncrementalDetokenizer
from lastword.errors import NumericError
from tests.serve.helpers import cut_at_stop

MASK, END, TURN_END = 256, 257, 258
IDS = TokenIds(mask=MASK, end=END, pad=END, vocab_size=259, turn_ends=(TURN_END,))
EURO = "€".encode()


class Bytes:
    """A tokenizer with one token per byte, so that a character may have several."""

    bos = None
    chat_template = None

    def encode(self, text):
        return list(text.encode())

    def chat(self, messages, *, continue_last=False):
        raise NotImplementedError

    def decode(self, ids, *, skip_special=True):
        return bytes(token for token in ids if token < 256).decode(errors="replace")


def canvas(text, masks=0):
    return [*text.encode(), *[MASK] * masks]


def feed(stop, *canvases):
    """Return the deltas of several canvases, the last one finished if it holds no mask, and the rest."""
    detokenizer = IncrementalDetokenizer(Bytes(), IDS, stop)
    deltas = [detokenizer.update(ids, finished=MASK not in ids) for ids in canvases]
    assert "".join(deltas) == detokenizer.text
    return deltas, detokenizer.stop_reason, detokenizer.num_tokens


HOLE = [*b"ab", MASK, *b"de"]
CASES = {
    "behind a mask": ((), [HOLE, HOLE, canvas("abcde", 3)], ["ab", "", "cde"], None, 5),
    "end": ((), [[*b"ab", END, *b"cd", MASK], [*b"ab", END, *b"cd"]], ["ab", ""], None, 2),
    "end of turn": ((), [[*b"ab", TURN_END, *b"cd"]], ["ab"], None, 2),
    "half a character": (
        (),
        [[*b"a", *EURO[:1], MASK, MASK], [*b"a", *EURO[:2], MASK], [*b"a", *EURO]],
        ["a", "", "€"],
        None,
        4,
    ),
    "half a character at the end": (
        (),
        [[*b"a", 0xE2, MASK], [*b"a", 0xE2, END, MASK], [*b"a", 0xE2, END]],
        ["a", "", REPLACEMENT],
        None,
        2,
    ),
    "stop string": (
        ("stop",),
        [canvas("go st", 4), canvas("go sto", 3), canvas("go stop", 2), canvas("go stop it")],
        ["go ", "", "", ""],
        "stop",
        3,
    ),
    "not a stop string": (("stop",), [canvas("a sto", 2), canvas("a stone")], ["a ", "stone"], None, 7),
    "end in a stop string": (("stop",), [canvas("a sto", 2), [*b"a sto", END]], ["a ", "sto"], None, 5),
    "restarted": (
        (),
        [canvas("abc", 3), canvas("", 6), canvas("ab", 4), canvas("abc", 3), canvas("abcdef")],
        ["abc", "", "", "", "def"],
        None,
        6,
    ),
    "restarted in a character": (
        (),
        [canvas("a€", 3), [*b"a", *EURO[:2], MASK, MASK], canvas("a€b", 1)],
        ["a€", "", "b"],
        None,
        5,
    ),
}


@pytest.mark.parametrize(("stop", "canvases", "deltas", "stop_reason", "num_tokens"), CASES.values(), ids=CASES)
def test_text_is_emitted_once_it_is_final(stop, canvases, deltas, stop_reason, num_tokens):
    assert feed(stop, *canvases) == (deltas, stop_reason, num_tokens)


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [(("cd", "bc"), "a", "bc"), (("d", "bcde"), "abc", "d"), (("cd", "bcd"), "a", "bcd"), (("x", "y"), "abcdef", None)],
)
def test_the_stop_string_that_is_complete_first_ends_the_text(stop, text, reason):
    by_token = [canvas("abcdef"[:written], 6 - written) for written in range(7)]
    for canvases in ([canvas("abcdef")], by_token):
        deltas, stop_reason, _ = feed(stop, *canvases)
        assert ("".join(deltas), stop_reason) == (text, reason)


def test_a_restarted_row_that_decodes_other_text_is_an_error():
    detokenizer = IncrementalDetokenizer(Bytes(), IDS)
    detokenizer.update(canvas("abc", 3))
    detokenizer.update(canvas("ab", 4))
    with pytest.raises(NumericError, match="different text"):
        detokenizer.update(canvas("abX", 3))


TEXTS = st.text(alphabet="ab€é\n\U0001f600", max_size=12)
STOPS = st.lists(st.text(alphabet="ab€\n", min_size=1, max_size=3), max_size=3)


@given(text=TEXTS, stops=STOPS, ended=st.booleans(), data=st.data())
@settings(max_examples=100, deadline=None)
def test_text_is_the_same_in_whatever_order_slots_are_filled(text, stops, ended, data):
    """The row may restart, and it is read after any of its passes."""
    answer_ids = [*text.encode(), *([END, *b"ab"] if ended else [])]
    expected = cut_at_stop(text, stops)
    detokenizer, streamed = IncrementalDetokenizer(Bytes(), IDS, stops), ""
    for _ in range(data.draw(st.integers(1, 2))):
        canvas = [MASK] * len(answer_ids)
        for slot in data.draw(st.permutations(range(len(answer_ids)))):
            canvas[slot] = answer_ids[slot]
            if data.draw(st.booleans()):
                streamed += detokenizer.update(canvas)
                assert expected.startswith(streamed)
    streamed += detokenizer.update(answer_ids, finished=True)
    assert streamed == detokenizer.text == expected
    assert detokenizer.stop_reason is None or detokenizer.stop_reason in stops
    assert detokenizer.num_tokens == len(expected.encode())  # the fewest tokens with this text
