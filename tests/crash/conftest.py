import shutil
import subprocess

import pytest

from tests.crash.commands import Server


def _served(scratch, *before):
    server = Server.start(scratch, before)
    yield server
    server.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pytest.importorskip("matplotlib", reason="needs the package matplotlib")
    pytest.importorskip("pyarrow", reason="needs the package pyarrow")
    yield from _served(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def isolated(tmp_path_factory):
    """A server that may mount: what it mounts nobody else sees."""
    alone = ("unshare", "--user", "--map-root-user", "--mount")
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("this kernel gives a process no mount namespace of its own")
    yield from _served(tmp_path_factory.mktemp("isolated"), *alone)
