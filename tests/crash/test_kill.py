"""After `kill -9` at forty-three moments, the same command loses, repeats and changes nothing."""

import pytest

from tests.crash.crashes import moments, read_files, write_files

pytestmark = pytest.mark.full

MOMENTS = [
    *(("eval", *moment) for moment in moments(1, 8, "seconds")),
    *(("eval", *moment) for moment in moments(2, 5, "bytes")),
    *(("eval", *moment) for moment in moments(3, 4, "fsync")),
    *(("calibrate", *moment) for moment in moments(4, 2, "seconds")),
    *(("calibrate", *moment) for moment in moments(5, 2, "bytes")),
    *(("calibrate", *moment) for moment in [*moments(6, 2, "fsync"), *moments(7, 1, "replace")]),
    *(("tables", *moment) for moment in moments(8, 2, "seconds")),
    *(("tables", *moment) for moment in moments(9, 2, "bytes")),
    *(("tables", *moment) for moment in moments(10, 3, "replace")),
    *(("batch", *moment) for moment in moments(14, 6, "seconds", "bytes", "fsync")),
    *(("batch-parquet", *moment) for moment in moments(15, 6, "seconds", "bytes", "replace")),
]


@pytest.mark.parametrize(("name", "kind", "share"), MOMENTS)
def test_a_killed_command_is_resumed(server, tmp_path, name, kind, share):
    server.prepare(name)
    write_files(tmp_path, server.initial[name])
    killed = server.run(name, tmp_path, **server.crash_at(name, kind, share))
    assert killed["code"] == -9 or kind == "seconds"  # a faster run may have finished before
    server.check_after_crash(name, read_files(tmp_path))
    again = server.run(name, tmp_path)
    assert again["code"] == 0, again["err"]
    server.check_resumed(name, read_files(tmp_path))


def test_a_run_that_is_killed_repeatedly_finishes(server, tmp_path):
    server.prepare("eval")
    write_files(tmp_path, server.initial["eval"])
    for _ in range(4):
        assert server.run("eval", tmp_path, room=2500)["code"] == -9
        server.check_after_crash("eval", read_files(tmp_path))
    assert server.run("eval", tmp_path)["code"] == 0
    server.check_resumed("eval", read_files(tmp_path))
