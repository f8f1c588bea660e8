"""A full disk at different moments gives one error line and loses nothing; with space the command resumes."""

import pytest

from tests.crash.crashes import moments, read_files, write_files

pytestmark = pytest.mark.full

MOMENTS = [
    *(("eval", *moment) for moment in moments(11, 6, "bytes")),
    *(("calibrate", *moment) for moment in moments(12, 3, "bytes")),
    *(("tables", *moment) for moment in moments(13, 3, "bytes")),
    *(("batch", *moment) for moment in moments(16, 4, "bytes")),
]
# Pages of 4 KiB that a real disk has beyond its initial files.
PAGES = [("eval", 0), ("eval", 1), ("calibrate", 0), ("tables", 1), ("tables", 4), ("batch", 1)]


def check_error(result):
    """Check for one error line, after the output of the progress bar."""
    assert result["code"] == 1, result["err"]
    assert "Traceback" not in result["err"]
    lines = [line for line in result["err"].splitlines() if line.startswith("lastword: ")]
    assert len(lines) == 1
    assert "No space left on device" in lines[0]


@pytest.mark.parametrize(("name", "kind", "share"), MOMENTS)
def test_a_full_disk_loses_nothing(server, tmp_path, name, kind, share):
    server.prepare(name)
    write_files(tmp_path, server.initial[name])
    check_error(server.run(name, tmp_path, end="full", **server.crash_at(name, kind, share)))
    files = read_files(tmp_path)
    server.check_after_crash(name, files)
    assert set(files) <= set(server.final[name])  # without unfinished files
    again = server.run(name, tmp_path)
    assert again["code"] == 0, again["err"]
    server.check_resumed(name, read_files(tmp_path))


@pytest.mark.parametrize(("name", "pages"), PAGES)
def test_a_real_disk_that_is_full_loses_nothing(isolated, tmp_path, name, pages):
    isolated.prepare(name)
    disk = tmp_path / "disk"
    disk.mkdir()
    initial = isolated.initial[name]
    size = sum(-(-len(content) // 4096) for content in initial.values()) + pages
    mount = ["mount", "-t", "tmpfs", "-o"]
    assert isolated.send(system=[*mount, f"size={size * 4096}", "none", str(disk)])["code"] == 0
    inside = type(disk)(f"/proc/{isolated.process.pid}/root{disk}")  # as seen outside of its namespace
    write_files(inside, initial)
    check_error(isolated.run(name, disk))
    isolated.check_after_crash(name, read_files(inside))
    assert isolated.send(system=["mount", "-o", "remount,size=16m", str(disk)])["code"] == 0
    again = isolated.run(name, disk)
    assert again["code"] == 0, again["err"]
    isolated.check_resumed(name, read_files(inside))
