"""A server in a process of its own, and the one in a thread that tests of faults need."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Process:
    """`lastword serve`, as an operator starts it."""

    def __init__(self, *options, model="toy"):
        command = [sys.executable, "-c", "from lastword.cli import main; main()", "serve"]
        self.process = subprocess.Popen(
            [*command, "--model", model, "--port", "0", *map(str, options)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        line = self.process.stdout.readline()
        found = re.search(r" at (http://\S+)$", line.strip())
        assert found, line
        self.url = found[1]


@contextlib.contextmanager
def served(*options, **more):
    own = Process(*options, **more)
    try:
        yield own
    finally:
        own.process.kill()
        own.process.wait(10)


def texts(lines):
    """The chunks of a stream, as data; its end must be there."""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]", data[-1]
    return [json.loads(one) for one in data[:-1]]
