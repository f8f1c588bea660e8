"""The commands that are killed: what they start from, and what an unbroken run of them leaves."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from lastword.tasks.frozen import load_frozen

ROOT = Path(__file__).parent.parent.parent
JOURNAL = "made/tiny-llada-base.test.jsonl"
# A machine's own, and how a batch was made up after a crash: no part of an answer.
ASIDE = ("seconds", "batch_seconds", "rows")
# Files of the user's, beside ours and named much like them.
BYSTANDERS = {
    "made/notes.txt": b"mine\n",
    "made/tiny-llada-base.test.jsonl.bak": b'{"model":"mine","we',
    "made/other.csv": b"a,b\n",
    "made/.tables.md.old": b"mine\r\n",
    "made/.lengths.json.unfinished": b"",
}


def ask(length: str) -> list[str]:
    return [
        "eval", "-m", "tiny-llada-base", "--tasks", "algebra,word_problems", "--limit", "5", "--rows", "2",
        "--length", length, "--out", "made",
    ]  # fmt: skip


COMMANDS = {
    "eval": ask("fixed:4"),
    "calibrate": ["calibrate", "-m", "tiny-llada-base", "--prompts", "prompts.jsonl", "--coverage", "0.5",
                  "--limit", "32", "--rows", "1", "--out", "made/lengths.json"],
    "tables": ["tables", "--records", "records", "--out", "made", "--parquet", "made/records.parquet"],
}  # fmt: skip


def prompts() -> bytes:
    """A few that the model answers and ends within 32 slots, among others that it does not."""
    asked = [one.prompt for one in load_frozen("validation", "word_problems")[:4]]
    return "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in asked).encode()


@dataclass
class Server:
    """The process that forks commands, and what they did when nothing went wrong."""

    process: subprocess.Popen[str]
    scratch: Path
    started: dict[str, dict[str, bytes]] = field(default_factory=dict)  # the folder a command is given
    unbroken: dict[str, dict[str, bytes]] = field(default_factory=dict)  # and what it leaves there
    cost: dict[str, dict] = field(default_factory=dict)  # seconds and counts of the unbroken run

    @classmethod
    def start(cls, scratch: Path, before: tuple[str, ...] = ()) -> Server:
        command = [*before, sys.executable, "-m", "tests.crash.server"]
        pipe = subprocess.PIPE
        return cls(subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True), scratch)

    def ask(self, **order: object) -> dict:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def run(self, name: str, folder: Path, **moment: object) -> dict:
        out, err = self.scratch / "out", self.scratch / "err"
        argv = COMMANDS.get(name) or ask(name)
        done = self.ask(argv=argv, folder=str(folder), out=str(out), err=str(err), **moment)
        return done | {"err": err.read_text()}

    def prepare(self, name: str) -> None:
        """Run a command unbroken, once, to know what it does."""
        if name in self.unbroken:
            return
        folder = self.scratch / name
        begun = BYSTANDERS | {"prompts.jsonl": prompts()}
        if name == "eval":  # another recipe was measured into the folder before
            put(folder, begun)
            assert self.run("fixed:1", folder)["code"] == 0
            begun = taken(folder)
        if name == "calibrate":  # there is an older one
            put(folder, begun)
            assert self.run(name, folder)["code"] == 0
            older = taken(folder)["made/lengths.json"].replace(b'"coverage": 0.5', b'"coverage": 0.4')
            begun |= {"made/lengths.json": older}
        if name == "tables":
            self.prepare("eval")
            begun |= {
                "records/a.jsonl": self.unbroken["eval"][JOURNAL],
                "made/tables.md": b"**Table 1.** Older.\n",
            }
        put(folder, begun)
        self.started[name] = begun
        self.cost[name] = self.run(name, folder)
        assert self.cost[name]["code"] == 0, self.cost[name]["err"]
        self.unbroken[name] = taken(folder)


def put(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def taken(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def records(journal: bytes) -> list[str]:
    """What was answered, in no order: a line each, without what may differ."""
    lines = [json.loads(line) for line in journal.splitlines()]
    kept = [{name: one[name] for name in one if name not in ASIDE} for one in lines]
    return sorted(json.dumps(one) for one in kept)


def check_whole(server: Server, name: str, now: dict[str, bytes]) -> None:
    """After a crash: files of the user's as they were, records kept, every other file old or new."""
    before, after = server.started[name], server.unbroken[name]
    for path, content in now.items():
        if path == JOURNAL:
            assert content.startswith(before[path])
            whole = content[: content.rfind(b"\n") + 1]
            assert set(records(whole)) <= set(records(after[path]))
        elif not is_unfinished(path):
            assert content in (before.get(path), after.get(path)), path
    assert set(before) <= set(now)
    assert all(now[path] == content for path, content in BYSTANDERS.items())


def check_equal(server: Server, name: str, now: dict[str, bytes]) -> None:
    """After the same command again: nothing lost, doubled or left over; as if nothing had happened."""
    after = dict(server.unbroken[name])
    now = dict(now)
    if JOURNAL in after:
        assert records(now.pop(JOURNAL)) == records(after.pop(JOURNAL))
    assert now == after


def is_unfinished(path: str) -> bool:
    return path.endswith(".unfinished") and path not in BYSTANDERS


def moments(seed: int, count: int, *kinds: str) -> list[tuple[str, float]]:
    """So many moments, each a kind and a share of the way through the command."""
    dice = random.Random(seed)
    return [(kinds[at % len(kinds)], round((at + dice.random()) / count, 4)) for at in range(count)]


def at(server: Server, name: str, kind: str, share: float) -> dict:
    """The moment as an order: after so many seconds, behind so many bytes, before a call."""
    cost = server.cost[name]
    if kind == "seconds":
        return {"after": share * cost["seconds"]}
    if kind == "bytes":
        return {"room": int(share * cost["counts"]["bytes"])}
    return {"call": [kind, 1 + int(share * cost["counts"][kind])]}
