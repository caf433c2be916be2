"""The report of an optimisation: a table for terminals, and one self-contained HTML file.

The page is the JSON form of an optimisation, put into one template.

It loads nothing and runs nothing. Names come out of a model: control characters become escapes, and
the template escapes what is markup.

An axis is drawn as inputs, a line for every tap that meets, and the output in phases. A number in
each box of the output is its phase, since a colour alone tells some readers nothing; hatched boxes
are cut off, dashed ones are reached by no tap. Long axes are shown by their begin. Sizes and
indices come from `upconv.geometry.Axis` alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import Any

from ..._version import __version__
from ...errors import ArgumentError, EngineMissing, brief
from ...files import published, reported, require_free
from ...geometry import Axis
from .. import names
from ..optimizing.results import ORIGINAL, LayerResult, Optimization, Ratio

__all__ = ["as_html", "as_text", "write_report"]

_CELL, _GAP, _LEFT = 20, 50, 60
_MOST = 36
"""Positions that are drawn."""

_WIDEST = 64
"""An extent of a kernel, or a stride, beyond which there is nothing to see."""

_HUES = 5

_LABEL = 16
_NARROWEST = 60
"""Columns: of the labels of facts, and of a whole line at least."""


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


def drawn(facts: Mapping[str, int]) -> str:
    """The drawing of an axis as the report's JSON has it; "" where it would show nothing.

    >>> drawn({"size": 4, "kernel": 3, "stride": 2, "dilation": 1, "crop_begin": 1, "crop_end": 0,
    ...     "out": 8})[:4]
    '<svg'
    """
    try:
        steps = facts["stride"], facts["dilation"]
        crops = facts["crop_begin"], facts["crop_end"]
        axis = Axis(facts["size"], facts["kernel"], *steps, *crops)
    except ArgumentError:
        return ""
    if axis.extent > _WIDEST or axis.stride > _WIDEST:
        return ""
    first = min(0, axis.uncropped.start)
    last = max(axis.out, axis.uncropped.stop)
    shown = range(first, min(last, first + _MOST))
    width = _LEFT + len(shown) * _CELL + 24
    marks = "".join((*_inputs(axis, shown), *_outputs(axis, shown)))
    more = f'<text x="{width - 18}" y="{_GAP + 36}">…</text>' if last > shown.stop else ""
    rows = f'<text y="15">input</text><text y="{_GAP + 36}">output</text>'
    return (
        f'<svg class="axis" width="{width}" height="{_GAP + 60}" role="img"'
        f' aria-label="which taps make which outputs">{rows}{marks}{more}</svg>'
    )


def _x(position: float, shown: range) -> float:
    return _LEFT + (position - shown.start) * _CELL


def _inputs(axis: Axis, shown: range) -> Iterator[str]:
    for i in axis.reads(shown.start, shown.stop):
        x = _centre(axis, i, shown)
        if x - 8 >= _LEFT and x + 8 <= _x(shown.stop, shown):
            yield f'<rect class="in" x="{x - 9:g}" y="1" width="18" height="20"/>'
            yield f'<text class="mid" x="{x:g}" y="15">{i}</text>'


def _centre(axis: Axis, i: int, shown: range) -> float:
    reach = axis.reach(i)
    return _x((reach.start + reach.stop) / 2, shown)


def _outputs(axis: Axis, shown: range) -> Iterator[str]:
    top = _GAP + 21
    for o in shown:
        x, phase = _x(o, shown), o % axis.stride
        products = axis.products(o)
        kept = 0 <= o < axis.out
        hue = f"h{phase % _HUES}" if kept and products else "cut" if not kept else "bare"
        for product in products if kept else ():
            start = _centre(axis, product.input, shown)
            if _LEFT <= start <= _x(shown.stop, shown):
                yield (
                    f'<line class="l{phase % _HUES}" x1="{start:g}" y1="21"'
                    f' x2="{x + _CELL / 2:g}" y2="{top}"/>'
                )
        yield f'<rect class="{hue}" x="{x + 1:g}" y="{top}" width="{_CELL - 2}" height="20"/>'
        if kept:
            label = phase if products else "b"
            yield f'<text class="mid on" x="{x + _CELL / 2:g}" y="{top + 15}">{label}</text>'
            if phase == 0:
                yield f'<text class="mid dim" x="{x + _CELL / 2:g}" y="{top + 34}">{o}</text>'


# For terminals


def as_text(found: Optimization, width: int = 80) -> str:
    """The report in lines of at most `width` columns (at least 60); ends without a newline.

    >>> print(as_text(Optimization("a.onnx", "reference", 1, 17, (), (), (), (), None, (),
    ...     "It stays as it is.", 9, 9, "x", {}, 1.0)))
    a.onnx: reference, 1 thread, opset 17, x
    <BLANKLINE>
    verified        nothing was changed
    verdict         It stays as it is.
    """
    room, threads = max(width, _NARROWEST), f"{found.threads} thread{'s'[: found.threads > 1]}"
    setting = f"{found.runtime}, {threads}, opset {found.opset}, {found.machine}"
    lines = wrap(names.neutral(f"{names.shortened(found.model)}: {setting}"), room)
    lines += [*_table(found.layers, room), ""]
    for label, sentence in _facts(found):
        words = names.shortened(sentence, names.LONGEST_SENTENCE, "...")
        first, *others = wrap(words, room - _LABEL) or [""]
        lines.append((label.ljust(_LABEL) + first).rstrip())
        lines += [" " * _LABEL + line for line in others]
    return "\n".join(lines)


def _table(layers: Sequence[LayerResult], room: int) -> Iterator[str]:
    if not layers:
        return
    rows = [("layer", "before", "after", "faster", "now"), *map(_row, layers)]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    widths[0] = min(widths[0], max(room - sum(widths[1:]) - 8, 12))
    yield ""
    for row in rows:
        cells = [names.shortened(row[0], widths[0], "...").ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:4], widths[1:4], strict=True)]
        yield "  ".join([*cells, row[4]]).rstrip()


def _row(layer: LayerResult) -> tuple[str, ...]:
    original, node = layer.candidate(ORIGINAL), names.neutral(layer.node)
    before = seconds(original.timings[0].median) if original and original.timings else "-"
    if not (layer.rewritten and layer.best.ratios):
        return node, before, "-", "-", "as it was" if before != "-" else "as it was, not measured"
    after, gain = layer.best.timings[0].median, layer.best.ratios[0].median
    return node, before, seconds(after), f"{gain:.2f}x", names.shortened(layer.chosen, 40, "...")


def _facts(found: Optimization) -> Iterator[tuple[str, str]]:
    for inputs, whole in zip(found.inputs, found.whole, strict=False):
        sizes = (f"{name} {'x'.join(map(str, size))}" for name, size in inputs.items())
        at = f" at {', '.join(sizes)}" if len(found.whole) > 1 else ""
        times = f"{seconds(whole.before.median)} before, {seconds(whole.after.median)} after"
        yield "whole model", f"{times}: {ratio(whole.ratio)}{at}"
    apart = sum(not one.equal for one in found.checks)
    if found.verified is None:
        told = "nothing was changed" + (f"; {apart} outputs were not equal" if apart else "")
    else:
        told = f"{len(found.checks)} outputs compared, {apart or 'none'} not equal"
    yield "verified", told
    if found.session:
        gains = ", ".join(ratio(whole.ratio) for whole in found.session.whole)
        yield "Session", gains or found.session.why
    yield from (("remark", remark) for remark in found.remarks)
    yield "verdict", found.verdict


def seconds(value: float) -> str:
    """A time with three digits.

    >>> seconds(0.0123), seconds(2e-6)
    ('12.3 ms', '2 us')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def ratio(value: Ratio | Mapping[str, float]) -> str:
    """A ratio with its interval.

    >>> ratio({"median": 1.5, "low": 1.4, "high": 1.6})
    '1.50 times as fast (1.40 to 1.60)'
    """
    if isinstance(value, Mapping):
        value = Ratio(**value)
    return f"{value.median:.2f} times as fast ({value.low:.2f} to {value.high:.2f})"


def shape(sizes: Sequence[int]) -> str:
    """A shape in people's signs: 1x8x32.

    >>> shape([1, 8, 32])
    '1×8×32'
    """
    return "×".join(map(str, sizes))  # noqa: RUF001  # the sign for it
