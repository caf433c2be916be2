"""The page: the JSON form of an optimisation, put into one template.

It loads nothing and runs nothing. Names come out of a model: control characters become escapes, and
the template escapes what is markup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...errors import ArgumentError, EngineMissing, brief
from ...files import published, reported, require_free
from .. import names
from ..optimizing.results import Optimization
from .drawing import drawn
from .text import ratio, seconds, shape


def as_html(found: Optimization | Mapping[str, Any]) -> str:
    """The report of an optimisation, or of its JSON form, as the text of one HTML file.

    Raises `EngineMissing` where Jinja is not installed.

    >>> found = Optimization("<b>", "reference", 1, 17, (), (), (), (), None, (), "", 9, 9, "x",
    ...     {}, 1.0)
    >>> "&lt;b&gt;" in as_html(found), "<b>x" in as_html(found)
    (True, False)
    """
    told = found.as_json() if isinstance(found, Optimization) else found
    return str(_template().render(found=told, version=__version__))


def write_report(found: Optimization, path: str | Path, *, force: bool = False) -> None:
    """Write the report to `path`, as a page (.html) or as JSON (.json), whole or not at all.

    Raises `ArgumentError` for another ending, `FileError` where it cannot be written,
    `EngineMissing` where Jinja is not installed.
    """
    target, name = Path(path), str(path)
    if target.suffix.lower() not in (".html", ".htm", ".json"):
        raise ArgumentError("path", brief(name), "a name that ends in .html or .json")
    with reported(name):
        require_free(name, target, force=force, inputs=())
        as_data = target.suffix.lower() == ".json"
        text = json.dumps(found.as_json(), indent=1) if as_data else as_html(found)
        with published(target, force=force) as file:
            file.write(text.encode())


@cache
def _template() -> Any:
    try:
        import jinja2
    except ImportError:
        raise EngineMissing("The report needs Jinja: pip install 'upconv[onnx]'") from None
    made = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        seconds=seconds, shape=shape, ratio=ratio, short=names.shortened, alike=_alike
    )
    made.globals.update(drawn=drawn)
    return made.get_template("page.html")


def _shown(value: Any) -> Any:
    """What is put into the page: markup of ours as it is, text harmless and not too long."""
    if hasattr(value, "__html__"):
        return value
    return names.shortened(str(value), names.LONGEST_SENTENCE)


def _alike(axes: Sequence[Mapping[str, int]]) -> list[tuple[Mapping[str, int], str]]:
    """Every kind of axis once, and which axes are of it."""
    kinds = [axis for i, axis in enumerate(axes) if axis not in axes[:i]]
    numbers = [[str(i) for i, one in enumerate(axes) if one == axis] for axis in kinds]
    words = (f"ax{'es' if n[1:] else 'is'} {' and '.join(n)}" for n in numbers)
    return list(zip(kinds, words, strict=True))
