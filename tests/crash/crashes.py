"""Commands that are killed or run out of disk space, and checks of the files they leave."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from lastword.tasks import load_frozen

ROOT = Path(__file__).parent.parent.parent
MODEL = ["-m", "tiny-llada-base"]
# Files of lines that are written as they finish, in any order.
JOURNALS = ("made/tiny-llada-base.test.jsonl", "made/answers.jsonl", "made/table.parquet.jsonl")
DIFFERING = ("seconds", "seconds_share", "rows")  # between equal runs
# Files of the user with names like those of the commands.
USER_FILES = {
    "made/notes.txt": b"mine\n",
    "made/tiny-llada-base.test.jsonl.bak": b'{"model":"mine","we',
    "made/other.csv": b"a,b\n",
    "made/.tables.md.old": b"mine\r\n",
    "made/.lengths.json.unfinished": b"",
}


def evaluate(length: str) -> list[str]:
    return [
        "eval", *MODEL, "--tasks", "algebra,word_problems", "--limit", "5", "--batch-size", "2", "--length", length,
        "--out", "made",
    ]  # fmt: skip


def batch(out: str) -> list[str]:
    return ["batch", "batch.jsonl", "--out", out, "-m", "toy", "--length", "fixed:4", "--batch-size", "1"]


COMMANDS = {
    "eval": evaluate("fixed:4"),
    "calibrate": ["calibrate", *MODEL, "--prompts", "prompts.jsonl", "--coverage", "0.5", "--slots", "32",
                  "--batch-size", "1", "--out", "made/lengths.json"],
    "tables": ["tables", "--records", "records", "--out", "made", "--parquet", "made/records.parquet"],
    "batch": batch("made/answers.jsonl"),
    "batch-parquet": batch("made/table.parquet"),
}  # fmt: skip


def prompts() -> dict[str, bytes]:
    """Return files of prompts: some of the answers to the first file end within 32 slots."""
    texts = [example.prompt for example in load_frozen("validation", "word_problems")[:4]]
    files = {"prompts.jsonl": texts, "batch.jsonl": ["abcdefghij"[n % 7 :] for n in range(12)]}
    return {
        name: "".join(json.dumps({"prompt": text}) + "\n" for text in texts).encode() for name, texts in files.items()
    }


@dataclass
class CrashServer:
    """The process that forks commands, and the results of the commands without a crash."""

    process: subprocess.Popen[str]
    scratch: Path
    initial: dict[str, dict[str, bytes]] = field(default_factory=dict)  # the files before each command
    final: dict[str, dict[str, bytes]] = field(default_factory=dict)  # and after it
    cost: dict[str, dict] = field(default_factory=dict)  # its seconds and counts

    @classmethod
    def start(cls, scratch: Path, prefix: tuple[str, ...] = ()) -> CrashServer:
        command = [*prefix, sys.executable, "-m", "tests.crash.server"]
        pipe = subprocess.PIPE
        return cls(subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True), scratch)

    def send(self, **order: object) -> dict:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def run(self, name: str, folder: Path, **crash: object) -> dict:
        out, err = self.scratch / "out", self.scratch / "err"
        argv = COMMANDS.get(name) or evaluate(name)
        result = self.send(argv=argv, folder=str(folder), out=str(out), err=str(err), **crash)
        return result | {"err": err.read_text()}

    def prepare(self, name: str) -> None:
        """Run a command once without a crash."""
        if name in self.final:
            return
        folder = self.scratch / name
        initial = USER_FILES | prompts()
        if name == "eval":  # the folder has records of another recipe
            write_files(folder, initial)
            assert self.run("fixed:1", folder)["code"] == 0
            initial = read_files(folder)
        if name == "calibrate":  # an older calibration exists
            write_files(folder, initial)
            assert self.run(name, folder)["code"] == 0
            older = read_files(folder)["made/lengths.json"].replace(b'"coverage": 0.5', b'"coverage": 0.4')
            initial |= {"made/lengths.json": older}
        if name == "tables":
            self.prepare("eval")
            records = {"records/a.jsonl": self.final["eval"][JOURNALS[0]]}
            initial |= records | {"made/tables.md": b"<!-- lastword tables -->\nOlder.\n"}
        write_files(folder, initial)
        self.initial[name] = initial
        self.cost[name] = self.run(name, folder)
        assert self.cost[name]["code"] == 0, self.cost[name]["err"]
        self.final[name] = read_files(folder)

    def crash_at(self, name: str, kind: str, share: float) -> dict:
        """Return an order to crash after a share of the command's seconds, bytes, or calls of a function."""
        cost = self.cost[name]
        if kind == "seconds":
            return {"after": share * cost["seconds"]}
        if kind == "bytes":
            return {"room": int(share * cost["counts"]["bytes"])}
        return {"call": [kind, 1 + int(share * cost["counts"][kind])]}

    def check_after_crash(self, name: str, files: dict[str, bytes]) -> None:
        """Check that the user's files are unchanged, lines are kept, and other files are old or new."""
        initial, final = self.initial[name], self.final[name]
        for path, content in files.items():
            if path in JOURNALS:
                assert content.startswith(initial.get(path, b""))
                complete = content[: content.rfind(b"\n") + 1]
                assert set(comparable_lines(complete)) <= set(comparable_lines(final[path]))
            elif not is_unfinished(path):
                assert path == "made/table.parquet" or content in (initial.get(path), final.get(path)), path
        assert set(initial) <= set(files)
        assert all(files[path] == content for path, content in USER_FILES.items())

    def check_resumed(self, name: str, files: dict[str, bytes]) -> None:
        """Check that the files equal those of a run without a crash."""
        final = self.final[name]
        assert set(files) == set(final)
        for path, content in files.items():
            if path in JOURNALS:
                assert comparable_lines(content) == comparable_lines(final[path])
            elif path != "made/table.parquet":  # its seconds differ; its lines are in the journal
                assert content == final[path], path


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def read_files(folder: Path) -> dict[str, bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def comparable_lines(journal: bytes) -> list[str]:
    """Return the lines of a journal in a fixed order, without what may differ."""
    lines = [json.loads(line) for line in journal.splitlines()]
    kept = [{name: value for name, value in line.items() if name not in DIFFERING} for line in lines]
    return sorted(json.dumps(line) for line in kept)


def is_unfinished(path: str) -> bool:
    return path.endswith(".unfinished") and path not in USER_FILES


def moments(seed: int, count: int, *kinds: str) -> list[tuple[str, float]]:
    """Return `count` kinds of crash, each with the share of the command before it."""
    generator = random.Random(seed)
    return [(kinds[at % len(kinds)], round((at + generator.random()) / count, 4)) for at in range(count)]
