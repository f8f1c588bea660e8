"""Conversion of bodies to engine requests and of events to responses, and the default recipe."""

import copy
import dataclasses
import json
import re

import pytest

import lastword
from lastword.decoding.sampling import Sampling
from lastword.errors import SettingError
from lastword.policies.length.wrappers import combined_traits
from lastword.recipe.registry import DEFAULT_RECIPE
from lastword.serve.app import SERVER_RECIPE, create_server, render_page
from lastword.serve.protocol import ChatRequest, CompletionRequest
from lastword.serve.request import InvalidRequestError
from lastword.serve.serving import MASK_SHADE, render_canvas, to_server_requests
from lastword.serve.settings import ServerSettings
from lastword.viz.frames import Frame

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
