"""A process that forks a child for each command, so that a hundred crashes do not need a hundred imports.

A child runs a `lastword` command and is killed, or runs out of disk space, where its order says. Orders and
results are lines of JSON.
"""

from __future__ import annotations

import builtins
import importlib
import io
import json
import mmap
import os
import pathlib
import resource
import signal
import struct
import subprocess
import sys
import time
import traceback

import torch

# Modules that the commands import when they run.
WARM = (
    "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "matplotlib.pyplot",
    "pyarrow.parquet", "rich.progress", "tokenizers", "lastword.batch", "lastword.cli", "lastword.engines",
    "lastword.evaluate", "lastword.models.load",
)  # fmt: skip
COUNTED = ("bytes", "fsync", "replace")


class Counts:
    """Counts of writes to the disk, in memory that the parent can read after a crash of the child."""

    def __init__(self):
        self.shared = mmap.mmap(-1, 8 * len(COUNTED))

    def all(self):
        return dict(zip(COUNTED, struct.unpack(f"{len(COUNTED)}q", self.shared[:])))

    def add(self, name, number=1):
        counted = self.all()
        counted[name] += number
        self.shared[:] = struct.pack(f"{len(COUNTED)}q", *counted.values())
        return counted[name]


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def inject_crash(order, counts):
    """Count writes; end before a call, or end or report a full disk in the middle of a write."""
    room, end, at_call = order.get("room"), order.get("end", "kill"), order.get("call")

    class CrashingFile(io.FileIO):
        def write(self, data):
            data = bytes(data)
            left = len(data) if room is None else max(0, room - counts.all()["bytes"])
            if len(data) <= left:
                counts.add("bytes", len(data))
                return super().write(data)
            if left:
                counts.add("bytes", left)
                super().write(data[:left])
            if end == "kill":
                die()
            if not left:
                raise OSError(28, "No space left on device")
            return left

    def opened(path, mode="r", *more, **options):
        if "b" in mode and ("w" in mode or "a" in mode):
            raw = CrashingFile(path, mode.replace("b", ""))
            return raw if options.get("buffering") == 0 else io.BufferedWriter(raw)
        return builtins.open(path, mode, *more, **options)

    def counted(name, call):
        def calling(*given):
            if [name, counts.add(name)] == at_call:
                die()
            return call(*given)

        return calling

    import lastword.io.files

    lastword.io.files.open = opened
    pathlib.Path.open = opened
    os.fsync, os.replace = counted("fsync", os.fsync), counted("replace", os.replace)


def run_command(order, counts):
    """Run a command in the child; never returns."""
    code = 99
    try:
        os.chdir(order["folder"])
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(order[name], os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), number)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.argv = ["lastword", *order["argv"]]
        inject_crash(order, counts)
        from lastword.cli import main

        main()
    except SystemExit as exit:
        code = exit.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def run(order):
    counts, began = Counts(), time.perf_counter()
    child = os.fork()
    if not child:
        run_command(order, counts)
    if "after" in order:
        time.sleep(order["after"])
    else:
        deadline = began + 120
        while time.perf_counter() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return answer(status, counts, began)
            time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    return answer(os.waitpid(child, 0)[1], counts, began)


def answer(status, counts, began):
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "seconds": time.perf_counter() - began, "counts": counts.all()}


def main():
    torch.set_num_threads(1)
    for name in WARM:
        importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        if "system" in order:
            done = subprocess.run(order["system"], capture_output=True, text=True)
            result = {"code": done.returncode, "err": done.stderr}
        else:
            result = run(order)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
