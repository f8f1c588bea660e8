"""Ctrl-C: a scorer that waits for programs ends them and goes at once."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lastword.sandbox.runner import run_one
from lastword.sandbox.running import Running

SCORER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from lastword.sandbox import run_programs
from lastword.sandbox.outcome import Level
from lastword.sandbox.runner import run_one
import lastword.sandbox.level as level
wanted = Level(sys.argv[1])
level.works = lambda one: one is wanted
run_one("", wanted)
begun = time.monotonic()
try:
    {call}
except KeyboardInterrupt:
    print("interrupted")
"""
CALLS = {
    "many": "run_programs([sys.argv[2]] * 9, workers=3, unsafe=True)",
    "one": "run_one(sys.argv[2], wanted)",
}


def with_argument(mark):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(folder.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("call", CALLS)
def test_programs_end_when_the_scorer_is_interrupted(level, call):
    mark = f"23.{secrets.randbelow(10**8)}"
    program = f"import os\nos.fork() or os.execv('/bin/sleep', ['sleep', '{mark}'])\nwhile True: pass"
    scorer = subprocess.Popen(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            SCORER.format(call=CALLS[call]),
            level.value,
            program,
        ],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        patience = time.monotonic() + 60
        while len(with_argument(mark)) < (3 if call == "many" else 1):
            assert scorer.poll() is None
            assert time.monotonic() < patience
            time.sleep(0.05)
        sent = time.monotonic()
        os.kill(scorer.pid, signal.SIGINT)
        said, _ = scorer.communicate(timeout=20)
        took = time.monotonic() - sent
    finally:
        scorer.kill()
        scorer.wait()
    assert said == "interrupted\n"
    assert took < 2, took  # half a second on a machine with nothing else to do; they had ten
    patience = time.monotonic() + 2
    while with_argument(mark) and time.monotonic() < patience:
        time.sleep(0.02)
    assert with_argument(mark) == []


def test_nothing_starts_after_the_end(level):
    from lastword.errors import SandboxError

    running = Running()
    running.end()
    with pytest.raises(SandboxError, match="it was stopped"):
        run_one("", level, running=running)
