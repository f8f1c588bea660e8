"""The interpreter that runs one program.

The runner passes the source of this module to `python -c`, because the package is hidden in the sandbox.
It imports few modules of the standard library: every import delays every program.
"""

import os
import resource
import sys
from types import CodeType

STARTED = b"+"  # written before the program starts: what fails earlier is a failure of the sandbox


def main(source_bytes: int, verdict: int, user: int, limits: dict[str, int]) -> None:
    """Limit this process, run a program and write the token to the file `verdict` after its last line.

    The program and the token arrive on standard input. While the program runs, the token is only on the
    interpreter's stack: no variable, frame, module or container leads to it. (A program that reads the
    raw memory of its process can still find it.) If `user` is positive, root becomes that user.
    """
    sys.path.remove("")  # the flag -I would do this, but it also ignores PYTHONHASHSEED
    if user:
        _open_library()
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    for name, value in limits.items():
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
        except (AttributeError, ValueError, OSError):  # macOS lacks some limits
            if sys.platform == "linux":
                raise
    os.write(verdict, STARTED)
    source = _read(source_bytes).decode()  # decoded here, so that a coding comment has no effect
    code = compile(source, "answer", "exec", dont_inherit=True)
    module, process = type(sys)("__main__"), os.getpid()
    sys.modules["__main__"], sys.argv = module, ["answer"]
    for name in {*os.environ} - {"TMPDIR"}:
        del os.environ[name]
    token = (_read_token(), _run(code, module.__dict__))[0]
    if os.getpid() == process:  # a forked child of the program also arrives here
        sys.stdout.flush()
        os.write(verdict, token)


def _run(code: CodeType, names: dict[str, object]) -> bool:
    exec(code, names)
    return True


def _read(length: int) -> bytes:
    """Read exactly `length` bytes of standard input."""
    data = b""
    while len(data) < length:
        data += os.read(0, length - len(data)) or sys.exit("standard input ended early")
    return data


def _read_token() -> bytes:
    """Read the token and leave an empty pipe as standard input."""
    token = _read(32)
    empty, end = os.pipe()
    os.close(end)
    os.dup2(empty, 0)
    os.close(empty)
    return token


def _open_library() -> None:
    """Import the standard library through an open folder: other users may be unable to reach its path."""
    prefix = sys.base_prefix
    opened = f"/proc/self/fd/{os.open(prefix, os.O_RDONLY)}"
    if not os.path.isdir(opened):  # under bubblewrap there is no /proc, and the path is readable
        return
    for paths in [sys.path, *(getattr(module, "__path__", []) for module in [*sys.modules.values()])]:
        paths[:] = [opened + path[len(prefix) :] if path.startswith(prefix) else path for path in paths]
