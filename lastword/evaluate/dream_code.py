"""Dream's reading of a HumanEval answer: of all that was written, the code its function needs.

Dream may go on with other functions, examples or prose. Its authors score what is left after these steps
(DreamLM/Dream, fac0a7f, both evaluations), written here anew and recorded from their code in
tests/golden/peers_dream_sanitize.json: the text of a Python fence if there is one; the prompt in front; of
the first 100 lines the run of lines that parses and says most; of that run the imports and whatever the
entry point reaches by name, as they count names. Where their program ends in an error, ours gives a text.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

# Part of a task's version in records: give it another number when the same answer may score otherwise.
VERSION = "dream code 2"
LINES = 100
FENCE = "```"


def needed_code(prompt: str, answer: str, entry_point: str) -> str:
    """The program to test: imports, and the definitions `entry_point` reaches by name.

    >>> answer = "    return twice(x) + 1\\n\\ndef twice(x):\\n    return 2 * x\\n\\nSo f(1) is 3."
    >>> print(needed_code("def f(x):", answer, "f"))
    def f(x):
        return twice(x) + 1
    def twice(x):
        return 2 * x
    """
    text = f"{prompt}\n{_fenced(answer)}".replace("\t", " " * 4)
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip()
    module = _longest_module(text.splitlines()[:LINES])
    imports = [node for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    named = {name: node for node in module.body for name in _defines(node)}
    reached = _reached(entry_point, named)
    kept = [node for name, node in named.items() if name in reached]
    try:
        return "\n".join(ast.unparse(node) for node in (*imports, *kept))
    except (RecursionError, ValueError):  # terms by the hundred, numbers of thousands of digits
        return text


def _fenced(answer: str) -> str:
    """What stands in the first Python fence; else everything before a fence closes."""
    opened = answer.find(f"{FENCE}python\n")
    body = answer if opened < 0 else answer[opened + len(FENCE) + len("python\n") :]
    return body.split(FENCE)[0]


def _longest_module(lines: list[str]) -> ast.Module:
    """The run of lines that parses and has most lines that are not blank.

    Ties go to the run that starts first, then to the one that ends first. Runs are tried in that
    order, the longest first, so that a text which parses as a whole is parsed once.
    """
    written = [bool(line.strip()) for line in lines]
    runs = [
        (-sum(written[first : last + 1]), first, last)
        for first in range(len(lines))
        for last in range(first, len(lines))
    ]
    for _, first, last in sorted(runs):
        module = _parsed("\n".join(lines[first : last + 1]))
        if module is not None:
            return module
    return ast.Module(body=[], type_ignores=[])


def _parsed(text: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in strings that are not ours
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return None  # the last three: null bytes, surrogates, nesting too deep for the parser


def _defines(node: ast.stmt) -> Iterator[str]:
    """The name a statement defines, if it is of a kind the authors keep."""
    if isinstance(node, ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.FunctionDef):
        if any(isinstance(inner, ast.Return) for inner in ast.walk(node)):
            yield node.name
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        yield node.targets[0].id


def _reached(entry_point: str, named: dict[str, ast.stmt]) -> set[str]:
    """The entry point and every definition it uses, directly or through others."""
    reached, waiting = set[str](), [entry_point]
    while waiting:
        name = waiting.pop()
        if name not in reached and name in named:
            reached.add(name)
            waiting += _uses(named[name])
    return reached


def _uses(definition: ast.stmt) -> Iterator[str]:
    """The names a definition uses, as the authors count them.

    Of an attribute it is the name behind the dot, and nothing in front of it: `helper(x).strip()` uses
    `strip` and not `helper`.
    """
    parts = list(ast.iter_child_nodes(definition))
    for part in parts:  # grows while it is read
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        else:
            parts += ast.iter_child_nodes(part)
