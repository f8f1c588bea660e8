"""Evaluations that are broken: what they are, how their records are compared, and how they are killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import lastword
from lastword.evaluate import Journal
from lastword.evaluate.run import evaluate
from lastword.evaluate.tiny import tiny_tasks

ROOT = Path(__file__).parent.parent.parent
NAME, TASKS, LIMIT, ROWS = "tiny-llada-base", ["algebra", "word_problems"], 10, 2
RECIPE = lastword.Recipe.named("fast").with_choices(length="default:48")
JOURNAL = f"{NAME}.test.jsonl"
TIMES = ("seconds", "batch_seconds", "rows")
ROUNDED = ("expected_length", "tail")  # what else is in a batch changes their last digits
COMMAND = [
    sys.executable, "-m", "lastword", "eval", "-m", NAME, "--tasks", ",".join(TASKS), "--recipe", "fast",
    "--length", "default:48", "--limit", str(LIMIT), "--rows", str(ROWS), "--out",
]  # fmt: skip


def environment():
    """As it is now: Ray writes there whether its clusters ask for a token."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def evaluated(journal, model=None, engine=None, progress=lambda done, total: None):
    """Records in the journal, as lines without what may differ."""
    evaluate(
        model or lastword.load(NAME, device="cpu"), NAME, tiny_tasks(TASKS), RECIPE, Journal(journal),
        limit=LIMIT, rows=ROWS, engine=engine, progress=progress,
    )  # fmt: skip
    return records(journal)


def records(journal):
    """What was answered, in no order; a record that is there twice is there twice."""
    found = []
    for line in journal.read_bytes().splitlines():
        one = {name: value for name, value in json.loads(line).items() if name not in TIMES}
        one["hardware"] = one["hardware"].rpartition(",")[0]  # threads are a worker's own
        one |= {name: one[name] and round(one[name], 2) for name in ROUNDED}
        found.append(json.dumps(one, sort_keys=True))
    return sorted(found)


def killed_half_way(options, out):
    """Give the command, and kill whoever drives it when some records are written."""
    process = subprocess.Popen(
        [*COMMAND, str(out), *options], env=environment(), cwd=ROOT, stderr=subprocess.PIPE
    )
    journal = out / JOURNAL
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if journal.exists() and journal.read_bytes().count(b"\n") >= 4:
                break
            time.sleep(0.02)
        assert process.poll() is None, process.stderr.read().decode()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    count = journal.read_bytes().count(b"\n")
    assert 4 <= count < 2 * LIMIT
    return count


def given(options, out, limit=None):
    """The command as it ends; with `limit`, no file may grow beyond so many bytes."""
    command = [*COMMAND, str(out), *options]
    if limit is not None:
        command = ["prlimit", f"--fsize={limit}", *command]
    return subprocess.run(
        command,
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def children(parent):
    """Processes by their names, of whom this is the parent."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "status").read_text()
                named = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            if f"\nPPid:\t{parent}\n" in status:
                found[int(entry.name)] = named
    return found
