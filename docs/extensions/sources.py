"""Read a package's public names from its source, for packages whose import needs PyTorch or ONNX.

`find` reads the signature, docstring and members from the syntax tree; autodoc needs live objects.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

_PROPERTIES = {"property", "cached_property"}


@dataclass(frozen=True)
class Entry:
    """A function, class or value; `kind` is its directive in reStructuredText."""

    kind: str
    name: str
    signature: str
    lines: list[str]
    is_error: bool = False
    members: list[Entry] = field(default_factory=list)


def find(package: Path) -> list[Entry]:
    """Return the entries of a package's `__all__`, in its order."""
    tree = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    return [_resolve(package / "__init__.py", name) for name in _public(tree)]


def _public(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise ValueError("no __all__")


def _resolve(file: Path, name: str) -> Entry:
    """Return the definition of `name` from this file, or from the file that it is imported from."""
    body: list[ast.stmt] = []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        body += node.body if isinstance(node, ast.Try) else [node]  # imports that may fail
    for number, node in enumerate(body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return _entry(node)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
            return Entry("data", name, "", _text_after(body, number))
    for node in body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _resolve(_module(file, node), alias.name)
    raise ValueError(f"{file} does not define {name}")


def _module(file: Path, node: ast.ImportFrom) -> Path:
    folder = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def _text_after(body: list[ast.stmt], number: int) -> list[str]:
    """Return the string after an assignment, which documents it."""
    after = body[number + 1] if number + 1 < len(body) else None
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
        return str(after.value.value).split("\n")
    return []


def _entry(node: ast.FunctionDef | ast.ClassDef) -> Entry:
    lines = (ast.get_docstring(node) or "").split("\n")
    if isinstance(node, ast.FunctionDef):
        return Entry("function", node.name, _signature(node), lines)
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    made = [_signature(each, bound=True) for each in methods if each.name == "__init__"]
    return Entry(
        "class",
        node.name,
        made[0] if made else _fields(node),
        lines,
        is_error=node.name.endswith("Error"),
        members=[
            _member(each)
            for each in methods
            if not each.name.startswith("_") and ast.get_docstring(each)
        ],
    )


def _member(node: ast.FunctionDef) -> Entry:
    decorators = {ast.unparse(each) for each in node.decorator_list}
    lines = (ast.get_docstring(node) or "").split("\n")
    if decorators & _PROPERTIES:
        return Entry("property", node.name, "", lines)
    bound = "staticmethod" not in decorators
    return Entry("method", node.name, _signature(node, bound), lines)


def _signature(node: ast.FunctionDef, bound: bool = False) -> str:
    arguments = node.args
    if bound:
        (arguments.posonlyargs or arguments.args).pop(0)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(arguments)}){returns}".removesuffix(" -> None")


def _fields(node: ast.ClassDef) -> str:
    """Return the arguments of a dataclass; "" for other classes."""
    if not any("dataclass" in ast.unparse(each) for each in node.decorator_list):
        return ""
    fields = [ast.unparse(each) for each in node.body if isinstance(each, ast.AnnAssign)]
    return f"({', '.join(fields)})"
