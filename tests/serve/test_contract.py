"""The server conforms to its OpenAPI document for any request (schemathesis)."""

from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode, checks

from lastword.serve.settings import ServerSettings
from tests.serve.conftest import serving

CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
    checks.missing_required_header,
]
CHAT = "/v1/chat/completions"
# Fields whose values the document cannot describe completely.
CHECKED_BY_PARTS = ["recipe", "length", "interpretation", "n", "limit", "temperature", "top_p", "top_k", "timeout"]


@pytest.fixture(scope="module")
def published(toy, instruct):
    """Return the document of a path, from a server with short answers."""
    limits = ServerSettings(max_choices=2, max_horizon=6, timeout=5.0, drain_timeout=5.0)
    with serving(toy, settings=limits) as toys, serving(instruct, name="tiny", settings=limits) as chats:
        by_toy, by_chat = (schemathesis.openapi.from_url(f"{server.url}/openapi.json") for server in (toys, chats))
        yield lambda path: by_chat if path == CHAT else by_toy


def _make_valid(body, path):
    """Make half of the requests valid for the model; nearly all would be refused otherwise."""
    if len(str(body)) % 2:
        if path != CHAT:
            body["prompt"] = "abc"
            body.pop("messages", None)
        for name in CHECKED_BY_PARTS:
            body.pop(name, None)


def run(published, path, method, mode, examples):
    """Send requests that conform to the document, or do not, and check the responses."""
    operation = published(path)[path][method]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples < 100,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        if mode == GenerationMode.POSITIVE and isinstance(case.body, dict):
            _make_valid(case.body, path)
        response = case.call()
        seen[response.status_code] += 1
        assert response.status_code not in (500, 501, 502), response.text
        case.validate_response(response, checks=CHECKS)

    seen = Counter()
    ask()
    return seen


OPERATIONS = {
    CHAT: "POST",
    "/v1/completions": "POST",
    "/v1/lengths": "POST",
    "/v1/models": "GET",
    "/v1/models/{model}": "GET",
    "/live": "GET",
    "/ready": "GET",
    "/health": "GET",
    "/metrics": "GET",
}
POSTS = [path for path, method in OPERATIONS.items() if method == "POST"]


def test_every_path_is_described(published):
    document = published("/health")
    assert set(document) == set(OPERATIONS)
    for path, method in OPERATIONS.items():
        assert set(document[path]) == {method.lower()}


@pytest.mark.parametrize("path", OPERATIONS)
def test_responses_are_documented(published, path):
    examples = 3 if path not in POSTS else 12 if path == CHAT else 25
    seen = run(published, path, OPERATIONS[path], GenerationMode.POSITIVE, examples)
    assert seen[404 if path == "/v1/models/{model}" else 200]


@pytest.mark.parametrize("path", POSTS)
def test_requests_that_do_not_conform_are_refused(published, path):
    seen = run(published, path, "POST", GenerationMode.NEGATIVE, 25)
    assert not [status for status in seen if status < 400]


@pytest.mark.full
@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("path", POSTS)
def test_many_responses_are_documented(published, path, mode):
    run(published, path, "POST", mode, 150 if path == CHAT else 500)
