"""Extraction and execution of programs in answers.

The code tasks of lm-evaluation-harness download a metric called `code_eval`, which runs programs in a fork of
the process that has loaded the model. `isolated_code` replaces it with `CodeEval`, which uses our sandbox.

`needed_code` extracts a program from a HumanEval answer as the authors of Dream do (DreamLM/Dream, fac0a7f,
both evaluations). It was written independently of their code and gives the same programs for the answers in
tests/golden/peers_dream_sanitize.json. For answers on which their code fails, it returns text all the same.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import comb
from typing import Any
from unittest.mock import patch

from lastword.sandbox.runner import run_programs

DREAM_VERSION = "dream code 2"  # part of a task's version: increase it if an answer may score differently
MAX_LINES = 100
FENCE = "```"


def run_tests(programs: Sequence[str], tests: Sequence[str]) -> list[bool]:
    """Return whether each program, followed by its test, runs to the end."""
    outcomes = run_programs([f"{program}\n{test}" for program, test in zip(programs, tests)])
    return [outcome.passed for outcome in outcomes]


class CodeEval:
    """A replacement for the harness's metric `code_eval` that runs programs in the sandbox."""

    def compute(
        self, references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int] = (1,)
    ) -> tuple[dict[str, float], dict[int, list[bool]]]:
        """Return the unbiased estimate of pass@k over the tests, and whether each candidate passed.

        `references` are tests; `predictions` are the candidate programs for each test.
        """
        pairs = [(program, test) for test, candidates in zip(references, predictions) for program in candidates]
        results = iter(run_tests([program for program, _ in pairs], [test for _, test in pairs]))
        passed = {at: [next(results) for _ in candidates] for at, candidates in enumerate(predictions)}
        rates = {
            f"pass@{tries}": sum(_pass_at(tries, candidates) for candidates in passed.values()) / len(passed)
            for tries in k
            if all(len(candidates) >= tries for candidates in passed.values())
        }
        return rates, passed


def _pass_at(tries: int, passed: Sequence[bool]) -> float:
    """Return the probability that any of `tries` candidates, drawn without replacement, passes."""
    return 1 - comb(passed.count(False), tries) / comb(len(passed), tries)


@contextmanager
def isolated_code() -> Iterator[None]:
    """Replace the metric `code_eval` with `CodeEval` in tasks that are loaded inside the context.

    Use it around calls of the harness's own TaskManager. The tasks keep `CodeEval` when the context ends.
    """
    import evaluate

    original = evaluate.load

    def load(path: str, *arguments: Any, **settings: Any) -> Any:
        return CodeEval() if path == "code_eval" else original(path, *arguments, **settings)

    with patch.object(evaluate, "load", load):
        yield


def needed_code(prompt: str, answer: str, entry_point: str) -> str:
    """Return the program to test: the imports, and `entry_point` with the definitions that it uses by name.

    They are read from the prompt followed by the answer, or by its first Python fence if it has one: among
    the first 100 lines, from those consecutive lines that parse and have the most non-blank lines.

    >>> answer = "    return twice(x) + 1\\n\\ndef twice(x):\\n    return 2 * x\\n\\nSo f(1) is 3."
    >>> print(needed_code("def f(x):", answer, "f"))
    def f(x):
        return twice(x) + 1
    def twice(x):
        return 2 * x
    """
    text = f"{prompt}\n{_fenced(answer)}".replace("\t", " " * 4)
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip()
    module = _longest_module(text.splitlines()[:MAX_LINES])
    imports = [node for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    definitions = {name: node for node in module.body for name in _defined_names(node)}
    used = _used_definitions(entry_point, definitions)
    nodes = [*imports, *(node for name, node in definitions.items() if name in used)]
    try:
        return "\n".join(ast.unparse(node) for node in nodes)
    except (RecursionError, ValueError):  # expressions with hundreds of terms, numbers with thousands of digits
        return text


def _fenced(answer: str) -> str:
    """Return the content of the first Python fence or, without one, the text before the first fence of any kind."""
    start = answer.find(f"{FENCE}python\n")
    body = answer if start < 0 else answer[start + len(FENCE) + len("python\n") :]
    return body.split(FENCE)[0]


def _longest_module(lines: list[str]) -> ast.Module:
    """Return the syntax tree of the consecutive lines that parse and have the most non-blank lines.

    Ties go to the lines that start first, then to those that end first.
    """
    is_written = [bool(line.strip()) for line in lines]
    runs = [
        (-sum(is_written[first : last + 1]), first, last)
        for first in range(len(lines))
        for last in range(first, len(lines))
    ]
    for _, first, last in sorted(runs):
        module = _parse("\n".join(lines[first : last + 1]))
        if module is not None:
            return module
    return ast.Module(body=[], type_ignores=[])


def _parse(text: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in the answer's strings
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return None  # ValueError: null bytes or surrogates; the last two: deep nesting


def _defined_names(node: ast.stmt) -> Iterator[str]:
    """Yield the name of a class, of a function that contains a `return`, or of an assigned variable, as Dream does."""
    if isinstance(node, ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.FunctionDef):
        if any(isinstance(inner, ast.Return) for inner in ast.walk(node)):
            yield node.name
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        yield node.targets[0].id


def _used_definitions(entry_point: str, definitions: dict[str, ast.stmt]) -> set[str]:
    """Return the names of the entry point and of all definitions that it uses, directly or indirectly."""
    used = [entry_point] if entry_point in definitions else []
    for name in used:  # grows during the loop
        used += {*_used_names(definitions[name])} & {*definitions} - {*used}
    return {*used}


def _used_names(definition: ast.stmt) -> Iterator[str]:
    """Yield the names that a definition uses, as Dream's code counts them.

    For an attribute, that is the name after the dot only: `helper(x).strip()` uses `strip` and not `helper`.
    """
    nodes = list(ast.iter_child_nodes(definition))
    for node in nodes:  # grows during the loop
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        else:
            nodes += ast.iter_child_nodes(node)
