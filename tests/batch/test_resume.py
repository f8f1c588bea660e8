"""A run that was stopped goes on: nothing lost, nothing twice; another run is kept out."""

import json
import os
import random
import resource
import subprocess
import sys

import pytest

import lastword
from lastword.engines.local import LocalEngine
from lastword.errors import SettingError
from lastword.io import files
from tests.batch.batches import (
    FIVE,
    EchoEngine,
    answer,
    read_lines,
    request_line,
    run,
    without_times,
    write_lines,
)
from tests.crash.commands import Server, moments

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
    lines = LINES if getattr(request, "param", "lines") == "lines" else REQUESTS
    return write_lines(tmp_path / "p.jsonl", lines[0], b"no prompt", *lines[1:])


both = pytest.mark.parametrize("source", ["lines", "openai"], indirect=True)


def stopped_after(count):
    def progress(state):
        if state.done >= count:
            raise Stop

    return progress


@both
@pytest.mark.parametrize("count", [1, 5, 9])
def test_a_run_that_was_stopped_comes_to_what_an_unbroken_one_does(toy, tmp_path, source, count):
    whole, _ = answer(toy, source, tmp_path / "whole.jsonl", rows=1)
    out = tmp_path / "a.jsonl"
    with pytest.raises(Stop):
        answer(toy, source, out, rows=1, progress=stopped_after(count))
    kept = out.read_bytes().splitlines()
    assert count <= len(kept) < len(whole)
    found, outcome = answer(toy, source, out, rows=2)
    assert without_times(found) == without_times(whole)
    assert set(kept) <= set(out.read_bytes().splitlines())  # as they were written then
    assert outcome.before == len(kept)
    before = out.read_bytes()
    engine = EchoEngine(toy)
    outcome = run(engine, source, out, name="m", recipe=FIVE)
    assert engine.num_requests == 0
    assert out.read_bytes() == before
    assert str(outcome).startswith("12 answered, 1 failed, 13 of them before; 0 tokens")


@both
def test_wherever_the_last_line_was_cut_it_is_mended(toy, tmp_path, source):
    out = tmp_path / "a.jsonl"
    run(EchoEngine(toy), source, out, name="m")
    whole = out.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    step = (len(whole) - last) // 9
    for cut in (last, *range(last + 1, len(whole) - 1, step), len(whole) - 1):
        out.write_bytes(whole[:cut])
        engine = EchoEngine(toy)
        run(engine, source, out, name="m")
        assert without_times(read_lines(out)) == without_times(
            [json.loads(line) for line in whole.splitlines()]
        )
        assert engine.num_requests == (
            0 if cut == len(whole) - 1 else 1 + ("custom_id" in read_lines(out)[0])
        )


def test_a_limit_may_be_raised(toy, tmp_path, source):
    out = tmp_path / "a.jsonl"
    _, first = answer(toy, source, out, limit=3)
    assert (first.answered, first.failed) == (2, 1)
    assert str(first).split(";")[0] == "2 answered, 1 failed, 10 not asked"
    found, second = answer(toy, source, out)
    assert (second.answered, second.failed, second.before) == (12, 1, 3)
    assert [line["index"] for line in found] == list(range(13))
    found, third = answer(toy, source, out, limit=2)
    assert len(found) == 13
    assert third.before == 13


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"recipe": lastword.Recipe(length=lastword.Fixed(6))}, r'another recipe \(.*"slots": 5.*"slots": 6'),
        ({"seed": 1}, r"another seed \(0 then, 1 now\)"),
        ({"name": "other"}, r'another model \("m" then, "other" now\)'),
        ({"chat": True}, "another --chat"),
    ],
)  # fmt: skip
def test_another_run_is_refused_and_told_what_is_other(toy, tmp_path, source, change, reason):
    out = tmp_path / "a.jsonl"
    answer(toy, source, out)
    before = out.read_bytes()
    with pytest.raises(SettingError, match=reason) as refused:
        answer(toy, source, out, **change)
    assert "give another file with --out" in str(refused.value)
    assert out.read_bytes() == before


def test_other_prompts_another_format_and_other_weights_are_another_run(toy, tmp_path):
    source, out = write_lines(tmp_path / "p.jsonl", *REQUESTS[:2]), tmp_path / "a.jsonl"
    run(EchoEngine(toy), source, out, name="m")
    with pytest.raises(SettingError, match="another format of answers"):
        run(EchoEngine(toy), source, out, name="m", plain=True)
    write_lines(source, *REQUESTS[:3])
    with pytest.raises(SettingError, match="another prompts"):
        run(EchoEngine(toy), source, out, name="m")
    write_lines(source, *REQUESTS[:2])
    with pytest.raises(SettingError, match="another weights"):
        run(EchoEngine(lastword.load("tiny-llada-base")), source, out, name="m")
    assert len(read_lines(out)) == 2


@pytest.mark.parametrize("theirs", [b"my notes\n", b'{"index":0', b'{"index":0}\n', b"\n", b"\0"])
def test_a_file_of_the_users_is_refused_and_left_alone(toy, tmp_path, source, theirs):
    out = tmp_path / "a.jsonl"
    out.write_bytes(theirs)
    with pytest.raises(SettingError, match=r"does not identify its run"):
        answer(toy, source, out)
    assert out.read_bytes() == theirs
    assert not (tmp_path / "a.jsonl.run.json").exists()


@pytest.mark.parametrize("theirs", [b"my notes\n", b'{"index":0}\n', b"\n", b'{"my":"no'])
def test_something_else_among_answers_is_refused(toy, tmp_path, source, theirs):
    out = tmp_path / "a.jsonl"
    answer(toy, source, out)
    out.write_bytes(out.read_bytes() + theirs)
    before = out.read_bytes()
    with pytest.raises(SettingError, match="something other than answers of this run"):
        answer(toy, source, out)
    assert out.read_bytes() == before


def test_a_line_that_stands_twice_is_told(toy, tmp_path, source):
    out = tmp_path / "a.jsonl"
    answer(toy, source, out)
    out.write_bytes(out.read_bytes() + out.read_bytes().splitlines(keepends=True)[3])
    with pytest.raises(SettingError, match="line 14: it is the second line of prompt 3"):
        answer(toy, source, out)


def test_two_at_once_are_refused(toy, tmp_path, source):
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


def test_a_full_disk_loses_nothing_that_was_written(toy, tmp_path, source):
    """A limit on the size of files stands for it: the kernel refuses in the middle of a line."""
    whole, _ = answer(toy, source, tmp_path / "whole.jsonl", rows=1)
    out = tmp_path / "a.jsonl"
    size = (tmp_path / "whole.jsonl").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(size // 2, 2_000), before[1]))
    try:
        with pytest.raises(SettingError, match="free space and give the same command again"):
            answer(toy, source, out, rows=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    kept = out.read_bytes()
    assert kept.endswith(b"\n")
    assert 0 < len(kept.splitlines()) < len(whole)
    found, _ = answer(toy, source, out)
    assert without_times(found) == without_times(whole)


def test_no_room_to_put_lines_in_order_leaves_them_as_they_came(toy, tmp_path, source, monkeypatch):
    out = tmp_path / "a.jsonl"

    def full(target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        answer(toy, source, out, rows=1, limit=1)
        patched.setattr(files, "_remove_abandoned", full)
        with pytest.raises(SettingError, match="No space left"):
            answer(toy, source, out, rows=1)
    assert len(read_lines(out)) == 13
    found, outcome = answer(toy, source, out)
    assert [line["index"] for line in found] == list(range(13))
    assert outcome.before == 13


def test_portions_are_asked_one_after_the_other(toy, tmp_path, source, monkeypatch):
    whole, _ = answer(toy, source, tmp_path / "whole.jsonl")
    monkeypatch.setattr("lastword.batch.run.PORTION", 5)
    engine = EchoEngine(toy)
    run(engine, source, tmp_path / "a.jsonl", name="m", recipe=FIVE)
    assert engine.largest <= 5
    found, _ = answer(toy, source, tmp_path / "b.jsonl")
    assert without_times(found) == without_times(whole)


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.full)])
def test_a_long_file_is_not_held(toy, tmp_path, monkeypatch, count):
    """Answers of 10 kB each go through a fraction of what they are together."""
    import tracemalloc

    class Long(EchoEngine):
        def reply(self, key, question):
            made = super().reply(key, question)
            return type(made)(key, "long " * 2_000, made.details)

    monkeypatch.setattr("lastword.batch.run.PORTION", 100)
    monkeypatch.setattr(os, "fsync", lambda number: None)
    source = write_lines(tmp_path / "p.jsonl", *[{"prompt": "abc", "id": n} for n in range(count)])
    tracemalloc.start()
    try:
        outcome = run(Long(toy), source, tmp_path / "a.jsonl", name="m", rows=64)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert outcome.answered == count
    assert (tmp_path / "a.jsonl").stat().st_size > count * 10_000
    assert peak < 5e6


def command(out):
    return [
        "batch", "p.jsonl", "--out", out, "-m", "toy", "--length", "fixed:4", "--rows", "1",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server.start(tmp_path_factory.mktemp("served"))
    yield server
    server.process.communicate(timeout=60)


@pytest.mark.full
@pytest.mark.parametrize("out", ["a.jsonl", "a.parquet"])
def test_kill_9_at_random_then_the_same_command_again(server, tmp_path, out):
    pytest.importorskip("pyarrow", reason="needs the package pyarrow")
    scratch = {"out": str(server.scratch / "out"), "err": str(server.scratch / "err")}

    def make(folder, **moment):
        folder.mkdir(exist_ok=True)
        write_lines(folder / "p.jsonl", *[{"prompt": "abcdefghij"[n % 7 :]} for n in range(20)])
        return server.ask(argv=command(out), folder=str(folder), **scratch, **moment)

    def written(folder):
        """By index, in whatever order they stand."""
        journal = folder / ("a.jsonl" if out == "a.jsonl" else "a.parquet.jsonl")
        lines = [json.loads(line) for line in journal.read_bytes().splitlines()]
        return sorted(without_times(lines), key=lambda line: line["index"])

    cost = make(tmp_path / "whole")
    assert cost["code"] == 0, (server.scratch / "err").read_text()
    whole = written(tmp_path / "whole")
    assert [line["index"] for line in whole] == list(range(20))
    dice = random.Random(out)
    kinds = ("seconds", "bytes", "fsync", "replace")
    for turn, (kind, share) in enumerate(moments(dice.randrange(99), 12, *kinds)):
        folder = tmp_path / str(turn)
        if kind == "seconds":
            moment = {"after": share * cost["seconds"]}
        elif kind == "bytes":
            moment = {"room": int(share * cost["counts"]["bytes"])}
        else:
            moment = {"call": [kind, 1 + int(share * cost["counts"][kind])]}
        killed = make(folder, **moment)
        assert killed["code"] == -9 or kind == "seconds"
        again = make(folder)
        assert again["code"] == 0, (server.scratch / "err").read_text()
        assert written(folder) == whole
        left = {path.name for path in folder.iterdir()}
        assert left == {path.name for path in (tmp_path / "whole").iterdir()}


def test_an_engine_that_ends_in_the_middle_loses_nothing(toy, tmp_path, source):
    class Breaking(LocalEngine):
        def generate(self, requests, recipe, *, max_batch_size):
            for count, replies in enumerate(
                super().generate(requests, recipe, max_batch_size=max_batch_size)
            ):
                if count == 2:
                    raise SettingError("every worker died")
                yield replies

    out = tmp_path / "a.jsonl"
    with pytest.raises(SettingError, match="every worker died"):
        run(Breaking(toy), source, out, name="m", recipe=FIVE, rows=1)
    assert len(read_lines(out)) == 1 + 2 * 4
    whole, _ = answer(toy, source, tmp_path / "whole.jsonl")
    assert without_times(answer(toy, source, out)[0]) == without_times(whole)
