"""Run the program, and show the token if it came to its end."""

import os
import sys
from types import CodeType

BEGUN, ENDED = b"+", b"\n"  # around the walls


def run(length: int, verdict: int, walls: str) -> None:
    """Take source and token from standard input; write the token to `verdict` after the last line.

    What goes wrong before `BEGUN` is written, with the walls that stand, is the sandbox's fault, not the
    program's.

    While the program runs, the token is in no variable, no code and no container, only on the
    interpreter's stack: frames, modules and the garbage collector do not show it. A program that
    reads its own raw memory finds it, and one that returns an object equal to everything, or makes a
    tracer jump over the asserts, needs none: no sandbox stops those.
    """
    os.write(verdict, BEGUN + walls.encode() + ENDED)
    source = read(length).decode()  # as text: bytes may name a codec that makes other code of them
    code = compile(source, "answer", "exec", dont_inherit=True)
    main = type(sys)("__main__")
    for name in [name for name in sys.modules if name.startswith("lastword")]:
        del sys.modules[name]
    sys.modules["__main__"], sys.argv = main, ["answer"]
    os.environ.clear()
    mine = os.getpid()
    token = (_take_token(), _came_to_its_end(code, main.__dict__))[0]
    if os.getpid() == mine:  # a child of the program may come here too
        sys.stdout.flush()
        os.write(verdict, token)


def _came_to_its_end(code: CodeType, names: dict[str, object]) -> bool:
    exec(code, names)
    return True


def read(length: int) -> bytes:
    """So many bytes of standard input, which is never read ahead."""
    parts = []
    while length:
        part = os.read(0, length)
        if not part:
            raise EOFError("standard input ended early")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _take_token() -> bytes:
    token = read(32)
    empty, end = os.pipe()
    os.close(end)
    os.dup2(empty, 0)
    os.close(empty)
    return token
