"""The report as plain text for a terminal: one row per layer, the whole model, the verdict last.

Words of ours are plain ASCII. What a name could do to a terminal is taken out of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from .. import names
from ..optimizing.results import Optimization

_LABEL = 16
_NARROWEST = 60


def as_text(found: Optimization, width: int = 80) -> str:
    """The report in lines of at most `width` columns (at least 60); ends without a newline.

    >>> print(as_text(Optimization("a.onnx", "reference", 1, 17, (), (), (), (), None, (),
    ...     "It stays as it is.", 9, 9, "x", {}, 1.0)))
    a.onnx: reference, 1 thread, opset 17, x
    <BLANKLINE>
    verified        nothing was changed
    verdict         It stays as it is.
    """
    told, room = found.as_json(), max(width, _NARROWEST)
    threads = f"{told['threads']} thread{'s' if told['threads'] > 1 else ''}"
    setting = f"{told['runtime']}, {threads}, opset {told['opset']}, {told['machine']}"
    head = wrap(names.on_terminal(f"{names.shortened(told['model'])}: {setting}"), room)
    return "\n".join([*head, *_table(told["layers"], room), "", *_ending(told, room)])


def _table(layers: Sequence[Mapping[str, Any]], room: int) -> Iterator[str]:
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


def _row(layer: Mapping[str, Any]) -> tuple[str, ...]:
    found = {one["passes"]: one for one in layer["candidates"]}
    original, chosen = found.get("original"), found.get(layer["chosen"])
    before = seconds(original["timings"][0]["median"]) if original and original["timings"] else "-"
    node = names.on_terminal(layer["node"])
    if layer["chosen"] == "original" or chosen is None or not chosen["ratios"]:
        return node, before, "-", "-", "as it was" if before != "-" else "as it was, not measured"
    after, gain = chosen["timings"][0]["median"], chosen["ratios"][0]["median"]
    return node, before, seconds(after), f"{gain:.2f}x", names.shortened(layer["chosen"], 40, "...")


def _ending(found: Mapping[str, Any], room: int) -> Iterator[str]:
    for label, sentence in _facts(found):
        first, *others = wrap(names.on_terminal(names.clipped(sentence)), room - _LABEL) or [""]
        yield (label.ljust(_LABEL) + first).rstrip()
        yield from (" " * _LABEL + line for line in others)


def _facts(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for inputs, whole in zip(found["inputs"], found["whole"], strict=False):
        at = f" at {_inputs(inputs)}" if len(found["whole"]) > 1 else ""
        times = f"{seconds(whole['before']['median'])} before, {seconds(whole['after']['median'])}"
        yield "whole model", f"{times} after: {ratio(whole['ratio'])}{at}"
    yield "verified", verified(found)
    session = found["session"]
    if session:
        gains = ", ".join(ratio(whole["ratio"]) for whole in session["whole"])
        yield "upconv's Session", gains or session["why"]
    yield from (("remark", remark) for remark in found["remarks"])
    yield "verdict", found["verdict"]


def verified(found: Mapping[str, Any]) -> str:
    """What came of the comparison with the original, in a few words."""
    checks = found["checks"]
    apart = sum(not one["equal"] for one in checks)
    if found["verified"] is None:
        return "nothing was changed" + (f"; {apart} outputs were not equal" if apart else "")
    return f"{len(checks)} outputs compared, {apart or 'none'} not equal"


def _inputs(shapes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, size))}" for name, size in shapes.items())


def seconds(value: float) -> str:
    """A time with three digits.

    >>> seconds(0.0123), seconds(2e-6)
    ('12.3 ms', '2 us')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def ratio(value: Mapping[str, float]) -> str:
    """A ratio with its interval.

    >>> ratio({"median": 1.5, "low": 1.4, "high": 1.6})
    '1.50 times as fast (1.40 to 1.60)'
    """
    return f"{value['median']:.2f} times as fast ({value['low']:.2f} to {value['high']:.2f})"


def shape(sizes: Sequence[int]) -> str:
    """A shape in people's signs: 1x8x32.

    >>> shape([1, 8, 32])
    '1×8×32'
    """
    return "×".join(map(str, sizes))  # noqa: RUF001  # the sign for it
