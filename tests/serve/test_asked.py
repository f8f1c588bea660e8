"""From requests to jobs, and from answers to replies, without a server."""

import copy
import dataclasses

import pytest

from lastword.serve import conversion as asked
from lastword.serve.conversion import MASK_SHADE, render_canvas
from lastword.serve.protocol import ChatRequest, InvalidRequestError
from lastword.serve.settings import ServerSettings
from lastword.viz.frames import Frame

TURNS = [("developer", "Be brief."), ("user", "Solve.")]


@pytest.fixture
def with_template(instruct):
    """The model with another chat template."""

    def make(template):
        tokenizer = dataclasses.replace(instruct.tokenizer, chat_template=template)
        model = copy.copy(instruct)
        model.tokenizer = tokenizer
        return model

    return make


def jobs(model, **more):
    messages = [{"role": role, "content": content} for role, content in TURNS]
    request = ChatRequest.model_validate({"model": "x", "messages": messages, **more})
    return asked.to_server_requests(request, model, ServerSettings())


def text_of(model, job):
    return model.tokenizer.decode(job.prompt, skip_special=False)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('Conversation roles must alternate') }}",
        "{{ messages[7]['content'] }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10**9) %}{% endfor %}",
    ],
)
def test_what_a_template_refuses_is_the_requests_mistake(with_template, template):
    with pytest.raises(InvalidRequestError) as refused:
        jobs(with_template(template))
    assert (refused.value.status, refused.value.param) == (400, "messages")


def test_a_template_that_gives_nothing_gives_no_prompt(with_template):
    with pytest.raises(InvalidRequestError, match="empty"):
        jobs(with_template("{# nothing #}"))


@pytest.mark.parametrize(
    ("template", "role"),
    [
        ("{% for m in messages %}{{ m.role }};{% endfor %}", "system;user;"),
        ("{# developer #}{% for m in messages %}{{ m.role }};{% endfor %}", "developer;user;"),
    ],
)
def test_roles_are_those_that_the_template_knows(with_template, template, role):
    model = with_template(template)
    assert text_of(model, jobs(model)[0]) == role


def test_jobs_of_one_prompt_share_it_and_count_their_seeds(instruct):
    several = jobs(instruct, n=3, seed=5, temperature=1)
    assert [job.seed for job in several] == [5, 6, 7]
    assert len({id(job.prompt) for job in several}) == 1
    assert all(job.in_chat for job in several)


def test_both_names_of_a_cap_may_agree(instruct):
    assert jobs(instruct, max_tokens=5, max_completion_tokens=5)[0].most == 5
    assert jobs(instruct, max_completion_tokens=5)[0].most == 5


def test_a_canvas_is_drawn_with_a_shade_for_each_mask_up_to_its_end(toy):
    def frame(*tokens):
        none = (None,) * len(tokens)
        return Frame(1, tokens, ("",) * len(tokens), none, none, "", 0)

    end = toy.ids.end
    assert render_canvas(frame(0, None, 2, 3), toy.tokenizer, toy.ids.ends) == (f"a{MASK_SHADE}cd", 0.75)
    assert render_canvas(frame(None, None), toy.tokenizer, toy.ids.ends) == (MASK_SHADE * 2, 0.0)
    assert render_canvas(frame(0, end, None, end), toy.tokenizer, toy.ids.ends) == ("a", 0.75)
    assert render_canvas(frame(0, 1), toy.tokenizer, toy.ids.ends) == ("ab", 1.0)
