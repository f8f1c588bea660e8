"""`kill -9` at fifty moments, then the same command again: nothing lost, doubled or touched."""

import pytest

from tests.crash.commands import at, check_equal, check_whole, moments, put, taken

pytestmark = pytest.mark.full

MOMENTS = [
    *(("eval", *one) for one in moments(1, 16, "seconds")),
    *(("eval", *one) for one in moments(2, 8, "bytes")),
    *(("eval", *one) for one in moments(3, 6, "fsync")),
    *(("calibrate", *one) for one in moments(4, 4, "seconds")),
    *(("calibrate", *one) for one in moments(5, 3, "bytes")),
    *(("calibrate", *one) for one in [*moments(6, 2, "fsync"), *moments(7, 1, "replace")]),
    *(("tables", *one) for one in moments(8, 4, "seconds")),
    *(("tables", *one) for one in moments(9, 3, "bytes")),
    *(("tables", *one) for one in moments(10, 3, "replace")),
]


def test_there_are_fifty():
    assert len(set(MOMENTS)) == 50


@pytest.mark.parametrize(("name", "kind", "share"), MOMENTS)
def test_a_killed_command_goes_on_as_if_it_had_not_been(server, tmp_path, name, kind, share):
    server.prepare(name)
    put(tmp_path, server.started[name])
    killed = server.run(name, tmp_path, **at(server, name, kind, share))
    assert killed["code"] == -9 or kind == "seconds"  # a faster run may have been done by then
    check_whole(server, name, taken(tmp_path))
    again = server.run(name, tmp_path)
    assert again["code"] == 0, again["err"]
    check_equal(server, name, taken(tmp_path))


def test_a_run_that_is_killed_over_and_over_comes_to_its_end(server, tmp_path):
    server.prepare("eval")
    put(tmp_path, server.started["eval"])
    for _ in range(4):
        assert server.run("eval", tmp_path, room=2500)["code"] == -9
        check_whole(server, "eval", taken(tmp_path))
    assert server.run("eval", tmp_path)["code"] == 0
    check_equal(server, "eval", taken(tmp_path))
