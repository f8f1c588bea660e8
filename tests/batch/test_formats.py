"""The formats of prompts and answers."""

import json

import pytest

import lastword
from lastword.engines.local import LocalEngine
from lastword.errors import SettingError
from lastword.io.schema import validate
from lastword.serve.protocol import ChatResponse, CompletionResponse
from tests.batch.batches import FIVE, EchoEngine, answer, read_lines, request_line, run, without_times, write_lines

pyarrow = pytest.importorskip("pyarrow", reason="needs the package pyarrow")
import pyarrow.parquet as parquet  # noqa: E402

LINES = [
    {"prompt": "abc"},
    {"prompt": "hello", "id": "two", "max_tokens": 3},
    {"tokens": [23, 24, 25], "custom_id": 3, "seed": 7},
    {"prompt": "what is mine stays mine", "reference": "x", "metadata": {"a": [1]}},
]


@pytest.fixture(scope="module")
def instruct():
    return lastword.load("tiny-llada-instruct")


def test_lines_are_answered_like_generate(toy, tmp_path):
    answers, summary = answer(toy, write_lines(tmp_path / "p.jsonl", *LINES), tmp_path / "a.jsonl")
    texts = [lastword.generate(toy, line.get("prompt") or line["tokens"], recipe=FIVE).text for line in LINES]
    assert [line["index"] for line in answers] == [0, 1, 2, 3]
    assert [line["text"] for line in answers] == [texts[0], answers[1]["text"], *texts[2:]]
    assert len(answers[1]["text"]) == 3
    assert [line["id"] for line in answers] == [None, "two", 3, None]
    assert [line["seed"] for line in answers] == [0, 1, 7, 3]
    assert [line["tokens"] for line in answers] == [5, 3, 5, 5]
    assert (summary.answered, summary.failed, summary.before, summary.tokens) == (4, 0, 0, 18)
    assert str(summary).startswith("4 answered, 0 failed; 18 tokens in ")
    assert str(summary).endswith(f"tokens/s; answers in {tmp_path / 'a.jsonl'}")


def test_the_default_seed_is_that_of_the_run_plus_the_index(toy, tmp_path):
    recipe = lastword.Recipe(length=lastword.Fixed(9), sampling=lastword.Sampling(temperature=5.0))
    source = write_lines(tmp_path / "p.jsonl", *[{"prompt": "abc"}] * 3, {"prompt": "abc", "seed": 11})
    found, _ = answer(toy, source, tmp_path / "a.jsonl", recipe=recipe, seed=10)
    for line, seed in zip(found, (10, 11, 12, 11)):
        alone = lastword.generate(toy, "abc", recipe=recipe, seed=seed)
        assert line["text"] == alone.text
    assert found[1]["text"] == found[3]["text"] != found[0]["text"]


def test_text_uses_the_chat_template_of_an_instruct_model_unless_chat_is_false(instruct, tmp_path):
    turn = {"role": "user", "content": "What is 3 + 4? \N{SNOWMAN} \U0001f600"}
    lines = [{"messages": [turn]}, {"prompt": turn["content"]}]
    source = write_lines(tmp_path / "p.jsonl", *lines)
    by_default, _ = answer(instruct, source, tmp_path / "a.jsonl")
    with_chat, _ = answer(instruct, source, tmp_path / "b.jsonl", chat=True)
    without, _ = answer(instruct, source, tmp_path / "c.jsonl", chat=False)
    whole = lastword.generate(instruct, [turn], recipe=FIVE)
    assert without_times(by_default) == without_times(with_chat)
    assert with_chat[0]["text"] == with_chat[1]["text"] == without[0]["text"] == whole.text
    assert without[1]["prompt_tokens"] < without[0]["prompt_tokens"] == len(whole.prompt)
    assert [line["chat"] for line in with_chat] == [True, True]
    assert [line["chat"] for line in without] == [True, False]


def test_any_id_is_written_unchanged(tmp_path):
    model = lastword.load("tiny-llada-base")
    names = ["\N{SNOWMAN}", 'quote " and \\', "two\nlines", "\U0001f600", "\x00", "\u2028"]
    lines = [{"prompt": f"Problem {name}", "id": name} for name in names]
    found, summary = answer(model, write_lines(tmp_path / "p.jsonl", *lines), tmp_path / "a.jsonl")
    assert [line["id"] for line in found] == names
    assert summary.failed == 0
    assert len((tmp_path / "a.jsonl").read_bytes().split(b"\n")) == len(names) + 1


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
def test_blank_lines_and_byte_order_marks_are_skipped(toy, tmp_path, ends):
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + ends.join([b'{"prompt":"a"}', b"  ", b'{"prompt":"b"}']))
    found, summary = answer(toy, path, tmp_path / "a.jsonl")
    assert [line["index"] for line in found] == [0, 1]
    assert summary.failed == 0


def test_parquet_is_read_and_written_like_lines(toy, tmp_path):
    columns = ("prompt", "tokens", "id", "seed", "max_tokens")
    rows = [{name: line.get(name) for name in columns} for line in LINES]
    rows[2]["id"] = "three"
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "p.parquet")
    summary = run(LocalEngine(toy), tmp_path / "p.parquet", tmp_path / "a.parquet", name="m", recipe=FIVE)
    lines, _ = answer(toy, write_lines(tmp_path / "p.jsonl", *LINES), tmp_path / "a.jsonl")
    found = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    aside = ("run", "seconds", "id")
    for row, line in zip(found, lines):
        assert {name: row[name] for name in row if name not in aside} == {
            name: line[name] for name in line if name not in aside
        }
    assert [row["id"] for row in found] == [None, "two", "three", None]
    assert summary.answered == 4
    run(LocalEngine(toy), tmp_path / "p.parquet", tmp_path / "a.parquet", name="m", recipe=FIVE)
    assert parquet.read_table(tmp_path / "a.parquet").to_pylist() == found


def test_messages_and_requests_in_parquet(instruct, tmp_path):
    turns = [{"role": "user", "content": "What is 3 + 4?"}]
    parquet.write_table(pyarrow.Table.from_pylist([{"messages": turns}]), tmp_path / "p.parquet")
    found, _ = answer(instruct, tmp_path / "p.parquet", tmp_path / "a.jsonl")
    body = {"model": "m", "messages": turns, "seed": None, "max_tokens": 4}
    other = {"model": "m", "messages": turns, "seed": 4, "max_tokens": None}
    requests = [request_line("a", other), request_line("b", body)]
    parquet.write_table(pyarrow.Table.from_pylist(requests), tmp_path / "r.parquet")
    as_text = [request_line("c", json.dumps(other))]
    parquet.write_table(pyarrow.Table.from_pylist(as_text), tmp_path / "t.parquet")
    replies, _ = answer(instruct, tmp_path / "r.parquet", tmp_path / "r.jsonl")
    (reply,), _ = answer(instruct, tmp_path / "t.parquet", tmp_path / "t.jsonl")
    contents = [content_of(line) for line in (*replies, reply)]
    assert contents == [found[0]["text"], contents[1], found[0]["text"]]
    assert replies[1]["response"]["body"]["usage"]["completion_tokens"] == 4


def content_of(line):
    return line["response"]["body"]["choices"][0]["message"]["content"]


def test_openais_format(instruct, tmp_path):
    turns = [{"role": "user", "content": "What is 3 + 4?"}]
    source = write_lines(
        tmp_path / "p.jsonl",
        request_line("chat", {"model": "m", "messages": turns}),
        request_line("stopped", {"model": "m", "messages": turns, "length": "fixed:30", "stop": "="}),
        request_line(
            "text",
            {"model": "m", "prompt": ["Problem: 2", "Problem: 3"], "n": 2, "temperature": 3.0},
            "/v1/completions",
        ),
        request_line("capped", {"model": "m", "prompt": [5, 6, 7], "max_tokens": 2}),
    )
    found, summary = answer(instruct, source, tmp_path / "a.jsonl")
    assert [line["custom_id"] for line in found] == ["chat", "stopped", "text", "capped"]
    assert [line["response"]["status_code"] for line in found] == [200] * 4
    assert summary.failed == 0
    assert len({line["id"] for line in found}) == 4
    bodies = [line["response"]["body"] for line in found]
    for body, kind in zip(bodies, (ChatResponse, ChatResponse, CompletionResponse, CompletionResponse)):
        validate(kind, body)
    whole = lastword.generate(instruct, turns, recipe=FIVE)
    assert content_of(found[0]) == whole.text
    long = lastword.generate(instruct, turns, length="fixed:30").text
    assert "=" in long
    assert content_of(found[1]) == long.partition("=")[0]
    assert bodies[1]["choices"][0]["lastword"]["ended_by"] == "stop"
    texts = [choice["text"] for choice in bodies[2]["choices"]]
    assert [choice["lastword"]["seed"] for choice in bodies[2]["choices"]] == [2, 3, 4, 5]
    recipe = FIVE.with_choices(sampling="sampling:3.0")
    assert texts[1] == lastword.generate(instruct, "Problem: 2", recipe=recipe, seed=3, chat=False).text
    assert bodies[3]["choices"][0]["finish_reason"] == "length"
    assert bodies[3]["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5,
    }  # fmt: skip
    assert bodies[0]["lastword"]["horizon"] == 5


def test_openais_format_in_plain_lines(instruct, tmp_path):
    turns = [{"role": "user", "content": "What is 3 + 4?"}]
    source = write_lines(
        tmp_path / "p.jsonl",
        request_line("one", {"model": "m", "messages": turns}),
        request_line("two", {"model": "m", "messages": turns, "n": 2}),
    )
    found, summary = answer(instruct, source, tmp_path / "a.jsonl", plain=True)
    assert found[0]["text"] == lastword.generate(instruct, turns, recipe=FIVE).text
    assert "a plain line has one" in found[1]["failed"]
    assert (summary.answered, summary.failed) == (1, 1)


def test_lines_are_sorted_at_the_end_by_default(toy, tmp_path):
    lines = [{"prompt": "a" * length} for length in (9, 2, 7, 1)]
    source = write_lines(tmp_path / "p.jsonl", *lines)
    sort = lambda **options: [  # noqa: E731
        line["index"]
        for line in answer(toy, source, tmp_path / f"{len(options)}.jsonl", max_batch_size=1, **options)[0]
    ]
    assert sort() == [0, 1, 2, 3]
    assert sort(in_order=False) == [3, 1, 2, 0]  # shortest prompts first


@pytest.mark.parametrize("out", ["a.csv", "a", "a.json"])
def test_another_file_name_extension_is_rejected(toy, tmp_path, out):
    source = write_lines(tmp_path / "p.jsonl", *LINES)
    with pytest.raises(SettingError, match=r"end it in .jsonl"):
        answer(toy, source, tmp_path / out)


def test_prompts_are_not_overwritten(toy, tmp_path):
    source = write_lines(tmp_path / "p.jsonl", *LINES)
    before = source.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(source)
    for out in (source, tmp_path / "link.jsonl"):
        with pytest.raises(SettingError, match="holds the prompts"):
            answer(toy, source, out)
    assert source.read_bytes() == before


def test_a_table_of_the_user_is_not_replaced(toy, tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"mine")
    with pytest.raises(SettingError, match="no file beside it shows that a batch wrote it"):
        run(LocalEngine(toy), write_lines(tmp_path / "p.jsonl", *LINES), tmp_path / "a.parquet", name="m")
    assert (tmp_path / "a.parquet").read_bytes() == b"mine"


def test_responses_in_a_table_are_json_text(toy, tmp_path):
    source = write_lines(
        tmp_path / "p.jsonl",
        request_line("a", {"model": "m", "prompt": "abc"}),
        request_line("b", {"model": "m", "prompt": "ABC?"}),
    )
    run(EchoEngine(toy), source, tmp_path / "a.parquet", name="m")
    first, second = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert json.loads(first["response"])["body"]["choices"][0]["text"] == "3"
    assert json.loads(second["response"])["status_code"] == 400
    assert {line["custom_id"] for line in read_lines(tmp_path / "a.parquet.jsonl")} == {"a", "b"}
