"""Reports on an optimization: a table for terminals, and an HTML file.

Names come from a model, so control characters are replaced, and the template escapes markup.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ... import terminal
from ..._version import __version__
from ...errors import ArgumentError, EngineMissing, brief
from ...files import published, reported, require_free
from ...front_end_reports import HEADINGS, Report, Row
from ...installation import install_command
from ...measuring import Ratio
from ...terminal import aligned
from ...timing import format_seconds
from ..optimizing.results import Optimization

__all__ = ["as_html", "as_text", "write_report"]


def as_html(found: Optimization | Mapping[str, Any]) -> str:
    """Return the report on an optimization, or on its JSON form, as one HTML page.

    Raises `EngineMissing` if Jinja is not installed.

    >>> result = Optimization("<b>", "reference", 1, 17, (), (), (), (), None, (), "", 9, 9, "x",
    ...     {}, 1.0)
    >>> "&lt;b&gt;" in as_html(result), "<b>x" in as_html(result)
    (True, False)
    """
    result = found.as_json() if isinstance(found, Optimization) else found
    return str(_template().render(result=result, version=__version__))


def write_report(found: Optimization, path: str | Path, *, force: bool = False) -> None:
    """Write the report to `path`, as HTML (.html) or as JSON (.json), completely or not at all.

    Raises `ArgumentError` for any other file extension, `FileError` if the file cannot be written,
    and `EngineMissing` if Jinja is not installed.
    """
    target, name = Path(path), str(path)
    if target.suffix.lower() not in (".html", ".htm", ".json"):
        raise ArgumentError("path", brief(name), "a name that ends in .html or .json")
    with reported(name):
        require_free(name, target, force=force, inputs=())
        as_data = target.suffix.lower() == ".json"
        contents = json.dumps(found.as_json(), indent=1) if as_data else as_html(found)
        with published(target, force=force) as file:
            file.write(contents.encode())


@cache
def _template() -> Any:
    try:
        import jinja2
    except ImportError:
        raise EngineMissing(f"The report needs Jinja: {install_command('onnx')}") from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        seconds=format_seconds,
        short=terminal.shortened,
        ratio=lambda one: str(Ratio(**one)),
        cells=lambda row: Row(**row).cells,
        sentences=lambda report: Report.of(report).sentences,
    )
    environment.globals["headings"] = HEADINGS
    return environment.get_template("page.html")


def _shown(value: Any) -> Any:
    """Prepare a value for the page: keep markup, and make other text harmless and short enough."""
    is_markup = hasattr(value, "__html__")
    return value if is_markup else terminal.shortened(str(value), terminal.LONGEST_SENTENCE)


# For terminals


def as_text(found: Optimization) -> str:
    """Return the report as lines: a row for each layer, then the verdict, without a final newline.

    >>> print(as_text(Optimization("a.onnx", "reference", 1, 17, (), (), (), (), None, (),
    ...     "Nothing was faster.", 9, 9, "x", {}, 1.0)))
    a.onnx: reference, 1 thread, opset 17, x
    verified        nothing was changed
    verdict         Nothing was faster.
    """
    threads = f"{found.threads} thread{'s'[: found.threads > 1]}"
    head = f"{found.model}: {found.runtime}, {threads}, opset {found.opset}, {found.machine}"
    table = aligned([row.cells for row in found.report.rows], HEADINGS)
    lines = [head, *table, *(f"{label:16}{sentence}" for label, sentence in _facts(found))]
    return "\n".join(terminal.shortened(line, terminal.LONGEST_SENTENCE, "...") for line in lines)


def _facts(result: Optimization) -> Iterator[tuple[str, str]]:
    for inputs, model in zip(result.inputs, result.whole, strict=False):
        sizes = (f"{name} {'x'.join(map(str, size))}" for name, size in inputs.items())
        at = f" at {', '.join(sizes)}" if len(result.whole) > 1 else ""
        times = f"{format_seconds(model.before)} before, {format_seconds(model.after)} after"
        label = "whole model" if result.verified else "tried, undone"
        yield label, f"{times}: {model.ratio}{at}"
    check = "nothing was changed"
    if result.verified:
        count = sum(len(run.outputs) for run in result.checks)
        check = f"{count} output{'s' * (count != 1)} compared, all equal"
    yield "verified", check
    for number, line in enumerate(str(result.session).splitlines() if result.session else ()):
        yield "" if number else "Session", line
    yield from (("remark", remark) for remark in result.remarks)
    yield "verdict", result.verdict
