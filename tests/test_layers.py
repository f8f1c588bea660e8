"""Imports point one way: a place imports only from places above it."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lastword"

# Top to bottom is dependency order; places on one line do not know each other.
LAYERS = [
    ["version", "errors", "embedded"],
    ["checks", "tokens"],
    ["sandbox"],
    ["tasks"],
    ["survival"],
    ["columns", "cost"],
    ["memory"],
    ["features"],
    ["canvas"],
    ["clock", "models", "sampling"],
    ["prediction"],
    ["hooks", "length", "unmask", "commit", "cache"],
    ["composition", "forward"],
    ["parts"],
    ["recipe"],
    ["decode", "prompts"],
    ["generate"],
    ["eval", "calibration"],
    ["cli"],
    ["__main__"],
]
RANK = {place: rank for rank, layer in enumerate(LAYERS) for place in layer}

# Beyond the order: strategies know no model.
FORBIDDEN = {place: {"models"} for place in ("length", "unmask", "commit", "cache", "prediction")}

# Heavy extras are imported only where they are needed, inside the function that needs them.
EXTRAS = {
    "matplotlib", "reasoning_gym", "transformers", "lm_eval", "datasets", "evaluate", "ray", "fastapi",
}  # fmt: skip

FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def place_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_places(tree: ast.Module) -> set[str]:
    """Places of ours that the file imports at any depth, type-checking imports included."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            if node.module == "lastword":
                names |= {f"lastword.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    parts = [name.split(".") for name in names]
    return {part[1] for part in parts if part[0] == "lastword" and len(part) > 1} & set(RANK)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_upwards(path):
    place, tree = place_of(path), ast.parse(path.read_text())
    assert place in RANK, f"{place} has no layer: add it to LAYERS"
    for other in imported_places(tree) - {place}:
        assert RANK[other] < RANK[place], f"{path.name} ({place}) may not import {other}"
        assert other not in FORBIDDEN.get(place, ()), f"{place} may not know {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_extras_are_imported_lazily(path):
    at_top = ast.Module(
        [node for node in ast.parse(path.read_text()).body if not isinstance(node, ast.If)], []
    )
    top = [node for node in at_top.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {
        (node.module if isinstance(node, ast.ImportFrom) else alias.name).split(".")[0]
        for node in top
        for alias in node.names
    }
    assert not names & EXTRAS


def test_there_is_one_decode_loop():
    loops = [
        path.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.While) and "masked" in ast.unparse(node.test)
    ]
    assert loops == ["decode.py"]
