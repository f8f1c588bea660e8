"""Text goes through the chat template of an instruct model by default; token ids never do, and messages always."""

import pytest

import lastword
from lastword.errors import PromptError, SettingError, WrongTypeError
from lastword.models.toy import Toy
from lastword.prompts import has_chat_template, with_chat_template

MESSAGES = [{"role": "user", "content": "abc"}]
ENCODED = [0, 1, 2]


class Instruct(Toy):
    """A toy with a chat template, which writes "say" before a message."""

    class Tokenizer(type(Toy.tokenizer)):
        chat_template = "say {{ message }}"

        def chat(self, messages, *, continue_last=False):
            return self.encode(" ".join(f"say {message['content']}" for message in messages))

    tokenizer = Tokenizer()


@pytest.fixture(scope="module")
def instruct():
    return Instruct()


SAID = Instruct.tokenizer.encode("say abc")


def generate(model, prompt, **settings):
    return lastword.generate(model, prompt, length="fixed:3", **settings)


def facts(answer):
    return answer.prompt, answer.chat


def test_a_model_with_a_template_is_known(instruct, toy, llada):
    assert [has_chat_template(model) for model in (instruct, toy, llada)] == [True, False, False]


@pytest.mark.parametrize(
    ("prompt", "chat", "expected"),
    [
        ("abc", None, (SAID, True)),
        ("abc", True, (SAID, True)),
        ("abc", False, (ENCODED, False)),
        (MESSAGES, None, (SAID, True)),
        (MESSAGES, True, (SAID, True)),
        (MESSAGES, False, (SAID, True)),
        (ENCODED, None, (ENCODED, None)),
        (ENCODED, False, (ENCODED, None)),
    ],
)
def test_an_instruct_model_gets_text_in_its_template_unless_chat_is_false(instruct, prompt, chat, expected):
    assert facts(generate(instruct, prompt, chat=chat)) == expected
    assert facts(*generate(instruct, [prompt], chat=chat)) == expected


@pytest.mark.parametrize("chat", [None, False])
def test_a_model_without_a_template_gets_text_as_it_is(toy, chat):
    assert facts(generate(toy, "abc", chat=chat)) == (ENCODED, False)


def test_a_template_that_a_model_lacks_is_refused(toy, llada):
    with pytest.raises(PromptError, match="no chat template"):
        generate(toy, "abc", chat=True)
    with pytest.raises(PromptError):
        generate(llada, "abc", chat=True)


@pytest.mark.parametrize("prompt", [ENCODED, ["abc", ENCODED], [ENCODED]], ids=str)
def test_token_ids_cannot_go_through_a_template(instruct, prompt):
    with pytest.raises(PromptError, match="chat=True was given with a prompt of token ids; give text or messages"):
        generate(instruct, prompt, chat=True)
    with pytest.raises(PromptError, match="chat=True was given with a prompt of token ids"):
        lastword.predict_length(instruct, prompt, chat=True)


def test_each_answer_of_a_list_says_whether_it_used_the_template(instruct):
    prompts = ["abc", ENCODED, MESSAGES]
    assert [answer.chat for answer in generate(instruct, prompts)] == [True, None, True]
    assert [answer.chat for answer in generate(instruct, prompts, chat=False)] == [False, None, True]
    assert generate(instruct, "abc").to_data()["chat"] is True


@pytest.mark.parametrize("chat", [None, True, False])
def test_stream_and_predict_length_take_text_like_generate(instruct, chat):
    prompt = SAID if chat is not False else ENCODED
    last = [*lastword.stream(instruct, "abc", length="fixed:3", chat=chat)][-1]
    assert last.text == generate(instruct, prompt).text
    lengths, expected = (
        lastword.predict_length(instruct, given, limit=16, chat=chat if isinstance(given, str) else None)
        for given in ("abc", prompt)
    )
    assert lengths.hazard.equal(expected.hazard)


def test_an_embedded_instruct_model_answers_text_as_a_message():
    model = lastword.load("tiny-llada-instruct", device="cpu")
    text = "Calculate 3 + 4."
    as_text, as_message = (generate(model, one) for one in (text, [{"role": "user", "content": text}]))
    assert facts(as_text) == facts(as_message)
    assert as_text.tokens == as_message.tokens
    assert len(generate(model, text, chat=False).prompt) < len(as_text.prompt)


@pytest.mark.parametrize(("chat", "error"), [("yes", SettingError), (1, WrongTypeError), (0, WrongTypeError)])
def test_chat_is_true_or_false_or_none(instruct, chat, error):
    for call in (lastword.generate, lastword.stream, lastword.predict_length):
        with pytest.raises(error, match=r"chat=.* was given; chat must be True or False or None"):
            call(instruct, "abc", chat=chat)


def test_prompts_keep_their_order_and_kind(instruct):
    assert with_chat_template(instruct, "abc", None) == MESSAGES
    assert with_chat_template(instruct, ["abc", ENCODED], None) == [MESSAGES, ENCODED]
    assert with_chat_template(instruct, ["abc", ENCODED], False) == ["abc", ENCODED]
    assert with_chat_template(instruct, [["abc"]], False) == [["abc"]]
