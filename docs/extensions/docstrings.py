"""The API reference: autodoc for plain-text docstrings, and the directive `public-names`.

The directive documents all names in a module's `__all__`, so the pages contain no list of names.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import sources
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from rst import as_rst
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

import upconv

_PARAMETER = re.compile(r"(\w+)(?=[:=,)])")


def _process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    signature = str(inspect.signature(obj)) if inspect.isroutine(obj) else ""
    lines[:] = as_rst(lines, _without_parameters(_targets(name), signature))


def _without_parameters(targets: dict[str, str], signature: str) -> dict[str, str]:
    """Drop the targets whose name is a parameter: the docstring then means the parameter."""
    parameters = set(_PARAMETER.findall(signature))
    return {name: target for name, target in targets.items() if name not in parameters}


def _targets(name: str, own: Iterable[str] = ()) -> dict[str, str]:
    """Return the link targets of names in a docstring: the module's own names before upconv's."""
    module = ".".join(name.split(".")[:2])
    if not own and isinstance(sys.modules.get(module), ModuleType):
        own = _names(sys.modules[module])
    core = {each: f"upconv.{each}" for each in upconv.__all__}
    core |= {full: full for full in core.values()}
    return core | {each: f"{module}.{each}" for each in own}


class PublicNames(SphinxDirective):
    """`public-names:: upconv`: every name in a module's `__all__`, errors last.

    Modules have their own pages. The names in `:first:` come first in their group. With `:read:`
    the source is read and nothing is imported.
    """

    required_arguments = 1
    option_spec: ClassVar = {"read": directives.flag, "first": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Return the nodes of all entries."""
        name = self.arguments[0]
        first = self.options.get("first", "").split()
        groups = _read(name) if "read" in self.options else _imported(import_module(name), first)
        text: list[str] = []
        for title, entries in groups.items():
            if entries:
                text += [f".. rubric:: {title}", "", *chain.from_iterable(entries)]
        node = nodes.container()
        self.state.nested_parse(StringList(text, name), self.content_offset, node)
        if not any(True for _ in node.findall(addnodes.desc)):
            raise self.error("no name was documented: is the directive inside eval-rst?")
        return node.children


def _imported(module: Any, first: list[str]) -> dict[str, list[list[str]]]:
    """Return autodoc's directives for a module's names, with the names in `first` first."""
    values = {name: getattr(module, name) for name in [*first, *_names(module)]}

    def is_error(value: Any) -> bool:
        return inspect.isclass(value) and issubclass(value, Exception)

    def of(kind: str, wanted: Callable[[Any], bool], *options: str) -> list[list[str]]:
        found = [name for name, value in values.items() if wanted(value)]
        return [[f".. auto{kind}:: {module.__name__}.{name}", *options, ""] for name in found]

    members = ("   :members:", "   :show-inheritance:")
    return {
        "Functions": of("function", inspect.isroutine),
        "Classes": of(
            "class", lambda value: inspect.isclass(value) and not is_error(value), *members
        ),
        "Errors": of("class", is_error, "   :show-inheritance:"),
    }


def _names(module: Any) -> list[str]:
    """Return `__all__`, or the public names that a module without it defines."""
    exported = getattr(module, "__all__", None)
    return exported or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def _read(name: str) -> dict[str, list[list[str]]]:
    """Return the directives for a module that is not imported."""
    package = Path(upconv.__file__).parent.joinpath(*name.split(".")[1:])
    entries = sources.find(package)
    targets = _targets(name, [entry.name for entry in entries])

    def of(kind: str, errors: bool = False) -> list[list[str]]:
        found = [entry for entry in entries if entry.kind == kind and entry.is_error is errors]
        return [_directive(entry, targets, name + ".") for entry in found]

    return {
        "Functions": of("function"),
        "Classes": of("class"),
        "Values": of("data"),
        "Errors": of("class", errors=True),
    }


def _directive(entry: sources.Entry, targets: dict[str, str], prefix: str = "") -> list[str]:
    known = _without_parameters(targets, entry.signature)
    text = [f".. py:{entry.kind}:: {prefix}{entry.name}{entry.signature}", ""]
    text += [f"   {line}".rstrip() for line in as_rst(entry.lines, known)]
    text.append("")
    for member in entry.members:
        text += [f"   {line}".rstrip() for line in _directive(member, targets)]
    return text


def setup(app: Any) -> dict[str, bool]:
    """Connect docstrings and the directive."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", _process)
    app.add_directive("public-names", PublicNames)
    return {"parallel_read_safe": True}
