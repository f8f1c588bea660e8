"""Stop strings end an answer and its decoding, in `generate`, `decode` and `stream`."""

import pytest

import lastword
from lastword.decoding.loop import decode
from lastword.errors import SettingError, WrongTypeError
from lastword.models.toy import Toy
from lastword.recipe.recipe import Recipe

# The toy says the alphabet; with blocks of one slot it writes from left to right.
LEFT_TO_RIGHT = Recipe(length=lastword.Fixed(12), block=1)
WHOLE = "defghijklmno"


def generate(model, prompt="abc", **settings):
    return lastword.generate(model, prompt, **{"recipe": LEFT_TO_RIGHT, **settings})


# generate


def test_a_stop_string_ends_the_text_and_the_decoding(toy):
    whole, stopped = generate(toy), generate(toy, stop="gh")
    assert (whole.text, whole.finish, whole.stop_reason) == (WHOLE, lastword.Finish.TRUNCATED, None)
    assert (stopped.text, stopped.finish, stopped.stop_reason) == ("def", lastword.Finish.STOPPED, "gh")
    assert stopped.tokens == whole.tokens[:3]
    assert (whole.cost.forward_passes, stopped.cost.forward_passes) == (12, 5)


def test_a_stop_string_that_does_not_come_changes_nothing(toy):
    whole, unstopped = generate(toy), generate(toy, stop="hg")
    assert unstopped.to_data() | {"seconds": 0} == whole.to_data() | {"seconds": 0}


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        (["i", "gh"], "def", "gh"),  # complete first
        (["efghi", "gh"], "def", "gh"),
        (["fgh", "gh"], "de", "fgh"),  # both at once: the longer one
        (["gh", "fgh"], "de", "fgh"),
        (["d"], "", "d"),
        (["zz", "o"], "defghijklmn", "o"),
        (("gh",), "def", "gh"),
    ],
    ids=str,
)
def test_the_stop_string_that_is_complete_first_counts(toy, stop, text, reason):
    answer = generate(toy, stop=stop)
    assert (answer.text, answer.stop_reason) == (text, reason)


@pytest.mark.parametrize("stop", [None, [], ()])
def test_no_stop_strings_are_none(toy, stop):
    assert generate(toy, stop=stop).text == WHOLE


def test_text_after_a_mask_does_not_stop_an_answer(toy):
    """A stop string may stand on the canvas before the text in front of it is decided."""
    answer = generate(toy, recipe=Recipe(length=lastword.Fixed(12)), stop="j")
    order = [frame.text for frame in lastword.stream(toy, "abc", recipe=Recipe(length=lastword.Fixed(12)))]
    first = next(passes for passes, text in enumerate(order) if "j" in text)
    assert (answer.text, answer.cost.forward_passes) == ("defghi", first)


def test_stop_strings_may_be_given_per_prompt(toy):
    prompts = ["abc"] * 4
    answers = generate(toy, prompts, stop=[["gh"], "i", [], ["zz", "e"]])
    assert [answer.text for answer in answers] == ["def", "defgh", WHOLE, "d"]
    assert [answer.stop_reason for answer in answers] == ["gh", "i", None, "e"]
    assert [answer.cost.forward_passes for answer in answers] == [5, 6, 12, 2]
    assert {answer.text for answer in generate(toy, prompts, stop="gh")} == {"def"}
    assert {answer.text for answer in generate(toy, prompts, stop=["zz", "gh"])} == {"def"}


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_stopped_answer_leaves_its_place_to_the_next(toy, rows):
    prompts = ["abc", "bcd", "cde", "def", "efg"]
    stops = ["gh", [], "h", [], "l"]
    alone = [generate(toy, prompt, stop=stop) for prompt, stop in zip(prompts, stops)]
    together = generate(toy, prompts, stop=stops, max_batch_size=rows, seed=[0] * 5)
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    assert [answer.cost.forward_passes for answer in together] == [answer.cost.forward_passes for answer in alone]


def test_a_stop_string_may_end_within_a_token():
    model = lastword.load("tiny-llada-base", device="cpu")
    prompt = "Problem: Solve for n: 4n + 3 = 35. Be brief.\nSolution:\n"
    whole = generate(model, prompt, recipe=Recipe(length=lastword.Fixed(24), block=1))
    word = next(text for text in (model.tokenizer.decode([token]) for token in whole.tokens[3:]) if len(text) > 2)
    stopped = generate(model, prompt, recipe=Recipe(length=lastword.Fixed(24), block=1), stop=word[1:])
    assert stopped.text == whole.text.partition(word[1:])[0]
    assert stopped.text.endswith(word[0])
    assert model.tokenizer.decode(stopped.tokens).startswith(stopped.text)
    assert not model.tokenizer.decode(stopped.tokens[:-1]).startswith(stopped.text)


def test_an_end_token_before_a_stop_string_ends_the_answer(ids):
    class Ending(Toy):
        def __call__(self, tokens, read, **more):
            logits = super().__call__(tokens, read, **more)
            logits[:, read[0] >= 6] = 0
            logits[:, read[0] >= 6, self.ids.end] = 99.0
            return logits

    answer = generate(Ending(), stop="gh")
    assert (answer.text, answer.finish, answer.stop_reason) == ("def", lastword.Finish.ENDED, None)


def test_stopping_is_in_the_json_of_an_answer(toy):
    data = generate(toy, stop="gh").to_data()
    assert (data["finish"], data["stop_reason"], data["text"]) == ("stopped", "gh", "def")
    assert generate(toy).to_data()["stop_reason"] is None


# decode and stream


def test_decode_stops_and_says_why(toy):
    steps = list(decode(toy, [[0, 1, 2], [0, 1, 2]], LEFT_TO_RIGHT, stop=[["gh", "i"], []]))
    finished = {row.request_id: row for step in steps for row in step.finished}
    assert {index: row.stop_reason for index, row in finished.items()} == {0: "gh", 1: None}
    assert {index: row.cost.forward_passes for index, row in finished.items()} == {0: 5, 1: 12}
    assert len(list(decode(toy, [[0, 1, 2]], LEFT_TO_RIGHT, stop="gh"))) == 5


def test_a_stream_ends_with_the_stop_string(toy):
    frames = list(lastword.stream(toy, "abc", recipe=LEFT_TO_RIGHT, stop=["zz", "gh"]))
    assert [frame.text for frame in frames] == ["", "d", "de", "def", "defg", "def"]
    assert frames[-1].forward_passes == 5


# Refusals


@pytest.mark.parametrize(
    ("stop", "error", "words"),
    [
        ("", WrongTypeError, "none of them empty"),
        (["a", ""], WrongTypeError, "none of them empty"),
        ([["a"], [""]], WrongTypeError, "none of them empty"),
        (3, WrongTypeError, "stop must be text, or a list of texts"),
        ([3], WrongTypeError, "give text, a list of texts, or a list with a list of texts per prompt"),
        ([["a"]], SettingError, "1 lists of stop strings were given for 2 prompts; give one each"),
        ([["a"]] * 3, SettingError, "3 lists of stop strings were given for 2 prompts"),
    ],
    ids=str,
)
def test_what_is_no_stop_string_is_refused(toy, stop, error, words):
    with pytest.raises(error, match=words):
        generate(toy, ["abc"] * 2, stop=stop)
    with pytest.raises(error, match=words):
        decode(toy, [[0, 1, 2]] * 2, LEFT_TO_RIGHT, stop=stop)


def test_a_model_without_a_tokenizer_cannot_stop_at_text(llada):
    for call in (lastword.generate, lastword.stream):
        with pytest.raises(SettingError, match=rf"{call.__name__}\(stop='x'\) was given, which needs a .* tokenizer"):
            call(llada, [1, 2], length="fixed:4", stop="x")
    with pytest.raises(SettingError, match=r"decode\(stop=\['x'\]\)"):
        decode(llada, [[1, 2]], LEFT_TO_RIGHT, stop=["x"])
    assert lastword.generate(llada, [1, 2], length="fixed:4", stop=[]).stop_reason is None
