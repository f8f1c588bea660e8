"""The published OpenAPI document: does the server keep to it, whatever it is sent?"""

from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode, checks

from lastword.serve.limits import Limits
from tests.serve.conftest import serving

PROMISED = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
    checks.missing_required_header,
]
KEY = "secret"


@pytest.fixture(scope="module")
def published(toy):
    """Small answers, so that many fit in a test."""
    limits = Limits(answers=2, horizon=6, seconds=5.0, drain=5.0)
    with serving(toy, limits=limits, keys=[KEY]) as server:
        document = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        yield document


def _read_by_the_toy(body):
    """Half of what fits the document asks for what the toy can do, else it would refuse nearly all."""
    if len(str(body)) % 2:
        if "prompt" in body:
            body["prompt"] = "abc"
        for name in (
            "recipe",
            "length",
            "reading",
            "n",
            "limit",
            "temperature",
            "top_p",
            "timeout",
        ):
            body.pop(name, None)


def run(published, path, method, mode, examples):
    """Requests that fit the document, or that do not, and what it says of the answers."""
    operation = published[path][method]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        if mode == GenerationMode.POSITIVE and isinstance(case.body, dict):
            _read_by_the_toy(case.body)
        response = case.call(headers={"Authorization": f"Bearer {KEY}"})
        seen[response.status_code] += 1
        assert response.status_code not in (500, 501, 502), response.text
        case.validate_response(response, checks=PROMISED)

    seen = Counter()
    ask()
    return seen


OPERATIONS = {
    "/v1/chat/completions": "POST",
    "/v1/completions": "POST",
    "/v1/lengths": "POST",
    "/v1/models": "GET",
    "/v1/models/{model}": "GET",
    "/health": "GET",
    "/metrics": "GET",
}
READING = [path for path, method in OPERATIONS.items() if method == "POST"]


def test_every_path_is_described(published):
    assert set(published) == set(OPERATIONS)
    for path, method in OPERATIONS.items():
        assert set(published[path]) == {method.lower()}


@pytest.mark.parametrize("path", OPERATIONS)
def test_no_answer_is_undocumented(published, path):
    examples = 25 if path in READING else 3
    seen = run(published, path, OPERATIONS[path], GenerationMode.POSITIVE, examples)
    if path not in ("/v1/chat/completions", "/v1/models/{model}"):  # the toy has no chat template
        assert seen[200]


@pytest.mark.parametrize("path", READING)
def test_what_does_not_fit_is_refused(published, path):
    seen = run(published, path, "POST", GenerationMode.NEGATIVE, 25)
    assert not [status for status in seen if status < 400]


@pytest.mark.full
@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("path", READING)
def test_no_answer_is_undocumented_of_many(published, path, mode):
    run(published, path, "POST", mode, 500)
