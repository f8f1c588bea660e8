"""A full disk at twenty moments: one line says so, nothing is lost, and with room the command goes on."""

import pytest

from tests.crash.commands import at, check_equal, check_whole, moments, put, taken

pytestmark = pytest.mark.full

MOMENTS = [
    *(("eval", *one) for one in moments(11, 10, "bytes")),
    *(("calibrate", *one) for one in moments(12, 4, "bytes")),
    *(("tables", *one) for one in moments(13, 6, "bytes")),
]
# Of a real disk: so many pages of 4 KiB beyond what is there at the start.
PAGES = [("eval", 0), ("eval", 1), ("calibrate", 0), ("tables", 3), ("tables", 30)]


def check_said(done):
    """Our one line, whatever the progress bar left on the screen before it."""
    assert done["code"] == 1, done["err"]
    assert "Traceback" not in done["err"]
    said = [line for line in done["err"].splitlines() if line.startswith("lastword: ")]
    assert len(said) == 1
    assert "No space left on device" in said[0]


@pytest.mark.parametrize(("name", "kind", "share"), MOMENTS)
def test_a_full_disk_stops_a_command_and_loses_nothing(server, tmp_path, name, kind, share):
    server.prepare(name)
    put(tmp_path, server.started[name])
    check_said(server.run(name, tmp_path, end="full", **at(server, name, kind, share)))
    now = taken(tmp_path)
    check_whole(server, name, now)
    assert set(now) <= set(server.unbroken[name])  # nothing unfinished is left
    again = server.run(name, tmp_path)
    assert again["code"] == 0, again["err"]
    check_equal(server, name, taken(tmp_path))


@pytest.mark.parametrize(("name", "pages"), PAGES)
def test_a_real_disk_that_is_full(isolated, tmp_path, name, pages):
    isolated.prepare(name)
    disk = tmp_path / "disk"
    disk.mkdir()
    started = isolated.started[name]
    full = sum(-(-len(content) // 4096) for content in started.values()) + pages
    mount = ["mount", "-t", "tmpfs", "-o"]
    assert isolated.ask(system=[*mount, f"size={full * 4096}", "none", str(disk)])["code"] == 0
    seen = f"/proc/{isolated.process.pid}/root{disk}"  # from outside its namespace
    inside = type(disk)(seen)
    put(inside, started)
    check_said(isolated.run(name, disk))
    check_whole(isolated, name, taken(inside))
    more = ["mount", "-o", "remount,size=16m", str(disk)]
    assert isolated.ask(system=more)["code"] == 0
    again = isolated.run(name, disk)
    assert again["code"] == 0, again["err"]
    check_equal(isolated, name, taken(inside))
