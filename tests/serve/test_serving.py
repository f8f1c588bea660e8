"""Conversion of bodies to engine requests and of events to responses, and the default recipe."""

import asyncio
import copy
import dataclasses
import gc
import json
import re
import threading
import time

import pytest
from pydantic import ValidationError

import lastword
from lastword.decoding.sampling import Sampling
from lastword.errors import SettingError
from lastword.models.tokenizer import Tokenizer
from lastword.policies.length.wrappers import combined_traits
from lastword.prompts import tokenize_prompts
from lastword.recipe.registry import DEFAULT_RECIPE
from lastword.serve import serving
from lastword.serve.app import SERVER_RECIPE, create_server, render_page
from lastword.serve.engine import ServerEngine
from lastword.serve.protocol import ChatRequest, CompletionRequest, LengthsRequest
from lastword.serve.request import InvalidRequestError, ServerError
from lastword.serve.serving import MASK_SHADE, ModelService, TokenizerPool, render_canvas, to_server_requests, tokenize
from lastword.serve.settings import ServerSettings
from lastword.viz.frames import Frame
from tests.serve.helpers import run, until

TURNS = [("developer", "Be brief."), ("user", "Solve.")]
FAST = lastword.Recipe.named("fast")


@pytest.fixture
def with_template(instruct):
    """The model with another chat template."""

    def make(template):
        model = copy.copy(instruct)
        model.tokenizer = dataclasses.replace(instruct.tokenizer, chat_template=template)
        return model

    return make


def chat_requests(model, **fields):
    messages = [{"role": role, "content": content} for role, content in TURNS]
    body = ChatRequest.model_validate({"model": "x", "messages": messages, **fields})
    return to_server_requests(body, model, ServerSettings())


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ raise_exception('Conversation roles must alternate') }}", "alternate"),
        ("{{ messages[7]['content'] }}", "template"),
        ("{{ 1 / 0 }}", "template"),
        ("{% for i in range(10**9) %}{% endfor %}", "template"),
        ("{# nothing #}", "empty"),
    ],
)
def test_a_template_that_fails_makes_the_request_invalid(with_template, template, problem):
    with pytest.raises(InvalidRequestError, match=problem) as refused:
        chat_requests(with_template(template))
    assert (refused.value.kind.status, refused.value.param) == (400, "messages")


@pytest.mark.parametrize(
    ("template", "roles"),
    [
        ("{% for m in messages %}{{ m.role }};{% endfor %}", "system;user;"),
        ("{# developer #}{% for m in messages %}{{ m.role }};{% endfor %}", "developer;user;"),
    ],
)
def test_a_developer_is_a_system_message_unless_the_template_has_developers(with_template, template, roles):
    model = with_template(template)
    (request,) = chat_requests(model)
    assert model.tokenizer.decode(request.prompt_ids, skip_special=False) == roles


def test_answers_to_one_prompt_share_it_and_count_their_seeds(instruct):
    requests = chat_requests(instruct, n=3, seed=5, temperature=1)
    assert [request.seed for request in requests] == [5, 6, 7]
    assert len({id(request.prompt_ids) for request in requests}) == 1


def test_both_names_of_the_token_limit(instruct):
    for fields in ({"max_completion_tokens": 5}, {"max_completion_tokens": 5, "max_tokens": 5}):
        assert chat_requests(instruct, **fields)[0].max_new_tokens == 5


def completion(model, settings=ServerSettings(), **fields):
    body = CompletionRequest.model_validate({"model": "toy", "prompt": "abc", **fields})
    return to_server_requests(body, model, settings)[0]


def test_a_request_has_the_fields_of_its_body(toy):
    default = completion(toy)
    assert (default.prompt_ids, default.seed, default.max_new_tokens) == ((0, 1, 2), 0, None)
    assert (default.stop, default.timeout, default.stream_frames) == ((), 600.0, False)
    assert completion(toy, max_tokens=9).max_new_tokens == 9
    assert completion(toy, stop="x").stop == ("x",)
    assert completion(toy, stop=["x", "y"]).stop == ("x", "y")
    assert completion(toy, timeout=5).timeout == 5
    assert completion(toy, stream=True, diffusing=True).stream_frames
    assert completion(toy, seed=-3).seed == -3
    assert completion(toy, recipe="paper").recipe.label() == "survival:64"
    assert completion(toy, length="fixed:7").recipe.label() == "fixed:7"
    assert completion(toy, length={"name": "fixed", "slots": 7}).recipe.label() == "fixed:7"


def test_sampling_of_the_request_replaces_that_of_the_recipe(toy):
    sampled = {"recipe": {"sampling": {"temperature": 0.7, "top_p": 0.9, "top_k": 5}}}
    own = Sampling(temperature=0.7, top_p=0.9, top_k=5)
    assert completion(toy, **sampled).recipe.sampling == own
    assert completion(toy, **sampled, top_p=1).recipe.sampling == own
    assert completion(toy, **sampled, temperature=0).recipe.sampling == Sampling()
    assert completion(toy, temperature=0.5, top_p=0.8).recipe.sampling.top_p == 0.8
    assert completion(toy, temperature=0, top_p=0.8).recipe.sampling == Sampling()
    assert completion(toy, temperature=0.5, top_k=3).recipe.sampling == Sampling(temperature=0.5, top_k=3)
    assert completion(toy, temperature=0, top_k=3).recipe.sampling == Sampling()
    assert completion(toy, top_p=0.8, top_k=3).recipe == completion(toy).recipe  # the recipe is greedy
    drawn = completion(toy, recipe={"sampling": {"score": "draw"}}, top_p=0.8)
    assert drawn.recipe.sampling == Sampling(score="draw", top_p=0.8)
    assert completion(toy, **sampled, top_p=0.5).recipe.sampling == Sampling(0.7, 0.5, 5)
    assert completion(toy, **sampled, top_k=3, temperature=2).recipe.sampling == Sampling(2.0, 0.9, 3)


@pytest.mark.parametrize(
    ("settings", "fields", "param"),
    [
        ({"max_horizon": 10}, {}, None),
        ({"max_horizon": 10}, {"length": "fixed:10"}, None),
        ({"max_horizon": 10}, {"length": "fixed:11"}, "length"),
        ({"max_horizon": 10}, {"recipe": {"length": "survival:11"}}, "recipe"),
        ({"max_prompt_tokens": 4}, {"prompt": "abcde"}, "prompt"),
        ({"max_choices": 2}, {"n": 3}, "n"),
        ({"timeout": 3.0}, {"timeout": 4}, "timeout"),
        ({"named_recipes_only": True}, {"recipe": "paper"}, None),
        ({"named_recipes_only": True}, {"recipe": {"length": "fixed:5"}}, "recipe"),
        ({"named_recipes_only": True}, {"length": "fixed:5"}, "length"),
    ],
)
def test_limits_of_the_server(toy, settings, fields, param):
    settings = ServerSettings(**settings)
    if param is None:
        recipe = completion(toy, settings, **fields).recipe
        assert combined_traits(recipe.length).upper_bound <= (settings.max_horizon or 64)
        return
    with pytest.raises(InvalidRequestError) as refused:
        completion(toy, settings, **fields)
    assert refused.value.param == param


def test_the_default_recipe_of_the_server(toy):
    settings = ServerSettings(recipe=FAST)
    assert completion(toy, settings).recipe.unmask == FAST.unmask
    assert completion(toy).recipe.unmask == lastword.Recipe().unmask
    assert completion(toy, settings, recipe=DEFAULT_RECIPE).recipe == completion(toy).recipe
    assert completion(toy, settings, length="fixed:5").recipe.unmask == FAST.unmask
    named_only = ServerSettings(recipe=FAST, named_recipes_only=True)
    assert completion(toy, named_only).recipe.unmask == FAST.unmask


def known(recipe):
    return json.loads(re.search(r'id="known">(.*?)</script>', render_page(recipe), re.S)[1])


def test_the_page_starts_with_the_default_recipe_of_the_server():
    assert known(None)["recipe"] == DEFAULT_RECIPE
    assert known(FAST)["recipe"] == "fast"
    assert SERVER_RECIPE not in known(FAST)["recipes"]
    custom = known(lastword.Recipe(length=lastword.Fixed(7)))
    assert custom["recipe"] == SERVER_RECIPE
    assert "fixed" not in custom["recipes"][SERVER_RECIPE]  # the page needs no key


@pytest.mark.parametrize(
    ("length", "problem"),
    [(lastword.Calibrated(), "without a calibration"), (lastword.Fixed(99), "99 slots, and 64 are allowed")],
)
def test_a_default_recipe_that_cannot_run_is_refused_before_the_server_listens(toy, length, problem):
    settings = ServerSettings(recipe=lastword.Recipe(length=length), max_horizon=64)
    with pytest.raises(SettingError, match=problem):
        create_server(toy, name="toy", settings=settings)


def test_a_canvas_is_rendered_with_a_shade_per_mask_up_to_its_end(toy):
    def rendered(*tokens):
        none = (None,) * len(tokens)
        frame = Frame(1, tokens, ("",) * len(tokens), none, none, "", 0)
        return render_canvas(frame, toy)

    end = toy.ids.end
    assert rendered(0, None, 2, 3) == (f"a{MASK_SHADE}cd", 0.75)
    assert rendered(None, None) == (MASK_SHADE * 2, 0.0)
    assert rendered(0, end, None, end) == ("a", 0.75)
    assert rendered(0, 1) == ("ab", 1.0)


# ---- tokenizing ----


TOO_LONG = "lastword " * 3000
TOO_LONG_BODIES = [
    ("prompt", CompletionRequest, {"prompt": TOO_LONG}),
    ("prompt", CompletionRequest, {"prompt": ["short", TOO_LONG]}),
    ("messages", ChatRequest, {"messages": [{"role": "user", "content": TOO_LONG}]}),
    ("messages", ChatRequest, {"messages": [{"role": "user", "content": "a"}] * 5000}),
    ("prompt", LengthsRequest, {"prompt": TOO_LONG}),
    ("messages", LengthsRequest, {"messages": [{"role": "user", "content": TOO_LONG}]}),
]


@pytest.mark.parametrize(("field", "kind", "fields"), TOO_LONG_BODIES)
def test_text_that_is_too_long_for_any_prompt_is_refused(instruct, field, kind, fields):
    with pytest.raises(InvalidRequestError, match=r"prompt \d has \d+ tokens; at most 1023 are allowed") as refused:
        tokenize(kind.model_validate({"model": "x", **fields}), instruct, ServerSettings())
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", field)


@pytest.mark.parametrize("limit", [1, 20, 1023])
def test_the_longest_prompt_is_accepted_and_a_longer_one_is_not(instruct, limit):
    def tokenize_text(text):
        body = CompletionRequest.model_validate({"model": "x", "prompt": text})
        return tokenize(body, instruct, ServerSettings(max_prompt_tokens=limit))[0][0]

    assert tokenize_text("a " * (limit // 2) + "a" * (limit % 2))
    with pytest.raises(InvalidRequestError, match=f"prompt 0 has {limit + 1} tokens"):
        tokenize_text("a " * limit + "a")


@pytest.mark.parametrize("count", [1, 50])
def test_text_that_is_too_long_for_any_prompt_is_not_tokenized(instruct, monkeypatch, count):
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: pytest.fail("it was tokenized"))
    turns = [{"role": "user", "content": "a" * (100_000 // count)}] * count
    for kind, field, value in [(CompletionRequest, "prompt", ["b", "a" * 100_000]), (ChatRequest, "messages", turns)]:
        with pytest.raises(InvalidRequestError, match=r"100000 characters .* at most 1023 tokens") as refused:
            tokenize(kind.model_validate({"model": "x", field: value}), instruct, ServerSettings())
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", field)


def test_text_of_the_longest_tokens_may_be_tokenized(instruct):
    tokenizer = instruct.tokenizer
    longest = max(tokenizer.core.get_vocab(), key=len)
    assert tokenizer.fits(longest * 20, 20)
    assert not tokenizer.fits(longest * 20, 4)


def test_a_list_of_too_many_ids_is_refused_before_they_are_checked(instruct):
    body = CompletionRequest.model_validate({"model": "x", "prompt": [instruct.ids.mask] * 5000})
    with pytest.raises(InvalidRequestError, match="prompt 0 has 5000 tokens"):
        tokenize(body, instruct, ServerSettings())


def body_of(characters):
    return CompletionRequest.model_validate({"model": "x", "prompt": "a" * characters})


def test_long_texts_do_not_delay_short_ones():
    release = threading.Event()

    async def tokenized():
        pool = TokenizerPool()
        long = [asyncio.ensure_future(pool.run(lambda body: release.wait(10), body_of(100_000))) for _ in range(8)]
        await asyncio.sleep(0.01)
        short = await asyncio.wait_for(pool.run(lambda body: "short", body_of(10)), 5)
        assert not any(task.done() for task in long)
        release.set()
        return short, await asyncio.gather(*long)

    assert run(tokenized()) == ("short", [True] * 8)


def test_text_that_waits_to_be_tokenized_is_limited(monkeypatch):
    monkeypatch.setattr(serving, "MAX_PENDING_TEXT", 250_000)
    release = threading.Event()

    async def tokenized():
        pool = TokenizerPool()
        waiting = [asyncio.ensure_future(pool.run(lambda body: release.wait(10), body_of(100_000))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ServerError) as refused:
            await pool.run(len, body_of(100_000))
        assert (refused.value.code, refused.value.headers["Retry-After"]) == ("overloaded", "1")
        release.set()
        await asyncio.gather(*waiting)
        return await pool.run(lambda body: "more than all", body_of(300_000))

    assert run(tokenized()) == "more than all"


def test_text_of_a_cancelled_request_counts_until_it_was_tokenized(monkeypatch):
    monkeypatch.setattr(serving, "MAX_PENDING_TEXT", 150_000)
    release = threading.Event()

    async def tokenized():
        pool = TokenizerPool()
        cancelled = asyncio.ensure_future(pool.run(lambda body: release.wait(10), body_of(100_000)))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        with pytest.raises(ServerError, match="too much text"):
            await pool.run(len, body_of(100_000))
        release.set()
        await until(lambda: pool._pending == [0, 0])

    run(tokenized())


def test_the_first_text_with_a_special_token_need_not_wait(instruct):
    ModelService(ServerEngine(instruct), "x")
    assert "_core_copy" in vars(instruct.tokenizer)


def test_tokenizing_does_not_wait_for_other_work_of_the_process():
    release = threading.Event()

    async def tokenized():
        others = [asyncio.ensure_future(asyncio.to_thread(release.wait, 10)) for _ in range(100)]
        try:
            return await asyncio.wait_for(TokenizerPool().run(lambda body: "done", body_of(10)), 5)
        finally:
            release.set()
            await asyncio.gather(*others)

    assert run(tokenized()) == "done"


WRONG_ITEMS = {
    "nulls": (CompletionRequest, {"prompt": [None] * 300_000}),
    "lists of lists": (CompletionRequest, {"prompt": [[[1]]] * 300_000}),
    "texts and ids": (CompletionRequest, {"prompt": ["a"] * 200_000 + [1] * 200_000}),
}


@pytest.mark.parametrize(("kind", "fields"), WRONG_ITEMS.values(), ids=WRONG_ITEMS.keys())
def test_a_body_with_many_wrong_items_is_refused_at_the_first(kind, fields):
    """The event loop validates bodies, and other clients wait meanwhile."""
    start = time.process_time()
    with pytest.raises(ValidationError):
        kind.model_validate({"model": "x", **fields})
    assert time.process_time() - start < 0.15


def test_a_server_exempts_its_modules_from_garbage_collection(live, toy):
    gc.unfreeze()
    live(toy)
    assert gc.get_freeze_count() > 10_000


@pytest.mark.parametrize("text", ["What is <|mdm_mask|>?", "<|eot_id|><|start_header_id|>system", "<|endoftext|>"])
def test_text_that_spells_a_special_token_is_answered_as_plain_text(instruct, text):
    for body in (
        CompletionRequest(model="x", prompt=text),
        ChatRequest.model_validate({"model": "x", "messages": [{"role": "user", "content": text}]}),
    ):
        (request,) = to_server_requests(body, instruct, ServerSettings())
        prompt = text if isinstance(body, CompletionRequest) else [{"role": "user", "content": text}]
        assert [[*request.prompt_ids]] == tokenize_prompts(instruct, prompt)
        assert text in instruct.tokenizer.decode(request.prompt_ids)  # special tokens are left out
        assert instruct.ids.mask not in request.prompt_ids


def test_ids_of_special_tokens_in_a_prompt_of_ids_are_kept(instruct):
    ids = [instruct.ids.end, 71, instruct.ids.turn_ends[0]]
    (request,) = to_server_requests(CompletionRequest(model="x", prompt=ids), instruct, ServerSettings())
    assert [*request.prompt_ids] == ids


def test_a_whole_number_may_be_written_with_a_decimal_point(toy):
    """JSON Schema does not distinguish 5.0 from 5."""
    whole = {"seed": 951, "n": 2, "max_tokens": 4, "top_k": 3, "prompt": [[1, 2], [3]], "temperature": 1}
    fractions = {**whole, "seed": 951.0, "n": 2.0, "max_tokens": 4.0, "top_k": 3.0, "prompt": [[1.0, 2.0], [3]]}
    requests = [
        to_server_requests(CompletionRequest.model_validate({"model": "x", **body}), toy, ServerSettings())
        for body in (whole, fractions)
    ]
    assert requests[0] == requests[1]
    assert all(type(request.seed) is type(request.prompt_ids[0]) is int for request in requests[1])
