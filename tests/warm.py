"""Commands and examples run in children of one interpreter that has imported everything.

A user starts an interpreter for each; a test saves the seconds that torch takes to import. No job reaches the
next one.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from contextlib import contextmanager

PROGRAM = """
import base64, json, os, signal, sys, tempfile, threading, traceback
import lastword, lastword.api, lastword.cli, lastword.evaluate, lastword.calibration.fit
import lastword.cli.showcase, matplotlib.figure

lastword.load("tiny-llada-base")  # and whatever torch imports for it

def work(job):
    if "code" in job:
        sys.modules["__main__"] = type(sys)("__main__")
        exec(compile(job["code"], "<example>", "exec"), sys.modules["__main__"].__dict__)
        return
    sys.argv = ["lastword", *job["words"]]
    if job["interrupt"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(job["interrupt"], os.kill, (os.getpid(), signal.SIGINT)).start()
    lastword.cli.main()

jobs = os.fdopen(os.dup(0))
for line in jobs:
    job = json.loads(line)
    files = [tempfile.TemporaryFile() for _ in range(3)]
    files[0].write(base64.b64decode(job["stdin"]))
    files[0].seek(0)
    child = os.fork()
    if child == 0:
        signal.alarm(180)  # a job that does not end fails
        for number, file in enumerate(files):
            os.dup2(file.fileno(), number)
        sys.stdin = os.fdopen(0)
        os.chdir(job["folder"])
        os.environ.update(job["environment"])
        status = 0
        try:
            work(job)
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    _, ending = os.waitpid(child, 0)
    result = [os.waitstatus_to_exitcode(ending)]
    for file in files[1:]:
        file.seek(0)
        result.append(file.read().decode())
    print(json.dumps(result), flush=True)
"""


@contextmanager
def warm_interpreter():
    """Yield a function that runs a job and returns its exit code, standard output and standard error.

    A job is the words of a command line, or with `code` a program. Other keyword arguments are variables of its
    environment.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "400", "MPLBACKEND": "agg"},
    )

    def run(folder, *words, code=None, stdin=b"", interrupt=None, **environment):
        job = {"words": words} if code is None else {"code": code}
        job |= {"folder": str(folder), "stdin": base64.b64encode(stdin).decode(), "interrupt": interrupt}
        job |= {"environment": environment}
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield run
    process.communicate()
