"""Prompts files gone wrong: a PromptError that names the file and, where there is one, the line."""

import json
import os

import pytest

from lastword.errors import PromptError, SettingError
from lastword.io.prompts import read_prompts
from tests.bad_inputs.mutations import EXAMPLES, hold, mutated, mutated_bytes

USER = {"role": "user", "content": "a"}


def jsonl(*prompts: object) -> bytes:
    return b"\n".join(json.dumps({"prompt": prompt}).encode() for prompt in prompts)


# name, file name, content, what read_prompts is told beside it, phrase
ROWS = [
    ("empty", "p.txt", b"", {}, "p.txt has no prompts; give it one per line"),
    ("blank lines", "p.txt", b"\n  \r\n\t\n", {}, "has no prompts"),
    ("a lone mark", "p.txt", b"\xef\xbb\xbf", {}, "has no prompts"),
    ("Latin-1", "p.txt", "a\nGröße".encode("latin-1"), {}, "line 2 of p.txt: it is not UTF-8"),
    ("UTF-16", "p.txt", "a\nb".encode("utf-16"), {}, "line 1 of p.txt: it is not UTF-8"),
    ("UTF-16 without a mark", "p.txt", "ab".encode("utf-16-le"), {}, "line 1 of p.txt: it contains a NUL"),
    ("a NUL", "p.txt", b"a\n\nb\0c", {}, "line 3 of p.txt: it contains a NUL byte; is it a text file?"),
    ("gzip", "p.jsonl", b"\x1f\x8b\x08\0\0", {}, "line 1 of p.jsonl: it is not UTF-8"),
    ("a family of plain lines", "p.txt", b"a", {"family_field": "f"}, "families need a .jsonl file"),
    ("a JSON document", "p.json", b'["a", "b"]', {}, "ends in .json; give .jsonl"),
    ("capitals", "P.JSONL", b'{"text": "a"}', {}, "line 1 of P.JSONL: it has no field prompt"),
    ("cut", "p.jsonl", b'{"prompt": "a"}\n{"pro', {}, "line 2 of p.jsonl: it is not JSON"),
    ("two a line", "p.jsonl", b'{"prompt": "a"} {"prompt": "b"}', {}, "line 1 of p.jsonl: it is not JSON"),
    ("an array", "p.jsonl", b'["a"]', {}, 'line 1 of p.jsonl: it is not an object with a "prompt"'),
    ("a text", "p.jsonl", b'\n\n"a"', {}, "line 3 of p.jsonl: it is not an object"),
    ("no prompt", "p.jsonl", b"{}", {}, "it has no field prompt, messages or tokens; it has none"),
    ("another name", "p.jsonl", b'{"question": "a"}', {}, "it has 'question'"),
    ("no family", "p.jsonl", b'{"prompt": "a"}', {"family_field": "f"}, "has no field 'f'"),
    ("NaN", "p.jsonl", b'{"prompt": NaN}', {}, "line 1 of p.jsonl: it is not JSON"),
    ("a surrogate", "p.jsonl", b'{"prompt": "\\ud800"}', {}, "line 1 of p.jsonl: it is not JSON"),
    ("deep", "p.jsonl", b'{"prompt": ' + b"[" * 10**5, {}, "recursion limit exceeded"),
    ("many digits", "p.jsonl", b'{"prompt": [' + b"9" * 5000 + b"]}", {}, "number out of range"),
    ("null", "p.jsonl", jsonl(None), {}, "it has no field prompt, messages or tokens; it has 'prompt'"),
    ("a number", "p.jsonl", jsonl(5), {}, "should be text, a list of token ids, or chat messages"),
    ("a truth value", "p.jsonl", jsonl(True), {}, "(given: True)"),
    ("empty text", "p.jsonl", jsonl("a", ""), {}, "line 2 of p.jsonl: prompt.text"),
    ("no ids", "p.jsonl", jsonl([]), {}, "prompt.ids: List should have at least 1 item"),
    ("texts", "p.jsonl", jsonl(["a", "b"]), {}, "prompt.ids.0: Input should be a valid integer"),
    ("a broken id", "p.jsonl", jsonl([1, 2.5]), {}, "prompt.ids.1: Input should be a valid integer"),
    ("a true id", "p.jsonl", jsonl([1, True]), {}, "prompt.ids.1: Input should be a valid integer"),
    ("an id below 0", "p.jsonl", jsonl([-1]), {}, "greater than or equal to 0"),
    ("a huge id", "p.jsonl", jsonl([2**31]), {}, "less than 2147483648"),
    ("a batch", "p.jsonl", jsonl([[1, 2]]), {}, "prompt.ids.0: Input should be a valid integer"),
    ("no content", "p.jsonl", jsonl([{"role": "user"}]), {}, "prompt.messages.0.content: Field required"),
    ("no role", "p.jsonl", jsonl({"content": "a"}), {}, "prompt.message.role: Field required"),
    ("content null", "p.jsonl", jsonl([USER, {**USER, "content": None}]), {}, "messages.1.content"),
    ("content in parts", "p.jsonl", jsonl([{**USER, "content": ["a"]}]), {}, "should be a valid string"),
    ("a text among messages", "p.jsonl", jsonl([USER, "b"]), {}, "prompt.messages.1"),
    ("a role of no letters", "p.jsonl", jsonl([{**USER, "role": ""}]), {}, "messages.0.role"),
    ("families in a list", "p.jsonl", b'{"prompt": "a", "f": [1]}', {"family_field": "f"}, "family: "),
    ("a true family", "p.jsonl", b'{"prompt": "a", "f": true}', {"family_field": "f"}, "family: "),
    ("an empty family", "p.jsonl", b'{"prompt": "a", "f": ""}', {"family_field": "f"}, "family: "),
]  # fmt: skip


@pytest.mark.parametrize(("file", "content", "told", "phrase"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_is_wrong_is_said_with_the_line(file, content, told, phrase, tmp_path):
    (tmp_path / file).write_bytes(content)
    with pytest.raises(PromptError) as refused:
        read_prompts(tmp_path / file, **told)
    assert phrase in str(refused.value)


def test_a_limit_reads_the_first_prompts_only(tmp_path):
    (tmp_path / "p.jsonl").write_bytes(jsonl("a", "b") + b"\nno prompt")
    assert read_prompts(tmp_path / "p.jsonl", limit=2) == (["a", "b"], [None] * 2)
    with pytest.raises(PromptError, match="line 3"):
        read_prompts(tmp_path / "p.jsonl", limit=3)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit, tmp_path):
    (tmp_path / "p.txt").write_bytes(b"a")
    with pytest.raises(SettingError, match=f"limit={limit}"):
        read_prompts(tmp_path / "p.txt", limit=limit)


def test_what_is_no_plain_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    for name in ("pipe.jsonl", "loop.txt", "missing.txt", "a" * 5_000, "a\0b"):
        with pytest.raises(PromptError, match="cannot be read"):
            read_prompts(tmp_path / name)


def test_a_line_without_end_is_not_read_to_its_end(tmp_path):
    with open(tmp_path / "large.txt", "wb") as file:
        file.truncate(10**12)  # a sparse file
    with pytest.raises(PromptError, match=r"line 1 of large\.txt: it has more than 67108864 characters"):
        read_prompts(tmp_path / "large.txt")


def test_marks_line_ends_and_odd_letters_are_read_as_they_are(tmp_path):
    text = tmp_path / "p.txt"
    text.write_bytes("\ufeffone\r\n\r\nG\u00fc\u2028te\x0b \rthree".encode())
    assert read_prompts(text) == (["one", "G\u00fc\u2028te\x0b ", "three"], [None] * 3)
    objects = tmp_path / "p.jsonl"
    more = {**USER, "name": "Ann"}
    objects.write_bytes(b"\xef\xbb\xbf" + jsonl([1, 2], [more], USER, "b\u2028c") + b"\r\n")
    assert read_prompts(objects)[0] == [[1, 2], [more], [USER], "b\u2028c"]
    assert read_prompts(objects)[1] == [None] * 4


GOOD = {"prompt": [USER, {"role": "assistant", "content": "b"}], "task": "sums", "more": {"x": [1]}}


@pytest.mark.slow
@EXAMPLES
def test_any_file_is_read_or_refused(examples, tmp_path):
    path, good = tmp_path / "p.jsonl", json.dumps(GOOD).encode()
    ids = mutated({**GOOD, "prompt": [1, 2]}).map(lambda line: json.dumps(line).encode())

    def read_or_refused(line):
        path.write_bytes(good + b"\n" + line)
        for told in ({"family_field": "task"}, {}):
            try:
                prompts, families = read_prompts(path, **told)
                said = "p.jsonl"
            except PromptError as refused:
                prompts, families, said = ["none"], [None], str(refused)
            assert len(prompts) == len(families) > 0
            assert "p.jsonl" in said

    hold(examples, mutated_bytes(GOOD) | ids, read_or_refused)
