"""The report as plain text for a terminal: one row per layer, the whole model, the verdict last.

Words of ours are plain ASCII. What a name could do to a terminal is taken out of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from .. import names
from ..optimizing.results import ORIGINAL, LayerResult, Optimization, Ratio

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
