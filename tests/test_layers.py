"""Imports point one way: a place imports only from places above it."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "lastword"

# Top to bottom is dependency order. Modules in one row may import each other as long as there is no ring.
LAYERS = [
    ["version", "errors", "validation", "argument_names", "io", "embedded"],
    ["viz.figures", "viz.html", "sandbox"],
    ["survival"],
    ["canvas", "calibration"],
    ["models"],
    ["decoding.sampling", "decoding.prediction", "decoding.forward", "prompts"],
    ["policies"],
    ["recipe"],
    ["decoding"],
    ["viz", "api"],
    ["engines", "tasks", "evaluate", "calibration.fit"],
    ["bench", "serve", "batch", "cli", "__main__"],
]
RANK = {place: rank for rank, layer in enumerate(LAYERS) for place in layer}

# Policies see predictions and canvases, never a model.
FORBIDDEN = {"policies": "models"}
ALLOWED = {"models.storage"}

# Heavy extras are imported only where they are needed, inside the function that needs them.
EXTRAS = {
    "matplotlib", "reasoning_gym", "transformers", "lm_eval", "datasets", "evaluate", "ray", "fastapi",
    "gguf", "triton", "uvicorn", "prometheus_client", "starlette", "sse_starlette", "pyarrow",
}  # fmt: skip

# These need the extra `serve` or `ray` to be imported. Other modules import them inside of a function.
SERVER = {
    "serve.app", "serve.access_log", "serve.connections", "serve.engine", "serve.metrics", "serve.probes", "serve.ray",
}  # fmt: skip

# lm-evaluation-harness, which needs `datasets` itself, imports these for the YAML files beside them; nothing here does.
RUN_BY_OTHERS = {"evaluate.harness_tasks.utils"}

FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def place_of(module: str) -> str:
    """The row entry of a module, named from the package: its own, or that of its folder."""
    return module if module in RANK else module.split(".")[0]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules of ours that the file imports at any depth, type-checking imports included."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "lastword":
                names += [f"lastword.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (name.partition(".")[2] for name in names if name.startswith("lastword."))


def test_imports_point_upwards():
    wrong = []
    for path in FILES:
        here = place_of(module_of(path))
        assert here in RANK, f"{here} has no layer: add it to LAYERS"
        for module in imported(ast.parse(path.read_text())):
            place = place_of(module)
            too_low = place in RANK and RANK[place] > RANK[here]
            if too_low or (FORBIDDEN.get(here) == place and module not in ALLOWED):
                wrong.append(f"{path.relative_to(PACKAGE)} may not import {module}")
    assert not wrong


def test_no_file_imports_itself_through_others():
    """Functions may hide a ring from Python; here they count like the top of a file."""
    left = {module_of(path): {*imported(ast.parse(path.read_text()))} for path in FILES if path.name != "__init__.py"}
    while free := [module for module, needed in left.items() if not needed & {*left}]:
        for module in free:
            del left[module]
    assert not left


def test_extras_are_imported_lazily():
    wrong = []
    server = {f"lastword.{module}" for module in SERVER}
    for path in FILES:
        if module_of(path) in SERVER | RUN_BY_OTHERS:
            continue
        for node in ast.parse(path.read_text()).body:
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            wrong += [f"{path.name}: {n}" for n in names if n.split(".")[0] in EXTRAS or n in server]
    assert not wrong


def test_modules_that_others_run_are_not_imported_here():
    needed = {module for path in FILES for module in imported(ast.parse(path.read_text()))}
    assert not RUN_BY_OTHERS & needed
    assert {module_of(path) for path in FILES} >= RUN_BY_OTHERS


def test_there_is_one_decode_loop():
    loops = [
        path.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.While) and "admit" in ast.unparse(node.test)
    ]
    assert loops == ["loop.py"]


def test_a_class_name_is_defined_once():
    names = Counter(
        node.name for path in FILES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    )
    assert not [name for name, count in names.items() if count > 1]
