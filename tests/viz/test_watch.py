"""Frames while an answer is made, and frames kept."""

import pytest

import lastword
from lastword import Hooks
from lastword.errors import PromptError, RecipeError, SettingError


@pytest.fixture(scope="module")
def llada():
    return lastword.load("tiny-llada-instruct")


CHAT = [{"role": "user", "content": "What is 3 + 4?"}]


def test_watching_is_generating(llada):
    frames = [*lastword.stream(llada, CHAT, length="fixed:12")]
    answer = lastword.generate(llada, CHAT, length="fixed:12", frames=True)
    assert tuple(frames) == answer.frames
    assert frames[-1].text == answer.text == lastword.generate(llada, CHAT, length="fixed:12").text
    assert frames[0].tokens == (None,) * 12


def test_a_batch_keeps_the_frames_of_every_row_in_any_number_of_slots(toy):
    prompts = ["abc", "k", "xyz ab"]
    solo = [lastword.generate(toy, one, length="survival:24", frames=True) for one in prompts]
    for slots in (1, 2, 3):
        rows = lastword.generate(toy, prompts, length="survival:24", max_batch_size=slots, frames=True)
        assert [row.frames for row in rows] == [row.frames for row in solo]


def test_without_frames_none_are_kept(toy):
    assert lastword.generate(toy, "abc", length="fixed:3").frames is None


def test_every_step_is_shown_to_both(toy):
    steps = []
    answer = lastword.generate(toy, "abc", length="fixed:3", frames=True, on_step=steps.append)
    assert (len(steps), len(answer.frames)) == (3, 4)


def test_several_prompts_are_refused(in_plain_python):
    code = "lastword.stream(toy, ['a', 'b'])"
    kind, said = in_plain_python([code], with_messages=True)[code]
    assert kind == PromptError.__name__
    assert "2 prompts and takes one" in said


def test_choices_are_refused_before_the_first_frame(toy):
    with pytest.raises(RecipeError):
        lastword.stream(toy, "a", length="no such")


def test_a_hook_that_leaves_no_mask_is_told_so(toy):
    def fill(step, canvas):
        return canvas.tokens.masked_fill(canvas.answer, 1)

    with pytest.raises(SettingError, match="filled every slot"):
        next(lastword.stream(toy, "a", length="fixed:2", hooks=Hooks(tokens=fill)))


def test_tokens_that_a_hook_rewrites_are_shown_as_new(toy):
    def rewrite(step, canvas):
        return canvas.tokens.masked_fill(canvas.answer & (canvas.tokens == 3), 9)

    *_, last = lastword.stream(toy, "abc", length="fixed:3", hooks=Hooks(tokens=rewrite))
    assert 9 in last.tokens
    assert 3 not in last.tokens
