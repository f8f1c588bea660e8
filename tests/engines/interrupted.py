"""Evaluations by the command line that are killed or run out of disk space, and how records are compared."""

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
from lastword.evaluate.tasks import embedded_tasks
from tests.engines.replies import TIMES

ROOT = Path(__file__).parent.parent.parent
NAME, TASKS, LIMIT, ROWS = "tiny-llada-base", ["algebra", "word_problems"], 10, 2
RECIPE = lastword.Recipe.named("fast").with_choices(length="default:48")
JOURNAL = f"{NAME}.test.jsonl"
ROUNDED = ("expected_length", "tail")  # the last digits depend on the rest of the batch
COMMAND = [
    sys.executable, "-m", "lastword", "eval", "-m", NAME, "--tasks", ",".join(TASKS), "--recipe", "fast",
    "--length", "default:48", "--limit", str(LIMIT), "--batch-size", str(ROWS), "--out",
]  # fmt: skip


def environment():
    """Return the current environment, in which Ray keeps whether its clusters need a token."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def evaluate_into(journal, model=None, engine=None, progress=lambda done, total: None):
    """Evaluate in this process, or with an engine, and return the records."""
    evaluate(
        model or lastword.load(NAME, device="cpu"), NAME, embedded_tasks(TASKS), RECIPE, Journal(journal),
        limit=LIMIT, max_batch_size=ROWS, engine=engine, progress=progress,
    )  # fmt: skip
    return records(journal)


def records(journal):
    """Return the records in a fixed order, repeated ones repeatedly, without what may differ."""
    lines = []
    for line in journal.read_bytes().splitlines():
        record = {name: value for name, value in json.loads(line).items() if name not in TIMES}
        record["hardware"] = record["hardware"].rpartition(",")[0]  # without the number of threads
        record |= {name: record[name] and round(record[name], 2) for name in ROUNDED}
        lines.append(json.dumps(record, sort_keys=True))
    return sorted(lines)


def run_and_kill(options, out):
    """Run the command and kill its process when some records are written."""
    process = subprocess.Popen([*COMMAND, str(out), *options], env=environment(), cwd=ROOT, stderr=subprocess.PIPE)
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
    assert 4 <= journal.read_bytes().count(b"\n") < 2 * LIMIT


def run(options, out, max_file_bytes=None):
    """Run the command to its end."""
    limit = [] if max_file_bytes is None else ["prlimit", f"--fsize={max_file_bytes}"]
    return subprocess.run(
        [*limit, *COMMAND, str(out), *options],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def check_resumed(options, out, expected):
    """Run the command again and check that nothing is lost or repeated."""
    done = run(options, out)
    assert done.returncode == 0, done.stderr
    assert records(out / JOURNAL) == expected
    assert "tiny" in done.stdout


def processes():
    """Return (parent's pid, command line, working directory) of each process by pid."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                command = (entry / "cmdline").read_text().replace("\0", " ")
                found[int(entry.name)] = int(parent), command, os.readlink(entry / "cwd")
            except OSError:  # it has ended, or belongs to another user
                continue
    return found
