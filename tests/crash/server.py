"""A warm process that forks a child for every command it is given: fifty crashes cost no fifty starts.

A child is a `lastword` command like any other, killed or out of disk space where its order says. Orders and
outcomes are lines of JSON.
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

# What the commands import when they run, so that a child has it from the start.
WARM = (
    "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "matplotlib.pyplot",
    "pyarrow.parquet", "rich.progress", "lastword.calibration.fit", "lastword.cli", "lastword.evaluate",
    "lastword.models", "lastword.paper.export", "lastword.paper.figures", "lastword.paper.tables",
    "tokenizers",
)  # fmt: skip
COUNTED = ("bytes", "fsync", "replace")


class Counts:
    """What a child has done to the disk so far, where its parent can read it after a crash."""

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


def hurt(order, counts):
    """Count what goes to the disk; die before a call, or die or find it full in the middle of a write."""
    room, end, at_call = order.get("room"), order.get("end", "kill"), order.get("call")

    class Wounded(io.FileIO):
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
            raw = Wounded(path, mode.replace("b", ""))
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


def be_lastword(order, counts):
    """The child: never returns."""
    code = 99
    try:
        os.chdir(order["folder"])
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(order[name], os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), number)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.argv = ["lastword", *order["argv"]]
        hurt(order, counts)
        from lastword.cli import main

        main()
    except SystemExit as left:
        code = left.code or 0
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
        be_lastword(order, counts)
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
            outcome = {"code": done.returncode, "said": done.stderr}
        else:
            outcome = run(order)
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
