"""A stopped run is resumed without lost or repeated lines; the answers of another run are rejected."""

import itertools
import json
import os
import resource
import subprocess
import sys

import pytest

import lastword
from lastword.batch import run as batch_run
from lastword.engines.local import LocalEngine
from lastword.errors import SettingError
from lastword.io import files
from tests.batch.batches import FIVE, EchoEngine, answer, read_lines, request_line, run, without_times, write_lines

LINES = [{"prompt": "abcdefghij"[: 1 + n % 10], "id": n} for n in range(12)]
REQUESTS = [request_line(str(n), {"model": "m", "prompt": "abc", "n": 1 + n % 2}) for n in range(12)]
HOLD = """
import sys, time
from pathlib import Path
from lastword.io.files import JournalFile
with JournalFile(Path(sys.argv[1]), kind="answers", remedy="wait").writing():
    print("held", flush=True)
    time.sleep(60)
"""


class Stop(Exception):
    pass


@pytest.fixture
def source(request, tmp_path):
    lines = REQUESTS if getattr(request, "param", "lines") == "openai" else LINES
    return write_lines(tmp_path / "p.jsonl", lines[0], b"no prompt", *lines[1:])


both = pytest.mark.parametrize("source", ["lines", "openai"], indirect=True)


def stopped_after(count):
    def progress(state):
        if state.done >= count:
            raise Stop

    return progress


@pytest.mark.parametrize(("source", "count"), [("lines", 1), ("openai", 5), ("lines", 9)], indirect=["source"])
def test_a_stopped_run_is_resumed(toy, tmp_path, source, count):
    complete, _ = answer(toy, source, tmp_path / "complete.jsonl", max_batch_size=1)
    out = tmp_path / "a.jsonl"
    with pytest.raises(Stop):
        answer(toy, source, out, max_batch_size=1, progress=stopped_after(count))
    kept = out.read_bytes().splitlines()
    assert count <= len(kept) < len(complete)
    found, summary = answer(toy, source, out, max_batch_size=2)
    assert without_times(found) == without_times(complete)
    assert set(kept) <= set(out.read_bytes().splitlines())  # as they were written then
    assert summary.before == len(kept)
    before = out.read_bytes()
    engine = EchoEngine(toy)
    summary = run(engine, source, out, name="m", recipe=FIVE)
    assert engine.num_requests == 0
    assert out.read_bytes() == before
    assert str(summary).startswith("12 answered, 1 failed (13 by an earlier run); answers in ")


@both
def test_a_torn_last_line_is_repaired(toy, tmp_path, source):
    out = tmp_path / "a.jsonl"
    run(EchoEngine(toy), source, out, name="m")
    complete = out.read_bytes()
    last = complete.rstrip(b"\n").rfind(b"\n") + 1
    step = (len(complete) - last) // 9
    for cut in (last, *range(last + 1, len(complete) - 1, step), len(complete) - 1):
        out.write_bytes(complete[:cut])
        engine = EchoEngine(toy)
        run(engine, source, out, name="m")
        assert without_times(read_lines(out)) == without_times([json.loads(line) for line in complete.splitlines()])
        assert engine.num_requests == (0 if cut == len(complete) - 1 else 1 + ("custom_id" in read_lines(out)[0]))


def test_the_time_left_follows_the_pace_of_this_run(toy, tmp_path, monkeypatch):
    clock = itertools.count(100.0, 0.5)
    monkeypatch.setattr(batch_run, "perf_counter", lambda: next(clock))
    source = write_lines(tmp_path / "p.jsonl", *[{"prompt": "a" * n} for n in range(1, 41)])
    states = []
    run(EchoEngine(toy), source, tmp_path / "a.jsonl", limit=20, max_batch_size=4, progress=states.append)
    assert [(state.done, state.total) for state in states][:3] == [(0, 20), (4, 20), (8, 20)]
    assert [state.seconds_left for state in states[:3]] == [None, 4 * states[1].seconds, 1.5 * states[2].seconds]
    assert (states[-1].done, states[-1].seconds_left) == (20, 0)
    states.clear()
    run(EchoEngine(toy), source, tmp_path / "a.jsonl", max_batch_size=4, progress=states.append)
    assert (states[0].done, states[0].seconds_left) == (20, None)  # answers of earlier runs do not count
    assert states[1].seconds_left == 4 * states[1].seconds


def test_a_limit_can_be_raised(toy, tmp_path, source):
    out = tmp_path / "a.jsonl"
    _, first = answer(toy, source, out, limit=3)
    assert (first.answered, first.failed) == (2, 1)
    assert str(first).split(";")[0] == "2 answered, 1 failed, 10 left out"
    found, second = answer(toy, source, out)
    assert (second.answered, second.failed, second.before) == (12, 1, 3)
    assert [line["index"] for line in found] == list(range(13))
    found, third = answer(toy, source, out, limit=2)
    assert len(found) == 13
    assert third.before == 13


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"recipe": lastword.Recipe(length=lastword.Fixed(6))}, r"another recipe \(fixed:5 then, fixed:6 now\)"),
        ({"seed": 1}, r"another seed \(0 then, 1 now\)"),
        ({"name": "other"}, r'another model \("m" then, "other" now\)'),
        ({"chat": True}, r"another use of the chat template .* \(false then, true now\)"),
        ({"max_new_tokens": 2}, r"another max_new_tokens \(null then, 2 now\)"),
        ({"stop": ["x"]}, r'another stop \(null then, \["x"\] now\)'),
    ],
)  # fmt: skip
def test_another_run_is_rejected_with_the_difference(toy, tmp_path, source, change, reason):
    out = tmp_path / "a.jsonl"
    answer(toy, source, out)
    before = out.read_bytes()
    with pytest.raises(SettingError, match=reason) as rejected:
        answer(toy, source, out, **change)
    assert "give another file with --out" in str(rejected.value)
    assert out.read_bytes() == before


def test_other_prompts_formats_and_weights_are_another_run(toy, tmp_path):
    source, out = write_lines(tmp_path / "p.jsonl", *REQUESTS[:2]), tmp_path / "a.jsonl"
    run(EchoEngine(toy), source, out, name="m")
    with pytest.raises(SettingError, match="another format of answers"):
        run(EchoEngine(toy), source, out, name="m", plain=True)
    write_lines(source, *REQUESTS[:3])
    with pytest.raises(SettingError, match="another set of prompts"):
        run(EchoEngine(toy), source, out, name="m")
    write_lines(source, *REQUESTS[:2])
    with pytest.raises(SettingError, match="another weights"):
        run(EchoEngine(lastword.load("tiny-llada-base")), source, out, name="m")
    assert len(read_lines(out)) == 2


@pytest.mark.parametrize("content", [b"my notes\n", b'{"index":0', b'{"index":0}\n', b"\n", b"\0"])
def test_a_file_of_the_user_is_rejected_and_unchanged(toy, tmp_path, source, content):
    out = tmp_path / "a.jsonl"
    out.write_bytes(content)
    with pytest.raises(SettingError, match=r"does not identify its run"):
        answer(toy, source, out)
    assert out.read_bytes() == content
    assert not (tmp_path / "a.jsonl.run.json").exists()


@pytest.mark.parametrize("content", [b"my notes", b"{}", b'{"run": "mine"}', b"[1]"])
def test_a_description_of_the_user_is_rejected_and_unchanged(toy, tmp_path, source, content):
    path = tmp_path / "a.jsonl.run.json"
    path.write_bytes(content)
    with pytest.raises(SettingError, match=r"a\.jsonl\.run\.json exists and does not describe a run"):
        answer(toy, source, tmp_path / "a.jsonl")
    assert path.read_bytes() == content
    assert not (tmp_path / "a.jsonl").exists()


def test_the_description_of_a_run_without_answers_is_replaced(toy, tmp_path, source):
    answer(toy, source, tmp_path / "a.jsonl", seed=3)
    (tmp_path / "a.jsonl").unlink()
    assert answer(toy, source, tmp_path / "a.jsonl")[1].answered == 12


@pytest.mark.parametrize("content", [b"my notes\n", b'{"index":0}\n', b"\n", b'{"my":"no'])
def test_other_content_among_answers_is_rejected(toy, tmp_path, source, content):
    out = tmp_path / "a.jsonl"
    answer(toy, source, out)
    out.write_bytes(out.read_bytes() + content)
    before = out.read_bytes()
    with pytest.raises(SettingError, match="something other than answers of this run"):
        answer(toy, source, out)
    assert out.read_bytes() == before


def test_a_repeated_line_is_rejected(toy, tmp_path, source):
    out = tmp_path / "a.jsonl"
    answer(toy, source, out)
    out.write_bytes(out.read_bytes() + out.read_bytes().splitlines(keepends=True)[3])
    with pytest.raises(SettingError, match="line 14: it is the second line of prompt 3"):
        answer(toy, source, out)


def test_a_second_writer_is_rejected(toy, tmp_path, source):
    out = tmp_path / "a.jsonl"
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(SettingError, match=f"is being written by process {other.pid}"):
            answer(toy, source, out)
    finally:
        other.kill()
        other.wait()
    assert answer(toy, source, out)[1].answered == 12


def test_a_full_disk_loses_no_written_line(toy, tmp_path, source):
    """Simulated by a limit of the file size, which stops a write in the middle of a line."""
    complete, _ = answer(toy, source, tmp_path / "complete.jsonl", max_batch_size=1)
    out = tmp_path / "a.jsonl"
    size = (tmp_path / "complete.jsonl").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(size // 2, 2_000), before[1]))
    try:
        with pytest.raises(SettingError, match="free space and give the same command again"):
            answer(toy, source, out, max_batch_size=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    kept = out.read_bytes()
    assert kept.endswith(b"\n")
    assert 0 < len(kept.splitlines()) < len(complete)
    found, _ = answer(toy, source, out)
    assert without_times(found) == without_times(complete)


def test_without_space_to_sort_the_lines_stay_unsorted(toy, tmp_path, source, monkeypatch):
    out = tmp_path / "a.jsonl"

    def full(target, beside):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        answer(toy, source, out, max_batch_size=1, limit=1)
        patched.setattr(files, "_copy_permissions", full)
        with pytest.raises(SettingError, match="No space left"):
            answer(toy, source, out, max_batch_size=1)
    assert len(read_lines(out)) == 13
    found, summary = answer(toy, source, out)
    assert [line["index"] for line in found] == list(range(13))
    assert summary.before == 13


def test_prompts_are_read_while_others_are_answered(toy, tmp_path, source, monkeypatch):
    complete, _ = answer(toy, source, tmp_path / "complete.jsonl")
    read = []

    class Counting(EchoEngine):
        def generate(self, requests, recipe, *, max_batch_size):
            return super().generate(map(self.note, requests), recipe, max_batch_size=max_batch_size)

        def note(self, pair):
            read.append(pair)
            return pair

    def progress(state):
        assert len(read) <= max(2, state.done + 2)

    run(Counting(toy), source, tmp_path / "a.jsonl", name="m", recipe=FIVE, max_batch_size=2, progress=progress)
    assert len(read) == 12
    monkeypatch.setattr("lastword.engines.base.PORTION", 5)
    found, _ = answer(toy, source, tmp_path / "b.jsonl")
    assert without_times(found) == without_times(complete)


def test_a_file_is_sorted_in_several_passes_if_it_is_large(toy, tmp_path, source, monkeypatch):
    monkeypatch.setattr("lastword.batch.answers.SORTED_AT_ONCE", 5)

    class Backwards(EchoEngine):
        def generate(self, requests, recipe, *, max_batch_size):
            return super().generate([*requests][::-1], recipe, max_batch_size=max_batch_size)

    run(Backwards(toy), source, tmp_path / "a.jsonl", name="m", in_order=False)
    assert [line["index"] for line in read_lines(tmp_path / "a.jsonl")] != list(range(13))
    run(Backwards(toy), source, tmp_path / "a.jsonl", name="m")
    assert [line["index"] for line in read_lines(tmp_path / "a.jsonl")] == list(range(13))


def test_a_long_file_is_not_kept_in_memory(toy, tmp_path, monkeypatch):
    """Answers of 100 kB each need a fraction of their total size."""
    import tracemalloc

    class Long(EchoEngine):
        def reply(self, key, question):
            made = super().reply(key, question)
            return type(made)(key, "long " * 20_000, made.details)

    count = 300
    monkeypatch.setattr(os, "fsync", lambda number: None)
    source = write_lines(tmp_path / "p.jsonl", *[{"prompt": "abc", "id": n} for n in range(count)])
    tracemalloc.start()
    try:
        summary = run(Long(toy), source, tmp_path / "a.jsonl", name="m", max_batch_size=8)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert summary.answered == count
    assert (tmp_path / "a.jsonl").stat().st_size > count * 100_000
    assert peak < 5e6


def test_an_engine_that_stops_loses_no_line(toy, tmp_path, source):
    class Breaking(LocalEngine):
        def generate(self, requests, recipe, *, max_batch_size):
            for count, replies in enumerate(super().generate(requests, recipe, max_batch_size=max_batch_size)):
                if count == 2:
                    raise SettingError("every worker died")
                yield replies

    out = tmp_path / "a.jsonl"
    with pytest.raises(SettingError, match="every worker died"):
        run(Breaking(toy), source, out, name="m", recipe=FIVE, max_batch_size=1)
    assert len(read_lines(out)) == 1 + 2  # the line that is no prompt, and the answers that were finished
    complete, _ = answer(toy, source, tmp_path / "complete.jsonl")
    assert without_times(answer(toy, source, out)[0]) == without_times(complete)
