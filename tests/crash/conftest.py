import shutil
import subprocess

import pytest

from tests.crash.crashes import CrashServer


def _serve(scratch, *prefix):
    server = CrashServer.start(scratch, prefix)
    yield server
    server.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pytest.importorskip("matplotlib", reason="needs the package matplotlib")
    pytest.importorskip("pyarrow", reason="needs the package pyarrow")
    yield from _serve(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def isolated(tmp_path_factory):
    """A server in a mount namespace of its own."""
    prefix = ("unshare", "--user", "--map-root-user", "--mount")
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip("this kernel gives a process no mount namespace of its own")
    yield from _serve(tmp_path_factory.mktemp("isolated"), *prefix)
