"""The official client against a live server: what it sends is understood, what it gets it understands."""

import openai
import pytest

import lastword


@pytest.fixture(scope="module")
def toy_client(live_toy):
    with openai.OpenAI(base_url=f"{live_toy.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def client(live_instruct):
    with openai.OpenAI(base_url=f"{live_instruct.url}/v1", api_key="none", max_retries=0) as client:
        yield client


QUESTION = [{"role": "user", "content": "Solve for n: 4n + 3 = 35."}]
CHAT = {"model": "tiny-llada-instruct", "messages": QUESTION, "extra_body": {"recipe": "fast"}}
BRIEF = {**CHAT, "extra_body": {"recipe": "fast", "length": "fixed:16"}}


@pytest.fixture(scope="module")
def solo(instruct):
    """What the library answers without any server."""
    return lastword.generate(instruct, QUESTION, recipe="fast")


def test_models(toy_client):
    assert [model.id for model in toy_client.models.list()] == ["toy"]
    assert toy_client.models.retrieve("toy").owned_by == "lastword"
    with pytest.raises(openai.NotFoundError) as refused:
        toy_client.models.retrieve("gpt")
    assert refused.value.code == "model_not_found"


def test_a_chat_is_answered_as_the_library_answers(client, solo):
    reply = client.chat.completions.create(**CHAT)
    (choice,) = reply.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == solo.text
    assert choice.finish_reason == ("stop" if solo.finish.name == "ENDED" else "length")
    assert reply.usage.prompt_tokens == len(solo.prompt)
    assert reply.usage.completion_tokens == len(solo.tokens)
    assert reply.usage.total_tokens == len(solo.prompt) + len(solo.tokens)
    ledger = reply.lastword
    assert ledger == choice.lastword
    assert ledger["horizon"] == solo.horizon
    assert ledger["predicted_length"] == pytest.approx(solo.lengths.mean.item(), abs=1e-3)
    assert set(ledger["quantiles"]) == {"0.5", "0.9"}
    assert ledger["forward_passes"] == solo.cost.forward_passes + solo.probe_cost.forward_passes
    assert ledger["tokens_computed"] == solo.cost.tokens_computed + solo.probe_cost.tokens_computed
    assert ledger["recipe"] == solo.recipe.label()
    assert ledger["ended_by"] in ("model", "canvas")
    assert ledger["tokens_per_forward"] == pytest.approx(
        len(solo.tokens) / ledger["forward_passes"], abs=1e-4
    )


def test_a_chat_streams_the_same_text_and_its_usage(client, solo):
    chunks = list(client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].lastword["horizon"] == solo.horizon  # known before the first token
    *_, last, usage = chunks
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == solo.text
    assert len(chunks) > 4  # it came in pieces
    assert last.choices[0].finish_reason in ("stop", "length")
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert usage.choices == []
    assert usage.usage.completion_tokens == len(solo.tokens)
    assert usage.lastword["forward_passes"] == last.choices[0].lastword["forward_passes"]


def test_a_stream_without_usage_ends_with_a_reason(client):
    chunks = list(client.chat.completions.create(**BRIEF, stream=True, max_tokens=4))
    assert chunks[-1].choices[0].finish_reason == "length"
    assert chunks[-1].choices[0].lastword["ended_by"] == "cap"
    assert all(chunk.usage is None for chunk in chunks)


def test_parts_and_an_answer_sent_back_are_taken(client):
    reply = client.chat.completions.create(**BRIEF, max_completion_tokens=5)
    parts = [{"type": "text", "text": "Solve for n: "}, {"type": "text", "text": "n = 2."}]
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts},
        reply.choices[0].message.model_dump(),
        {"role": "user", "content": "Again."},
    ]  # fmt: skip
    again = client.chat.completions.create(**BRIEF | {"messages": turns}, max_tokens=3)
    assert again.usage.prompt_tokens > reply.usage.prompt_tokens
    assert again.usage.completion_tokens <= 3


def test_a_developer_is_a_system_message_to_a_template_without_developers(client):
    def asked(role):
        messages = [{"role": role, "content": "Be brief."}, *QUESTION]
        return client.chat.completions.create(**BRIEF | {"messages": messages}).usage.prompt_tokens

    assert asked("developer") == asked("system")


def test_a_completion(toy_client, toy):
    reply = toy_client.completions.create(model="toy", prompt="abc", extra_body={"length": "fixed:5"})
    assert reply.choices[0].text == lastword.generate(toy, "abc", length="fixed:5").text == "defgh"
    assert reply.choices[0].finish_reason == "length"
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (3, 5)


FIVE = {"model": "toy", "extra_body": {"length": "fixed:5"}}


@pytest.mark.parametrize("prompt", ["abc", [0, 1, 2]])
def test_text_and_its_ids_are_one_prompt(toy_client, prompt):
    assert toy_client.completions.create(prompt=prompt, **FIVE).choices[0].text == "defgh"


def test_lists_of_prompts_and_several_answers(toy_client, toy):
    reply = toy_client.completions.create(prompt=["abc", "x"], n=2, **FIVE)
    expected = [lastword.generate(toy, text, length="fixed:5").text for text in ("abc", "x")]
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in reply.choices] == [expected[0]] * 2 + [expected[1]] * 2
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (4, 20)
    each = [choice.lastword for choice in reply.choices]
    assert [ledger["forward_passes"] for ledger in each] == [5, 5, 5, 5]
    assert reply.lastword["forward_passes"] == 20
    assert reply.lastword["horizon"] == 20
    ids = toy_client.completions.create(prompt=[[0, 1, 2], [23]], **FIVE)
    assert [choice.text for choice in ids.choices] == expected


def test_several_answers_stream_side_by_side(toy_client):
    options = {"prompt": ["abc", "x"], "n": 2, "stream": True, **FIVE}
    chunks = list(toy_client.completions.create(**options))
    texts, ends = [""] * 4, [None] * 4
    for chunk in chunks:
        for choice in chunk.choices:
            assert ends[choice.index] is None  # nothing comes behind the end
            texts[choice.index] += choice.text
            ends[choice.index] = choice.finish_reason
    whole = toy_client.completions.create(prompt=["abc", "x"], n=2, **FIVE)
    assert texts == [choice.text for choice in whole.choices]
    assert ends == ["length"] * 4


def test_seeds_repeat_and_choices_differ(toy_client):
    def asked(**more):
        options = {"prompt": "abc", "n": 3, "temperature": 5.0, **FIVE, **more}
        reply = toy_client.completions.create(**options)
        seeds = [choice.lastword["seed"] for choice in reply.choices]
        assert seeds == [*range(seeds[0], seeds[0] + 3)]
        return [choice.text for choice in reply.choices], seeds

    assert asked(seed=7) == asked(seed=7)
    assert len(set(asked(seed=7)[0])) > 1
    assert asked(seed=8)[0][0] == asked(seed=7)[0][1]
    assert asked()[1] != asked()[1]  # a fresh one where none was said


def test_a_stop_string_ends_the_text_before_it(toy_client):
    reply = toy_client.completions.create(prompt="abc", stop=["gh", "zz"], **FIVE)
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("def", "stop")
    assert reply.choices[0].lastword["ended_by"] == "stop"
    assert reply.usage.completion_tokens == 3
    chunks = toy_client.completions.create(prompt="abc", stop="gh", stream=True, **FIVE)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "def"


def test_what_clients_send_unasked_is_taken(client):
    client.chat.completions.create(
        **BRIEF, max_tokens=2, n=1, temperature=0, top_p=0.9, frequency_penalty=0, presence_penalty=0.0,
        logit_bias={}, logprobs=False, tools=[], tool_choice="auto", response_format={"type": "text"},
        user="me", store=False, metadata={}, service_tier="auto", parallel_tool_calls=True, stop=[],
        modalities=["text"], seed=None, stream=False,
    )  # fmt: skip


def test_errors_are_the_clients_own_kinds(toy_client):
    with pytest.raises(openai.BadRequestError) as refused:
        toy_client.completions.create(model="toy", prompt="abc", logprobs=2)
    assert refused.value.param == "logprobs"
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as refused:
        toy_client.chat.completions.create(model="toy", messages=QUESTION)
    assert refused.value.code == "no_chat_template"
    with pytest.raises(openai.NotFoundError) as missing:
        toy_client.completions.create(model="gpt-4", prompt="abc")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        toy_client.embeddings.create(model="toy", input="abc")


def test_a_deadline_that_passes_is_a_timeout_or_a_refusal(client):
    with pytest.raises(openai.APIStatusError) as late:
        client.chat.completions.create(**CHAT | {"extra_body": {"timeout": 1e-3}})
    assert late.value.status_code in (503, 504)


def test_diffusing_shows_whole_texts(client, solo):
    options = {**CHAT, "stream": True, "extra_body": {"recipe": "fast", "diffusing": True}}
    first, *snapshots, last = client.chat.completions.create(**options)
    assert first.choices[0].delta.content == ""
    assert last.choices[0].delta.content == solo.text  # it replaces what was there: nothing is added up
    assert last.diffusion_meta == {"diffusion_content": solo.text, "diffusion_progress": 1.0}
    assert last.choices[0].finish_reason
    shares = [chunk.diffusion_meta["diffusion_progress"] for chunk in snapshots]
    assert shares
    for chunk in snapshots:
        frame = chunk.choices[0].lastword["frame"]
        assert chunk.choices[0].delta.content == chunk.diffusion_meta["diffusion_content"]
        assert len(frame["texts"]) == len(frame["filled_at"]) == len(frame["confidence"])
        assert [text is None for text in frame["texts"]] == [at is None for at in frame["filled_at"]]


def test_keys(live, toy):
    server = live(toy, keys=["secret", "other"])
    url = f"{server.url}/v1"
    for key in ("secret", "other"):
        with openai.OpenAI(base_url=url, api_key=key) as client:
            assert client.models.list().data[0].id == "toy"
    with (
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        client.completions.create(model="toy", prompt="abc")
    assert refused.value.code == "invalid_api_key"
    assert refused.value.response.headers["WWW-Authenticate"] == "Bearer"
