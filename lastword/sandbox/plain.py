"""A static check for harmless programs: Python without files, network, imports or interpreter internals.

Answers to the embedded code tasks need only functions of lists and strings, so they can be scored on machines
without a sandbox. The check is an allowlist of syntax nodes, functions and methods.
"""

from __future__ import annotations

import ast
import builtins

MAX_CHARACTERS = 300_000  # a syntax tree takes a thousand times the memory of its source
_NODE_NAMES = """
Module Expr Assign AugAssign AnnAssign Delete Assert Pass Return FunctionDef Lambda arguments arg If For While
Break Continue Try Raise ExceptHandler Call keyword Starred Name Attribute Constant NamedExpr BoolOp BinOp
UnaryOp Compare IfExp Subscript Slice List Tuple Set Dict JoinedStr FormattedValue ListComp SetComp DictComp
GeneratorExp comprehension Yield Nonlocal Global boolop operator unaryop cmpop expr_context
"""
_FUNCTIONS = """
abs all any ascii bin bool chr dict divmod enumerate filter float frozenset hex int isinstance iter len list
map max min next oct ord pow print range repr reversed round set slice sorted str sum tuple zip
"""
_NODES = tuple(getattr(ast, name) for name in _NODE_NAMES.split())
_ERRORS = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)}
_BUILTINS = {*_FUNCTIONS.split(), *_ERRORS}
# Methods of built-in types, except those with format strings, which read attributes, or codecs, which import modules.
_METHODS = {
    name for kind in (str, list, dict, set, frozenset, tuple, int, float) for name in vars(kind)
    if not name.startswith("_")
} - {"format", "format_map", "encode", "to_bytes"}  # fmt: skip
_NAME_FIELDS = {
    ast.Name: "id", ast.FunctionDef: "name", ast.arg: "arg", ast.keyword: "arg", ast.ExceptHandler: "name"
}  # fmt: skip


def why_not_plain(program: str) -> str | None:
    """Return why a program is not plain Python, or None if it is; raise SyntaxError if it cannot be parsed.

    >>> why_not_plain("def f(xs): return sorted(x.upper() for x in xs)")
    >>> why_not_plain("import os")
    'Import in line 1 is not plain Python'
    >>> why_not_plain("print(open)")
    'open in line 1 is not plain Python'
    """
    if len(program) > MAX_CHARACTERS:
        return f"a program of more than {MAX_CHARACTERS} characters is not plain Python"
    try:
        tree = ast.parse(program)
    except ValueError as error:  # null bytes, lone surrogates
        raise SyntaxError(str(error)) from error
    except (RecursionError, MemoryError):
        return "code nested deeper than the parser goes is not plain Python"
    for node in ast.walk(tree):
        if what := _forbidden(node):
            return f"{what} in line {getattr(node, 'lineno', 1)} is not plain Python"
    return None


def _forbidden(node: ast.AST) -> str | None:
    """Return the name of a syntax node, for a message, if the node is not allowed; otherwise None."""
    if not isinstance(node, _NODES):
        return type(node).__name__
    if isinstance(node, ast.Constant):
        return "a bytes literal" if isinstance(node.value, bytes) else None  # `str(bytes, codec)` imports modules
    if isinstance(node, ast.Attribute):
        return None if node.attr in _METHODS else f".{node.attr}"
    field = _NAME_FIELDS.get(type(node))
    name = getattr(node, field) if field else None
    if name and (name.startswith("__") or (hasattr(builtins, name) and name not in _BUILTINS)):
        return name
    return None
