"""The way in: leave everything behind, one thing after another, then run the program."""

import os
import resource
import sys

from lastword.sandbox.inside.nobody import become_nobody
from lastword.sandbox.inside.program import run

KILL = 9  # the module signal would take every program two milliseconds to import


def start(
    level: str,
    visible: list[str],
    hidden: list[str],
    readable: dict[str, str],
    prefix: str,
    room: int,
    limits: dict[str, int],
    length: int,
    verdict: int,
) -> None:
    """`limits` are resource limits by name; source and token come by standard input.

    Paths are as `lastword.sandbox.sight` finds them; `room` is how many bytes of files there may be.
    """
    sys.path.remove("")  # -I would see to it, but would ignore PYTHONHASHSEED too
    linux, own_keys = sys.platform == "linux", False
    if linux:  # before root is left: an own ring counts against the user who makes it
        from lastword.sandbox.inside import keyring

        own_keys = keyring.join_own()
    if level == "namespaces":
        from lastword.sandbox.inside.libc import DIE_WITH_PARENT, control
        from lastword.sandbox.inside.namespaces import enter

        enter(visible, hidden, prefix, room)
        control(DIE_WITH_PARENT, KILL)  # holds for one process: its children ask anew
        _go_on_in_a_child()  # the first process of its namespace: when it ends, all of them do
        control(DIE_WITH_PARENT, KILL)
        _go_on_in_a_child()  # the first process is deaf to signals, which a program may need
    elif level == "bubblewrap":
        if become_nobody():
            _count_processes_apart()
    else:
        if os.geteuid() == 0 and prefix in visible and linux:
            held = _hold(prefix)
            readable = {_through(held, prefix, path): kind for path, kind in readable.items()}
        become_nobody()
    walls = []
    if linux:
        from lastword.sandbox.inside.landlock import confine
        from lastword.sandbox.inside.libc import DIE_WITH_PARENT, control, give_up_privileges
        from lastword.sandbox.inside.seccomp import refuse

        give_up_privileges()
        control(DIE_WITH_PARENT, KILL)
        version = confine(readable)
        filtered = refuse(bare=level not in ("bubblewrap", "namespaces"), landlock=version)
        if not own_keys and not filtered and keyring.within_reach():
            raise OSError("the session's key ring cannot be left")
        walls += [f"landlock {version}"] * bool(version) + ["seccomp"] * filtered
        walls += ["own keyring"] * own_keys
    for name, most in limits.items():
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
        except (AttributeError, ValueError, OSError):  # macOS knows not all of them
            if level in ("bubblewrap", "namespaces"):
                raise
    run(length, verdict, ", ".join(walls))


def _go_on_in_a_child() -> None:
    child = os.fork()
    if child:
        os.close(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(status if status >= 0 else 128 - status)


def _hold(prefix: str) -> str:
    """Reach the standard library through an open folder: nobody may not be able to walk to it."""
    held = f"/proc/self/fd/{os.open(prefix, os.O_PATH)}"
    lists = [getattr(module, "__path__", []) for module in [*sys.modules.values()]]
    for paths in (sys.path, *lists):
        paths[:] = [_through(held, prefix, path) for path in paths]
    return held


def _through(held: str, prefix: str, path: str) -> str:
    return held + path[len(prefix) :] if path.startswith(prefix) else path


def _count_processes_apart() -> None:
    """Limits on processes hold per user and user namespace, and programs run side by side."""
    from lastword.sandbox.inside.libc import call
    from lastword.sandbox.inside.namespaces import NEW_USER

    try:  # noqa: SIM105
        call("unshare", NEW_USER)
    except OSError:
        pass
