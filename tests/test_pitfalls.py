"""Every test the documentation names exists, and each of the twelve laws names one."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "pitfalls.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_test_that_is_named_exists(path, name):
    tree = ast.parse((ROOT / path).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_each_of_the_twelve_laws_is_held_by_a_test():
    rows = re.findall(r"^\| (\d+)\. .*\| (.*) \|$", TEXT, flags=re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 13))
    assert all("::test_" in held for _, held in rows)
