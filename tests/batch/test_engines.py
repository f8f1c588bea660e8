"""The lines of a batch do not depend on the engine."""

import pytest

import lastword
from lastword.engines.local import LocalEngine, ModelSource
from lastword.engines.pool import WorkerPool
from lastword.engines.workers import ProcessWorkers
from lastword.models.toy import Toy
from tests.batch.batches import FIVE, read_lines, request_line, run, without_times, write_lines
from tests.engines.fake import WORKER, FakeBackend

LINES = [
    {"prompt": "abc", "id": "a"},
    b"no prompt",
    {"tokens": [1, 2, 3], "max_tokens": 2, "seed": 9},
    {"prompt": "hello there"},
]
REQUESTS = [
    request_line("a", {"model": "toy", "prompt": ["abc", "hello"], "n": 2}),
    request_line("b", {"model": "toy", "prompt": "abc", "stop": "f", "max_tokens": 4}),
    request_line("c", {"model": "toy", "prompt": "abc", "tools": [1]}),
    request_line("d", {"model": "toy", "prompt": "UPPER?"}),
]
WARM = lastword.Recipe(length=lastword.Survival(16), sampling=lastword.Sampling(temperature=2.0, top_k=5))


def written(engine, folder, lines, recipe=WARM):
    folder.mkdir()
    source = write_lines(folder / "p.jsonl", *lines)
    run(engine, source, folder / "a.jsonl", name="toy", recipe=recipe, max_batch_size=2)
    return without_times(read_lines(folder / "a.jsonl"))


@pytest.mark.parametrize("lines", [LINES, REQUESTS], ids=["lines", "openai"])
def test_a_pool_writes_the_lines_of_this_process(toy, tmp_path, lines):
    here = written(LocalEngine(toy), tmp_path / "here", lines)
    assert written(WorkerPool(FakeBackend(run=WORKER.run)), tmp_path / "there", lines) == here


@pytest.mark.parametrize("lines", [LINES, REQUESTS], ids=["lines", "openai"])
def test_equal_runs_give_equal_files(tmp_path, lines):
    """Also if tasks finish in another order; the probes of a pool do not depend on it."""
    many = [line for _ in range(20) for line in lines if isinstance(line, dict) and "custom_id" not in line] or lines
    content = set()
    for name in "abc":
        (tmp_path / name).mkdir()
        source = write_lines(tmp_path / name / "p.jsonl", *many)
        pool = WorkerPool(FakeBackend(run=WORKER.run, shuffle=True))
        run(pool, source, tmp_path / name / "a.jsonl", name="toy", recipe=WARM, max_batch_size=2)
        content.add((tmp_path / name / "a.jsonl").read_bytes())
    assert len(content) == 1


def test_times_are_written_on_request(toy, tmp_path):
    for lines, name in ((LINES, "a"), (REQUESTS, "b")):
        source = write_lines(tmp_path / f"{name}.jsonl", *lines)
        run(LocalEngine(toy), source, tmp_path / f"{name}-out.jsonl", name="toy", recipe=FIVE, times=True)
    assert read_lines(tmp_path / "a-out.jsonl")[0]["seconds"] > 0
    body = read_lines(tmp_path / "b-out.jsonl")[0]["response"]["body"]
    assert body["created"] > 1e9
    assert body["choices"][0]["lastword"]["seconds_decoding"] > 0


@pytest.mark.full
def test_processes_write_the_lines_of_this_process(toy, tmp_path):
    here = written(LocalEngine(toy), tmp_path / "here", REQUESTS)
    with WorkerPool(ProcessWorkers(ModelSource("toy"), 2)) as pool:
        assert written(pool, tmp_path / "there", REQUESTS) == here


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("fastapi", reason="needs the package fastapi")
    pytest.importorskip("uvicorn", reason="needs the package uvicorn")
    pytest.importorskip("httpx", reason="needs the package httpx")
    from tests.serve.conftest import serving

    with serving(Toy()) as found:
        yield f"{found.url}/v1"


def test_a_server_answers_plain_lines_like_this_process(server, toy, tmp_path):
    from lastword.engines.openai import OpenAIEngine

    here = written(LocalEngine(toy), tmp_path / "here", LINES)
    there = written(OpenAIEngine(server, "toy"), tmp_path / "there", LINES)
    for name in ("index", "id", "text", "tokens", "prompt_tokens", "seed", "horizon", "forward_passes"):
        assert [line[name] for line in there] == [line[name] for line in here], name
    assert [line["failed"] is None for line in there] == [True, False, True, True]


def test_a_server_answers_requests_like_this_process(server, toy, tmp_path):
    from lastword.engines.openai import OpenAIEngine

    here = written(LocalEngine(toy), tmp_path / "here", REQUESTS, FIVE)
    there = written(OpenAIEngine(server, "toy"), tmp_path / "there", REQUESTS, FIVE)
    for ours, theirs in zip(here[:2], there[:2]):
        ours, theirs = (one["response"]["body"] for one in (ours, theirs))
        assert theirs["usage"] == ours["usage"]
        for mine, other in zip(ours["choices"], theirs["choices"], strict=True):
            assert (other["text"], other["finish_reason"]) == (mine["text"], mine["finish_reason"])
            assert other["lastword"]["seed"] == mine["lastword"]["seed"]
    assert [line["response"]["status_code"] for line in here] == [200, 200, 400, 400]
    assert [line["response"]["status_code"] for line in there] == [200, 200, 400, 500]
    assert "cannot encode" in there[3]["response"]["body"]["error"]["message"]
