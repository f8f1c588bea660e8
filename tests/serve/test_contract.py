"""The server conforms to its OpenAPI document for any request (schemathesis)."""

from collections import Counter

import jsonschema_rs
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
# Fields whose values the document cannot describe completely, and fields that depend on others.
UNDESCRIBED = ["recipe", "length", "interpretation", "limit"]
DEPENDENT = ["max_new_tokens", "max_completion_tokens", "stream_options", "diffusing"]
IN_TIME = (503, 504)  # the deadline was too short


@pytest.fixture(scope="module")
def published(toy, instruct):
    """Return the document of a path, from a server with short answers."""
    limits = ServerSettings(max_choices=2, max_horizon=6, timeout=5.0, drain_timeout=5.0)
    with serving(toy, settings=limits) as toys, serving(instruct, name="tiny", settings=limits) as chats:
        by_toy, by_chat = (schemathesis.openapi.from_url(f"{server.url}/openapi.json") for server in (toys, chats))
        yield lambda path: by_chat if path == CHAT else by_toy


def _make_valid(body, path):
    """Make half of the requests valid for the model, and return whether this one is."""
    if len(str(body)) % 2 == 0:
        return False
    if path != CHAT:
        body["prompt"] = "abc"
        body.pop("messages", None)
    for name in UNDESCRIBED + DEPENDENT:
        body.pop(name, None)
    return True


def run(published, path, method, mode, examples):
    """Send requests that conform to the document, or do not, and check the responses."""
    operation = published(path)[path][method]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        is_positive = mode == GenerationMode.POSITIVE and isinstance(case.body, dict)
        is_valid = is_positive and _make_valid(case.body, path)
        response = case.call()
        is_too_long = "context_length_exceeded" in response.text
        assert not is_valid or is_too_long or response.status_code in (200, *IN_TIME), response.text
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


COMPLETIONS, LENGTHS = "/v1/completions", "/v1/lengths"
VALUES = {  # per path and field, values that must be valid in the document exactly if the server accepts them
    COMPLETIONS: {
        "prompt": ["", "a", [], ["a", ""], ["a", "b"], [1.0, 2], [1.5], [[1], [2.0]], [[]], [-1], None],
        "seed": [951.0, 951.5, -3, 9 * 10**18, -9 * 10**18, 9 * 10**18 + 1, 2**64, "1", True],
        "n": [0, 1, 2, 2.0, 3, None],
        "max_tokens": [0, 1, 4.0, 1.5, 10**15, 10**16],
        "temperature": [0, 0.0, 1e-7, 1e-6, 1, 2.5, -1, 1e300, None],
        "top_p": [0, 0.5, 1, 1.0, 1.5],
        "top_k": [0, 1, 3.0, 3.5, True, 2**20, 2**20 + 1],
        "timeout": [0, -1, 4.0, 5, 5.5],
        "logprobs": [0, 1, 1.0, 2, -1, False, True, None],
        "metadata": [{}, {"a": "b"}, {"a": 1}, {"a" * 65: ""}, {str(n): "" for n in range(17)}, None],
    },
    LENGTHS: {"prompt": ["", "a", [], [1.0], [1.5], None], "messages": [[], None], "limit": [0, 3, 3.0, 3.5]},
}
BODIES = [
    (path, {"model": "toy", "prompt": "abc", field: value})
    for path, fields in VALUES.items()
    for field, values in fields.items()
    for value in values
] + [(LENGTHS, {}), (LENGTHS, {"prompt": None, "messages": None}), (LENGTHS, {"prompt": "abc", "messages": None})]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_a_body_is_valid_in_the_document_if_the_server_accepts_it(published, path, body):
    document = published(path).raw_schema
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    is_valid = jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]}).is_valid(body)
    response = published(path)[path]["POST"].Case(body=body, media_type="application/json").call()
    assert response.status_code in ((200, *IN_TIME) if is_valid else (400,)), response.text
