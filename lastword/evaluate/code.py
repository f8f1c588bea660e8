"""Score model-written programs in isolation, also where lm-evaluation-harness would run them itself.

Its code tasks fetch a metric called `code_eval` from the network while they load, and that metric runs
programs in a fork of the process that holds the model. `isolated_code` puts ours in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import comb
from typing import Any

from lastword.sandbox.runner import run_programs


def passes(programs: Sequence[str], tests: Sequence[str]) -> list[bool]:
    """Does each program, with its test behind it, run to the end? Nothing else here runs code."""
    joined = [f"{program}\n{test}" for program, test in zip(programs, tests)]
    return [outcome.passed for outcome in run_programs(joined)]


class CodeEval:
    """What the harness takes for its `code_eval` metric: pass@k, run by `passes`."""

    def compute(
        self,
        references: Sequence[str],
        predictions: Sequence[Sequence[str]],
        k: Sequence[int] = (1,),
    ) -> tuple[dict[str, float], dict[int, list[bool]]]:
        """pass@k over the tests (the unbiased estimate), and which candidates passed.

        `references` are tests, `predictions` the candidates for each.
        """
        flat = [(program, test) for test, some in zip(references, predictions) for program in some]
        outcomes = iter(passes([program for program, _ in flat], [test for _, test in flat]))
        passed = {at: [next(outcomes) for _ in some] for at, some in enumerate(predictions)}
        rates = {
            f"pass@{tries}": sum(_pass_at(tries, right) for right in passed.values()) / len(passed)
            for tries in k
            if all(len(right) >= tries for right in passed.values())
        }
        return rates, passed


def _pass_at(tries: int, right: Sequence[bool]) -> float:
    """The chance that one of `tries` candidates, drawn without replacement, is right."""
    return 1 - comb(right.count(False), tries) / comb(len(right), tries)


@contextmanager
def isolated_code() -> Iterator[None]:
    """While it lasts, whoever loads `code_eval` is given ours, from no network.

    For those who load tasks with the harness's own TaskManager: load them inside. Tasks keep what
    they were given, so evaluating may happen outside.
    """
    import evaluate

    theirs = evaluate.load

    def load(path: str, *arguments: Any, **settings: Any) -> Any:
        return CodeEval() if path == "code_eval" else theirs(path, *arguments, **settings)

    evaluate.load = load
    try:
        yield
    finally:
        evaluate.load = theirs
