"""A line without a valid prompt fails alone with the reason; a file without any prompt is rejected."""

import json
import sys

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from lastword.errors import ExtraError, PromptError
from lastword.io.schema import parse_json
from tests.batch.batches import EchoEngine, answer, read_lines, request_line, run, write_lines

GOOD = {"prompt": "abc", "source": "a book", "commit": "0a1b2c", "block": 3, "lengths": [1]}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "line 2: it is not JSON"),
        (b'{"prompt": NaN}', "line 2: it is not JSON"),
        (b"\xff\xfe", "line 2: it is not UTF-8"),
        (b"[" * 10_000, "line 2: it is not JSON"),
        ("abc", 'line 2: it is not an object with a "prompt"'),
        ([1, 2], 'it is not an object with a "prompt"'),
        ({}, "it has no field prompt, messages or tokens; it has none"),
        ({"Prompt": "x"}, "it has no field prompt, messages or tokens; it has 'Prompt'"),
        ({"prompt": None}, "it has no field prompt"),
        ({"prompt": "a", "tokens": [1]}, "it has prompt and tokens; give one of them"),
        ({"prompt": ""}, "prompt.text: String should have at least 1 character"),
        ({"prompt": 3}, "prompt: Input should be text, a list of token ids, or chat messages"),
        ({"prompt": "a", "seed": 1.5}, "seed: Input should be a valid integer"),
        ({"prompt": "a", "seed": 2**63}, "seed: Input should be less than"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens: Input should be a valid integer"),
        ({"prompt": "a", "id": [1]}, "id"),
        ({"prompt": "a", "max_new_tokens": 0}, "max_new_tokens: Input should be greater than or equal to 1"),
        ({"prompt": "a", "max_tokens": 3, "max_new_tokens": 4}, "were given; give one of them"),
        ({"prompt": "a", "temperature": -0.5}, "temperature: give 0 or a number of at least 1e-06"),
        ({"prompt": "a", "temperature": "hot"}, "temperature: give 0 or a number of at least 1e-06"),
        ({"prompt": "a", "top_p": 2, "temperature": 1}, "top_p: Input should be less than or equal to 1"),
        ({"prompt": "a", "top_k": 0}, "top_k: Input should be greater than or equal to 1"),
        ({"prompt": "a", "stop": ""}, "stop"),
        ({"prompt": "a", "recipe": "fastest"}, "there is no recipe called 'fastest'"),
        ({"prompt": "a", "length": "fixd:5"}, "did you mean 'fixed'"),
        ({"prompt": "a", "length": "fixed:0"}, "slots must be a whole number, 1 or more"),
        ({"prompt": "a", "n": 3}, "n cannot be set, because a line has one answer"),
        ({"prompt": "a", "temprature": 1}, "temprature is not a setting of a line; did you mean temperature?"),
        ({"prompt": "a", "gen_length": 8}, "gen_length is not a setting of a line; use max_new_tokens, length"),
        ({"prompt": "a", "unmask": "threshold:0.5"}, "unmask is not a setting of a line"),
        ({"tokens": []}, "tokens: List should have at least 1 item"),
        ({"tokens": [1, "a"]}, "tokens.1: Input should be a valid integer"),
        ({"tokens": [10_000]}, "10000"),
        ({"tokens": [27]}, "mask"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
        ({"messages": [{"role": "user", "content": "a"}]}, "no chat template"),
        ({"prompt": "A?"}, "cannot encode"),
        (request_line("a", {}), "it has no field prompt, messages or tokens"),
    ],
)
def test_an_invalid_line_fails_alone(toy, tmp_path, line, reason):
    found, summary = answer(toy, write_lines(tmp_path / "p.jsonl", GOOD, line, GOOD), tmp_path / "a.jsonl")
    assert [one["failed"] is None for one in found] == [True, False, True]
    assert reason in found[1]["failed"]
    assert found[1]["failed"].startswith("line 2: ")
    assert found[1]["text"] is None
    assert (summary.answered, summary.failed) == (2, 1)


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"tools": [{}]}, 400, "unsupported_field"),
        ({"top_q": 1}, 400, "unknown_field"),
        ({"temperature": -1}, 400, "invalid_request"),
        ({"stream": True}, 400, "unsupported_field"),
        ({"timeout": 3}, 400, "unsupported_field"),
        ({"logprobs": 0}, 400, "unsupported_field"),
        ({"model": "gpt"}, 404, "model_not_found"),
        ({"n": 100}, 400, "invalid_request"),
        ({"length": "fixed:5000"}, 400, "invalid_request"),
        ({"recipe": "fastest"}, 400, "invalid_request"),
        ({"messages": None}, 400, "invalid_request"),
        ({"messages": [{"role": "user", "content": "hi"}]}, 400, "no_chat_template"),
        ({"prompt": [1, 2, 99]}, 400, "invalid_request"),
    ],
)
def test_an_invalid_request_has_a_status(toy, tmp_path, change, status, code):
    body = {"model": "m", "prompt": "abc"}
    good = request_line("good", body)
    bad = request_line("bad", body | change)
    if "messages" in change or "tools" in change:
        bad = request_line("bad", {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | change)
    source = write_lines(tmp_path / "p.jsonl", good, bad)
    run(EchoEngine(toy), source, tmp_path / "a.jsonl", name="m")
    first, second = read_lines(tmp_path / "a.jsonl")
    assert (first["custom_id"], first["response"]["status_code"]) == ("good", 200)
    assert (second["custom_id"], second["error"]) == ("bad", None)
    assert second["response"]["status_code"] == status
    assert second["response"]["body"]["error"]["code"] == code


@pytest.mark.parametrize(
    "line",
    [
        b"{", GOOD, {"custom_id": "x"}, request_line("x", {}, "/v1/embeddings"), request_line("x", 3),
        request_line("x", "{"), request_line("", {}), {**request_line("x", {}), "method": "GET"},
        {**request_line("x", {}), "more": 1},
    ],
)  # fmt: skip
def test_a_line_without_a_request_is_an_error_of_the_line(toy, tmp_path, line):
    good = request_line("good", {"model": "m", "prompt": "abc"})
    run(EchoEngine(toy), write_lines(tmp_path / "p.jsonl", good, line), tmp_path / "a.jsonl", name="m")
    second = read_lines(tmp_path / "a.jsonl")[1]
    assert second["response"] is None
    assert second["error"]["code"] == "invalid_line"
    assert second["error"]["message"].startswith("line 2: ")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("p.jsonl", b"", "has no prompts"),
        ("p.jsonl", b"\n \n\r\n", "has no prompts"),
        ("p.jsonl", b"my notes\nmore\n", "none of its 2 lines is one. line 1: it is not JSON"),
        ("p.jsonl", b'{"text": "a"}\n', "it has no field prompt, messages or tokens"),
        ("p.jsonl", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "has no prompts: none of its"),
        ("p.parquet", b"PAR1 not at all", "cannot be read"),
        ("p.parquet", b"", "cannot be read"),
        ("p.json", b"[]", "give prompts as .jsonl"),
        ("p.txt", b"a prompt", "give prompts as .jsonl"),
    ],
)
def test_a_file_without_prompts_is_rejected_before_anything_is_written(toy, tmp_path, name, content, reason):
    pytest.importorskip("pyarrow", reason="needs the package pyarrow")
    (tmp_path / name).write_bytes(content)
    engine = EchoEngine(toy)
    with pytest.raises(PromptError) as rejected:
        run(engine, tmp_path / name, tmp_path / "a.jsonl", name="m")
    assert reason in str(rejected.value)
    assert not engine.num_requests
    assert not (tmp_path / "a.jsonl").exists()


def test_a_repeated_custom_id_is_rejected(toy, tmp_path):
    body = {"model": "m", "prompt": "abc"}
    lines = [request_line("a", body), request_line("b", body), b"{", request_line("a", body)]
    with pytest.raises(PromptError, match=r"p\.jsonl: line 4 repeats the custom_id 'a' of line 1"):
        run(EchoEngine(toy), write_lines(tmp_path / "p.jsonl", *lines), tmp_path / "a.jsonl", name="m")
    assert not (tmp_path / "a.jsonl").exists()


def test_custom_ids_with_one_checksum_are_accepted(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("lastword.batch.run.crc32", lambda data: 7)
    lines = [request_line(name, {"model": "m", "prompt": "abc"}) for name in "abc"]
    assert run(EchoEngine(toy), write_lines(tmp_path / "p.jsonl", *lines), tmp_path / "a.jsonl").answered == 3


def test_two_columns_of_one_name_are_rejected(toy, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the package pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the package pyarrow")
    table = pyarrow.table([["abc"], ["xyz"]], names=["prompt", "prompt"])
    parquet.write_table(table, tmp_path / "p.parquet")
    with pytest.raises(PromptError, match="two columns of the name 'prompt'"):
        run(EchoEngine(toy), tmp_path / "p.parquet", tmp_path / "a.jsonl")


def test_a_missing_file_is_rejected(toy, tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    for name, reason in (("none.jsonl", "No such file"), ("folder.jsonl", "has no .jsonl or .parquet files")):
        with pytest.raises(PromptError, match=reason):
            run(EchoEngine(toy), tmp_path / name, tmp_path / "a.jsonl", name="m")


def test_a_very_long_line_is_not_kept_in_memory(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("lastword.io.prompts.MAX_LINE_LENGTH", 100)
    path = write_lines(tmp_path / "p.jsonl", GOOD, {"prompt": "a" * 500}, GOOD, {"prompt": "a" * 80})
    found, _ = answer(toy, path, tmp_path / "a.jsonl")
    assert [line["failed"] is None for line in found] == [True, False, True, True]
    assert "more than 100 characters" in found[1]["failed"]


def test_a_file_that_changes_while_it_is_read_is_an_error(toy, tmp_path):
    path = write_lines(tmp_path / "p.jsonl", GOOD, GOOD)
    with pytest.raises(PromptError, match="was changed while it was read"):
        run(
            EchoEngine(toy), path, tmp_path / "a.jsonl", name="m",
            progress=lambda state: write_lines(path, {"prompt": "other"}),
        )  # fmt: skip


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["prompt", "messages", "tokens", "id", "custom_id", "seed", "max_tokens", "role", "content",
             "body", "url", "method", "model", "stop", "n", "temperature", "top_p", "top_k", "max_new_tokens",
             "recipe", "length"]
        )
        | st.text(max_size=3),
        inner,
        max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip
any_line = st.one_of(
    st.binary(max_size=40).map(lambda line: line.replace(b"\n", b" ")),
    json_values.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")),
    st.fixed_dictionaries({"prompt": json_values}).map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries({"tokens": st.lists(st.integers(-1, 40), max_size=3)}).map(
        lambda value: json.dumps(value).encode()
    ),
    json_values.map(lambda body: json.dumps(request_line("x", body)).encode()),
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(lines=st.lists(any_line, max_size=6))
def test_every_line_of_any_file_has_one_line_in_the_answers(toy, tmp_path, lines):
    for old in tmp_path.iterdir():
        old.unlink()
    path = write_lines(tmp_path / "p.jsonl", *lines)
    try:
        summary = run(EchoEngine(toy), path, tmp_path / "a.jsonl", name="m")
    except PromptError:  # none of them is a prompt
        assert not (tmp_path / "a.jsonl").exists()
        return
    lines_with_content = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    found = [parse_json(line) for line in (tmp_path / "a.jsonl").read_bytes().splitlines()]
    assert len(found) == len(lines_with_content) == summary.answered + summary.failed
    again = run(EchoEngine(toy), path, tmp_path / "a.jsonl", name="m")
    assert (again.answered, again.failed, again.before) == (
        summary.answered, summary.failed, len(found),
    )  # fmt: skip


@pytest.mark.parametrize(("prompts", "out"), [("p.parquet", "a.jsonl"), ("p.jsonl", "a.parquet")])
def test_parquet_without_pyarrow_is_rejected_first(toy, tmp_path, monkeypatch, prompts, out):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    path = write_lines(tmp_path / prompts, GOOD)
    with pytest.raises(ExtraError, match="Parquet needs the package pyarrow"):
        run(EchoEngine(toy), path, tmp_path / out, name="m")
    assert [found.name for found in tmp_path.iterdir()] == [prompts]
