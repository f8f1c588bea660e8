"""run_programs: programs side by side, each at the strongest level that works here."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lastword.sandbox.level import UNSAFE, sandbox_level
from lastword.sandbox.limits import Limits
from lastword.sandbox.outcome import Level, Outcome
from lastword.sandbox.runner import run_one
from lastword.sandbox.running import Running
from lastword.validation import check_int, check_type


def run_programs(
    programs: Sequence[str],
    *,
    limits: Limits = Limits(),
    workers: int | None = None,
    plain: bool = False,
    unsafe: bool | None = None,
) -> list[Outcome]:
    """The outcome of each program, in their order; `workers` run at a time (default: two per core).

    `plain` and `unsafe` say what to do where there is no sandbox: see `sandbox_level`.
    """
    kind = Sequence if not isinstance(programs, (str, bytes)) else list  # one text is a sequence too
    check_type("run_programs", "programs", programs, kind, "a list of texts, a program each")
    for at, program in enumerate(programs):
        check_type("run_programs", f"programs[{at}]", program, str, "a program as text")
    check_type("run_programs", "limits", limits, Limits, "a Limits(...)")
    if workers is not None:
        check_int("run_programs", "workers", workers, minimum=1)
    if not programs:
        return []
    level = sandbox_level(plain=plain, unsafe=unsafe)
    if level is Level.NONE:
        warnings.warn(
            f"no sandbox works here, and {len(programs)} model-written programs run without one, as "
            f"--unsafe-code, unsafe=True or {UNSAFE}=1 asks; install bubblewrap to keep them in",
            RuntimeWarning,
            stacklevel=2,
        )
    running, pool = Running(), ThreadPoolExecutor(workers or 2 * (os.cpu_count() or 1))
    try:
        return list(pool.map(lambda program: run_one(program, level, limits, running), programs))
    except BaseException:  # Ctrl-C is one: nobody waits for programs then
        running.end()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
