"""The child process that runs one program.

`runner.py` passes the source of this module to `python -c`, because the package is hidden in the sandbox.
The module imports little of the standard library, because every import delays every program.
"""

import os
import resource
import sys
from types import CodeType

STARTED = b"+"  # written before the program starts; if this byte is missing, the sandbox failed


def main(source_bytes: int, verdict: int, user: int, limits: dict[str, int]) -> None:
    """Set the limits, run a program, and after its last line write a token to the file descriptor `verdict`.

    The program and the token are read from standard input. While the program runs, the token is only on the
    interpreter's stack: no variable, frame, module or container references it. (A program that reads the
    raw memory of its process can still find it.) A positive `user` is the user id that root switches to.
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
    source = _read(source_bytes).decode()  # as text, in which an encoding declaration has no effect
    code = compile(source, "answer", "exec", dont_inherit=True)
    module, process = type(sys)("__main__"), os.getpid()
    sys.modules["__main__"], sys.argv = module, ["answer"]
    for name in {*os.environ} - {"TMPDIR"}:
        del os.environ[name]
    token = (_read_token(), _run(code, module.__dict__))[0]
    if os.getpid() == process:  # a process that the program forked also reaches this line
        sys.stdout.flush()
        os.write(verdict, token)


def _run(code: CodeType, names: dict[str, object]) -> bool:
    exec(code, names)
    return True


def _read(length: int) -> bytes:
    """Return exactly `length` bytes of standard input; exit if it ends early."""
    data = b""
    while len(data) < length:
        data += os.read(0, length - len(data)) or sys.exit("standard input ended early")
    return data


def _read_token() -> bytes:
    """Return the token, and replace standard input by an empty pipe for the program."""
    token = _read(32)
    empty, end = os.pipe()
    os.close(end)
    os.dup2(empty, 0)
    os.close(empty)
    return token


def _open_library() -> None:
    """Let imports of the standard library use a descriptor of its folder; other users may lack access to its path."""
    prefix = sys.base_prefix
    opened = f"/proc/self/fd/{os.open(prefix, os.O_RDONLY)}"
    if not os.path.isdir(opened):  # under bubblewrap there is no /proc, and the path is readable
        return
    for paths in [sys.path, *(getattr(module, "__path__", []) for module in [*sys.modules.values()])]:
        paths[:] = [opened + path[len(prefix) :] if path.startswith(prefix) else path for path in paths]
