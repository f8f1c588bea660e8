"""The official client against a live server."""

import openai
import pytest

import lastword

QUESTION = [{"role": "user", "content": "Solve for n: 4n + 3 = 35."}]
CHAT = {"model": "tiny-llada-instruct", "messages": QUESTION, "extra_body": {"recipe": "fast"}}
BRIEF = {**CHAT, "extra_body": {"recipe": "fast", "length": "fixed:16"}}
FIVE = {"model": "toy", "extra_body": {"length": "fixed:5"}}


@pytest.fixture(scope="module")
def toy_client(live_toy):
    with openai.OpenAI(base_url=f"{live_toy.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def client(live_instruct):
    with openai.OpenAI(base_url=f"{live_instruct.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def expected(instruct):
    """The answer of the library."""
    return lastword.generate(instruct, QUESTION, recipe="fast")


def test_models(toy_client):
    assert [model.id for model in toy_client.models.list()] == ["toy"]
    assert toy_client.models.retrieve("toy").owned_by == "lastword"
    with pytest.raises(openai.NotFoundError) as missing:
        toy_client.models.retrieve("gpt")
    assert missing.value.code == "model_not_found"


def test_a_chat_equals_the_answer_of_the_library(client, expected):
    response = client.chat.completions.create(**CHAT)
    (choice,) = response.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected.text)
    assert choice.finish_reason == ("stop" if expected.finish.name == "ENDED" else "length")
    tokens = (len(expected.prompt), len(expected.tokens))
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == tokens
    assert response.usage.total_tokens == sum(tokens)
    details, costs = response.lastword, (expected.cost, expected.probe_cost)
    assert details == choice.lastword
    assert details["horizon"] == expected.horizon
    assert details["predicted_length"] == pytest.approx(expected.lengths.mean.item(), abs=1e-3)
    assert set(details["quantiles"]) == {"0.5", "0.9"}
    assert details["forward_passes"] == sum(cost.forward_passes for cost in costs)
    assert details["tokens_computed"] == sum(cost.tokens_computed for cost in costs)
    assert details["tokens_per_forward"] == pytest.approx(tokens[1] / details["forward_passes"], abs=1e-4)
    assert details["recipe"] == expected.recipe.label()
    assert details["ended_by"] in ("model", "canvas")


def test_a_streamed_chat(client, expected):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage = client.chat.completions.create(**CHAT, **options)
    first, last = chunks[0].choices[0], chunks[-1].choices[0]
    assert first.delta.role == "assistant"
    assert first.lastword["horizon"] == expected.horizon  # known before the first token
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected.text
    assert len(chunks) > 4
    assert last.finish_reason in ("stop", "length")
    assert all(chunk.usage is None for chunk in chunks)
    assert usage.choices == []
    assert usage.usage.completion_tokens == len(expected.tokens)
    assert usage.lastword["forward_passes"] == last.lastword["forward_passes"]


def test_a_stream_with_a_token_limit_and_without_usage(client):
    chunks = list(client.chat.completions.create(**BRIEF, stream=True, max_tokens=4))
    assert chunks[-1].choices[0].finish_reason == "length"
    assert chunks[-1].choices[0].lastword["ended_by"] == "cap"
    assert all(chunk.usage is None for chunk in chunks)


def test_message_parts_and_an_answer_that_is_sent_back(client):
    response = client.chat.completions.create(**BRIEF, max_completion_tokens=5)
    parts = [{"type": "text", "text": "Solve for n: "}, {"type": "text", "text": "n = 2."}]
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts},
        response.choices[0].message.model_dump(),
        {"role": "user", "content": "Again."},
    ]
    again = client.chat.completions.create(**BRIEF | {"messages": turns}, max_tokens=3)
    assert again.usage.prompt_tokens > response.usage.prompt_tokens
    assert again.usage.completion_tokens <= 3


@pytest.mark.parametrize("prompt", ["abc", [0, 1, 2]])
def test_a_completion_of_text_or_ids(toy_client, toy, prompt):
    response = toy_client.completions.create(prompt=prompt, **FIVE)
    assert response.choices[0].text == lastword.generate(toy, "abc", length="fixed:5").text == "defgh"
    assert response.choices[0].finish_reason == "length"
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (3, 5)


@pytest.mark.parametrize("prompts", [["abc", "x"], [[0, 1, 2], [23]]])
def test_several_prompts_with_several_answers(toy_client, toy, prompts):
    response = toy_client.completions.create(prompt=prompts, n=2, **FIVE)
    texts = [lastword.generate(toy, text, length="fixed:5").text for text in ("abc", "x") for _ in range(2)]
    assert [choice.index for choice in response.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in response.choices] == texts
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (4, 20)
    assert [choice.lastword["forward_passes"] for choice in response.choices] == [5, 5, 5, 5]
    assert (response.lastword["forward_passes"], response.lastword["horizon"]) == (20, 20)
    streamed, ends = [""] * 4, [None] * 4
    for chunk in toy_client.completions.create(prompt=prompts, n=2, stream=True, **FIVE):
        for choice in chunk.choices:
            assert ends[choice.index] is None  # nothing follows the end of a choice
            streamed[choice.index] += choice.text
            ends[choice.index] = choice.finish_reason
    assert (streamed, ends) == (texts, ["length"] * 4)


def test_seeds(toy_client):
    def sampled(**options):
        options = {"prompt": "abc", "n": 3, "temperature": 5.0, **FIVE, **options}
        choices = toy_client.completions.create(**options).choices
        seeds = [choice.lastword["seed"] for choice in choices]
        assert seeds == [*range(seeds[0], seeds[0] + 3)]
        return [choice.text for choice in choices], seeds

    assert sampled(seed=7) == sampled(seed=7)
    assert len(set(sampled(seed=7)[0])) > 1
    assert sampled(seed=8)[0][0] == sampled(seed=7)[0][1]
    assert sampled()[1] != sampled()[1]  # a random seed by default


def test_a_stop_string(toy_client):
    response = toy_client.completions.create(prompt="abc", stop=["gh", "zz"], **FIVE)
    assert (response.choices[0].text, response.choices[0].finish_reason) == ("def", "stop")
    assert response.choices[0].lastword["ended_by"] == "stop"
    assert response.usage.completion_tokens == 3
    chunks = toy_client.completions.create(prompt="abc", stop="gh", stream=True, **FIVE)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "def"


def test_values_without_effect_are_accepted(client):
    client.chat.completions.create(
        **BRIEF, max_tokens=2, n=1, temperature=0, top_p=0.9, frequency_penalty=0, presence_penalty=0.0,
        logit_bias={}, logprobs=False, tools=[], tool_choice="auto", response_format={"type": "text"},
        user="me", store=False, metadata={}, service_tier="auto", parallel_tool_calls=True, stop=[],
        modalities=["text"], seed=None, stream=False,
    )  # fmt: skip


def test_errors_have_the_types_of_the_client(toy_client, client):
    with pytest.raises(openai.BadRequestError) as invalid:
        toy_client.completions.create(model="toy", prompt="abc", logprobs=2)
    assert (invalid.value.param, invalid.value.type) == ("logprobs", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as invalid:
        toy_client.chat.completions.create(model="toy", messages=QUESTION)
    assert invalid.value.code == "no_chat_template"
    with pytest.raises(openai.NotFoundError) as missing:
        toy_client.completions.create(model="gpt-4", prompt="abc")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        toy_client.embeddings.create(model="toy", input="abc")
    with pytest.raises(openai.APIStatusError) as late:
        client.chat.completions.create(**CHAT | {"extra_body": {"timeout": 1e-3}})
    assert late.value.status_code in (503, 504)


def test_diffusing_sends_the_whole_canvas(client, expected):
    options = {**CHAT, "stream": True, "extra_body": {"recipe": "fast", "diffusing": True}}
    first, *frames, last = client.chat.completions.create(**options)
    assert first.choices[0].delta.content == ""
    assert last.choices[0].delta.content == expected.text  # it replaces the text before
    assert last.diffusion_meta == {"diffusion_content": expected.text, "diffusion_progress": 1.0}
    assert last.choices[0].finish_reason
    assert frames
    for chunk in frames:
        frame = chunk.choices[0].lastword["frame"]
        assert chunk.choices[0].delta.content == chunk.diffusion_meta["diffusion_content"]
        assert len(frame["texts"]) == len(frame["filled_at"]) == len(frame["confidence"])
        assert [text is None for text in frame["texts"]] == [at is None for at in frame["filled_at"]]
