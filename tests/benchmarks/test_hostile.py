"""Tests of the benchmark with hostile clients: its clients, its table, and (full) a run."""

import asyncio
import dataclasses
import json
import time

import pytest

from benchmarks.hostile import __main__ as hostile
from benchmarks.hostile.clients import KINDS, attack_for, head, post
from benchmarks.hostile.record import read, table
from benchmarks.pages import HOSTILE


def test_requests_are_complete_but_for_what_is_wrong_with_them():
    key = b"Authorization: Bearer key of the benchmark\r\n"
    assert head("/x", "A: b") == b"GET /x HTTP/1.1\r\nHost: localhost\r\n" + key + b"A: b\r\n"
    start, _, body = post(b"{}", 9, key="k").partition(b"\r\n\r\n")
    assert (start.split(b"\r\n")[-1], body) == (b"Content-Length: 9", b"{}")


def test_clients_of_every_kind_connect_again_and_end_by_themselves():
    received = {}

    async def attacked():
        servers = []
        for name, kind in KINDS.items():
            received[name] = []

            async def answer(reader, writer, parts=received[name]):
                parts.append(await reader.read(1000))
                writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                writer.close()

            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            servers.append(attack_for(dataclasses.replace(kind, connections=2), port, 1.0))
        start = time.monotonic()
        await asyncio.gather(*servers)
        return time.monotonic() - start

    assert asyncio.run(attacked()) < 5
    for name, parts in received.items():
        silent = name.startswith("silent")
        assert silent or any(part.startswith((b"GET ", b"POST ", b"\r\n")) for part in parts), name
    assert len(received["connects"]) > 2


def test_the_page_shows_every_kept_kind():
    record = read(HOSTILE)
    assert [line.kind for line in record.lines] == [*KINDS]
    rows = table(record).splitlines()[4:]
    for line, row in zip(record.lines, rows, strict=True):
        cells = row.removeprefix("| ").removesuffix(" |").split(" | ")
        assert cells[0] == KINDS[line.kind].description
        assert cells[1] == f"{KINDS[line.kind].connections:,}"
        assert cells[2].split(",")[0] == f"{1000 * line.health.before:.0f}"
        assert (line.files_left, line.answers_left, cells[5]) == (0, 0, "nothing")
        assert (line.health.failed, line.answer.failed) == (0, 0)


def test_failures_and_leaks_are_shown(tmp_path):
    record = json.loads(HOSTILE.read_text())
    record["lines"] = record["lines"][:1]
    record["lines"][0] |= {"files_left": 3, "answers_left": 2}
    record["lines"][0]["health"] |= {"before": 0.0123, "during": 1.5, "longest": 20.0, "after": 0.01, "failed": 4}
    (tmp_path / "record.json").write_text(json.dumps(record))
    row = table(read(tmp_path / "record.json")).splitlines()[-1]
    assert "| 12, 1,500 (20,000), 10, **4 failed** |" in row
    assert row.endswith("| 3 files, 2 answers |")


@pytest.mark.full
@pytest.mark.slow
def test_a_healthy_client_is_answered_during_attacks(tmp_path):
    kinds = ["silent", "wrong-keys", "cancelled"]
    command = ["--seconds", "2", "--out", str(tmp_path / "record.json"), "--kinds", *kinds]
    record = hostile.main(command)
    if any(line.health.failed for line in record.lines):  # beside other work, a connection may fail once
        record = hostile.main(command)
    assert [line.kind for line in read(tmp_path / "record.json").lines] == kinds
    for line in record.lines:
        assert (line.files_left, line.answers_left, line.health.failed, line.answer.failed) == (0, 0, 0, 0)
        assert 0 < line.health.during <= line.health.longest
    assert record.lines[0].open >= 500  # of 1,000 clients, which connect during the attack
