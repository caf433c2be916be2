"""What `accelerate` did and why: values that print as a table.

What lives here: the report. What never does: deciding anything.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One deconvolution of a model.

    name: its path in the model, the first where there are several. before: its class, then those
    fused into it. after: who computes it now. engine: upconv's engine, or "pytorch". why: the
    reason in words. seconds_before, seconds_after: the best time of one call on the example
    inputs, what was fused included in both; None where nothing was measured.
    """

    name: str
    before: str
    after: str
    engine: str
    why: str
    seconds_before: float | None = None
    seconds_after: float | None = None

    @property
    def replaced(self) -> bool:
        """Whether upconv computes it."""
        return self.engine != "pytorch"

    @property
    def speedup(self) -> float | None:
        """How many times faster it became; None where that was not measured.

        >>> LayerReport("up", "ConvTranspose2d", "upconv", "jit", "faster", 0.004, 0.001).speedup
        4.0
        """
        if self.seconds_before is None or not self.seconds_after:
            return None
        return self.seconds_before / self.seconds_after


@dataclass(frozen=True, slots=True)
class AccelerationReport:
    """All deconvolutions of a model, in the order of `model.named_modules()`; prints as a table.

    note says what holds for the model as a whole.

    >>> up = LayerReport("up", "ConvTranspose2d", "upconv", "jit", "not measured")
    >>> print(AccelerationReport((up,)))
    layer  before           after   engine  ms before  ms after  why
    up     ConvTranspose2d  upconv  jit     -          -         not measured
    """

    layers: tuple[LayerReport, ...]
    note: str = ""

    def __str__(self) -> str:
        head = ("layer", "before", "after", "engine", "ms before", "ms after", "why")
        rows = [head, *map(_cells, self.layers)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, self.note] if self.note else lines)


def _cells(layer: LayerReport) -> tuple[str, ...]:
    before, after = _milliseconds(layer.seconds_before), _milliseconds(layer.seconds_after)
    return (layer.name or ".", layer.before, layer.after, layer.engine, before, after, layer.why)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3g}"
