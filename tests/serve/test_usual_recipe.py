"""The recipe of requests that name none, as the operator sets it."""

import json
import re

import pytest

import lastword
from lastword.errors import SettingError
from lastword.recipe.registry import DEFAULT_RECIPE
from lastword.serve import conversion as asked
from lastword.serve.app import SERVER_RECIPE, render_page
from lastword.serve.engine import Engine
from lastword.serve.protocol import CompletionRequest
from lastword.serve.settings import ServerSettings
from tests.serve.test_app import ask

FAST = lastword.Recipe.named("fast")


def job(model, limits, **given):
    request = CompletionRequest.model_validate({"model": "toy", "prompt": "abc", **given})
    return asked.to_server_requests(request, model, limits)[0]


def known(recipe):
    text = render_page(recipe)
    return json.loads(re.search(r'id="known">(.*?)</script>', text, re.S)[1])


def test_who_names_no_recipe_gets_the_servers(toy):
    limits = ServerSettings(recipe=FAST)
    assert job(toy, limits).recipe.unmask == FAST.unmask
    assert job(toy, ServerSettings()).recipe.unmask == lastword.Recipe().unmask
    assert job(toy, limits, recipe=DEFAULT_RECIPE).recipe == job(toy, ServerSettings()).recipe
    assert job(toy, limits, length="fixed:5").recipe.unmask == FAST.unmask
    named_only = ServerSettings(recipe=FAST, recipes=False)
    assert job(toy, named_only).recipe.unmask == FAST.unmask


def test_the_servers_recipe_is_told(toy):
    for limits in (ServerSettings(), ServerSettings(recipe=FAST)):
        engine = Engine(toy, limits)
        (reply,) = ask(engine, ("GET", "/v1/models", None))
        told = reply.json()["data"][0]["lastword"]["recipe"]
        assert told == job(toy, limits).recipe.label()


def test_the_page_begins_with_the_servers_recipe():
    assert known(None)["recipe"] == DEFAULT_RECIPE
    assert known(FAST)["recipe"] == "fast"
    own = lastword.Recipe(length=lastword.Fixed(7))
    assert known(own)["recipe"] == SERVER_RECIPE
    assert "fixed" not in known(own)["recipes"][SERVER_RECIPE]  # the page is shown to who has no key
    assert SERVER_RECIPE not in known(FAST)["recipes"]


def test_a_recipe_that_cannot_run_here_is_refused_before_the_server_listens(toy):
    with pytest.raises(SettingError, match="not calibrated"):
        Engine(toy, ServerSettings(recipe=lastword.Recipe(length=lastword.Calibrated())))
    longer = lastword.Recipe(length=lastword.Fixed(99))
    with pytest.raises(SettingError, match="99 slots, and a canvas may have 64"):
        Engine(toy, ServerSettings(recipe=longer, horizon=64))
