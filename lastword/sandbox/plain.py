"""Programs that could do no harm anywhere: Python without a way to files, network or internals.

The embedded code families ask for functions over lists and texts, nothing more, so that they can be
scored on machines without a sandbox. What is not listed here is refused, and what this process cannot
parse is not run: nothing runs but what was read here, node by node.
"""

from __future__ import annotations

import ast
import builtins

MOST = 300_000  # characters: a syntax tree takes a thousand times as much memory as its text


def _words(text: str) -> list[str]:
    return text.split()


_NODES = tuple(
    getattr(ast, name)
    for name in _words("""
    Module Expr Assign AugAssign AnnAssign Delete Assert Pass Return FunctionDef Lambda arguments arg
    If For While Break Continue Try Raise ExceptHandler Call keyword Starred Name Attribute Constant
    NamedExpr BoolOp BinOp UnaryOp Compare IfExp Subscript Slice List Tuple Set Dict JoinedStr
    FormattedValue ListComp SetComp DictComp GeneratorExp comprehension Yield Nonlocal Global
    boolop operator unaryop cmpop expr_context
    """)
)
_BUILTINS = frozenset(
    _words("""
    abs all any ascii bin bool chr dict divmod enumerate filter float frozenset hex int isinstance
    iter len list map max min next oct ord pow print range repr reversed round set slice sorted str
    sum tuple zip
    """)
) | {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, Exception)
}
# Methods of the plain types. A format string may name attributes, and codecs import modules.
_METHODS = {
    name
    for kind in (str, list, dict, set, frozenset, tuple, int, float)
    for name in vars(kind)
    if not name.startswith("_")
} - {"format", "format_map", "encode", "to_bytes"}


def why_not_plain(program: str) -> str | None:
    """What in the program is more than plain Python, or None. One that does not parse is a SyntaxError.

    >>> why_not_plain("def f(xs): return sorted(x.upper() for x in xs)")
    >>> why_not_plain("import os")
    'Import in line 1 is not plain Python'
    >>> why_not_plain("print(open)")
    'open in line 1 is not plain Python'
    """
    if len(program) > MOST:
        return f"a program of more than {MOST} characters is not plain Python"
    try:
        tree = ast.parse(program)
    except ValueError as unreadable:  # null bytes, lone surrogates
        raise SyntaxError(str(unreadable)) from unreadable
    except (RecursionError, MemoryError):
        return "code nested deeper than the parser goes is not plain Python"
    for node in ast.walk(tree):
        if what := _more(node):
            return f"{what} in line {getattr(node, 'lineno', 1)} is not plain Python"
    return None


def _more(node: ast.AST) -> str | None:
    if not isinstance(node, _NODES):
        return type(node).__name__
    if isinstance(node, ast.Constant):
        return "a bytes literal" if isinstance(node.value, bytes) else None  # str reads them by codec
    if isinstance(node, ast.Attribute):
        return None if node.attr in _METHODS else f".{node.attr}"
    names = {
        ast.Name: "id", ast.FunctionDef: "name", ast.arg: "arg", ast.keyword: "arg",
        ast.ExceptHandler: "name",
    }  # fmt: skip
    name = getattr(node, names[type(node)]) if type(node) in names else None
    if name is None:
        return None
    hidden = name.startswith("__") or (hasattr(builtins, name) and name not in _BUILTINS)
    return name if hidden else None
