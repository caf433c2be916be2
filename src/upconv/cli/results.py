"""What a bench found, as values, and as the rows and columns it is shown in.

A new column of the table is one line in `_columns`; a new fact in the file is one in `Result`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, log, prod
from typing import Any

from .. import memory
from .cases import Case
from .report import Table
from .rounds import Timing

_MEAN = "geometric mean"
_EFFICIENCY = "efficiency"


@dataclass(frozen=True, slots=True)
class Result:
    """One contender on one layer.

    `timing` is None for one that was not measured; `reason` then says why ("" if it was). `fault`
    marks a reason that is a finding: a wrong result, or an engine that failed. `own` marks upconv's
    engines.
    """

    contender: str
    family: str
    timing: Timing | None = None
    error: float | None = None
    workspace_bytes: int | None = None
    reason: str = ""
    fault: bool = False
    own: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """One layer: its case, without the data, and a result of every contender.

    `floor` is the time in seconds that the machine's ceilings allow, None where those are unknown.
    """

    case: Case
    tolerance: float
    results: tuple[Result, ...]
    floor: float | None = None

    def best(self, family: str) -> float | None:
        """The best time of a family's settings, None if it has none."""
        times = [r.timing.best for r in self.results if r.family == family and r.timing]
        return min(times, default=None)

    def speed(self, result: Result, family: str) -> float | None:
        """How many times as fast as the best of a family."""
        other = self.best(family)
        return None if other is None or result.timing is None else other / result.timing.best

    def efficiency(self, result: Result) -> float | None:
        """The floor over the time, for upconv's own engines."""
        if self.floor is None or result.timing is None or not result.own:
            return None
        return self.floor / result.timing.best


Cell = Callable[[Measured, Result], str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table; `mean` is the field of `summary` that it ends in, "" for none."""

    title: str
    cell: Cell
    mean: str = ""


def table(measured: Sequence[Measured], families: Sequence[str]) -> Table:
    """The table of a bench: a section per layer, and one of geometric means.

    Every line names its layer, so that it can be searched for by itself.
    """
    columns = _columns(families)
    rows, sections = [], []
    for layer in measured:
        for result in layer.results:
            cells = tuple(column.cell(layer, result) for column in columns)
            rows.append((layer.case.layer.name, result.contender, *cells))
            sections.append(layer.case.layer.name)
    for contender, means in summary(measured, families).items():
        cells = tuple(_ratio(means[c.mean]) if c.mean else "" for c in columns)
        rows.append((_MEAN, contender, *cells))
        sections.append(_MEAN)
    headings = ("layer", "by", *(column.title for column in columns))
    return Table(headings, tuple(rows), tuple(sections))


def _columns(families: Sequence[str]) -> list[Column]:
    return [
        Column("best ms", lambda _, r: f"{r.timing.best * 1e3:.3f}" if r.timing else "-"),
        Column("median", lambda _, r: f"{r.timing.median * 1e3:.3f}" if r.timing else "-"),
        Column("GFLOP/s", lambda m, r: f"{_gflops(m, r):.1f}" if r.timing else "-"),
        Column(_EFFICIENCY, lambda m, r: _ratio(m.efficiency(r)), _EFFICIENCY),
        *(Column(f"x {_short(family)}", _speed_cell(family), family) for family in families),
        Column("memory", _memory),
        Column("error", _verdict),
    ]


def _short(family: str) -> str:
    """A family's name in the head of a narrow column."""
    return {"reference": "ref", "onnxruntime": "ort", "openvino": "ov"}.get(family, family)


def _speed_cell(family: str) -> Cell:
    return lambda m, r: _ratio(m.speed(r, family))


def _ratio(value: float | None) -> str:
    """Three digits, whatever the size.

    >>> _ratio(1.234), _ratio(12.34), _ratio(123.4)
    ('1.23', '12.3', '123')
    """
    return "-" if value is None else f"{value:.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    return 2 if value < 10 else 1 if value < 100 else 0


def _gflops(measured: Measured, result: Result) -> float:
    return measured.case.flop / result.timing.best / 1e9 if result.timing else 0.0


def _memory(measured: Measured, result: Result) -> str:
    """The result, and the scratch memory of a call where the contender tells."""
    if result.reason and not result.timing:
        return "-"
    return memory.readable(result_bytes(measured.case) + (result.workspace_bytes or 0))


def result_bytes(case: Case) -> int:
    """Bytes of the result."""
    return prod(case.problem.result_shape) * case.dtype.itemsize


def _verdict(measured: Measured, result: Result) -> str:
    if result.fault:
        return "FAILED" if result.error is None else "WRONG"
    return "-" if result.error is None else f"{result.error:.0e}"


def summary(
    measured: Sequence[Measured], families: Sequence[str]
) -> dict[str, dict[str, float | None]]:
    """Of each contender, the geometric means of its speed against each family, and efficiency."""
    names = dict.fromkeys(r.contender for m in measured for r in m.results if r.timing)
    return {
        name: {
            **{family: _mean(_speeds(measured, name, family)) for family in families},
            _EFFICIENCY: _mean(_efficiencies(measured, name)),
        }
        for name in names
    }


def _efficiencies(measured: Sequence[Measured], name: str) -> Iterable[float]:
    for layer in measured:
        for result in layer.results:
            efficiency = layer.efficiency(result) if result.contender == name else None
            if efficiency is not None:
                yield efficiency


def _speeds(measured: Sequence[Measured], name: str, family: str) -> Iterable[float]:
    for layer in measured:
        for result in layer.results:
            speed = layer.speed(result, family) if result.contender == name else None
            if speed is not None:
                yield speed


def _mean(values: Iterable[float]) -> float | None:
    logarithms = [log(value) for value in values]
    return exp(sum(logarithms) / len(logarithms)) if logarithms else None


def as_fields(measured: Measured) -> dict[str, Any]:
    """A layer and its results, every sample kept, for JSON."""
    case, layer = measured.case, measured.case.layer
    return {
        "name": layer.name,
        "input_shape": layer.x_shape,
        "weight_shape": layer.w_shape,
        "output_shape": case.problem.y_shape,
        **layer.keywords,
        "problem": str(case.problem),
        "multiply_adds": case.problem.multiply_adds,
        "tolerance": measured.tolerance,
        "floor_seconds": measured.floor,
        "results": [_result_fields(measured, result) for result in measured.results],
    }


def _result_fields(measured: Measured, result: Result) -> dict[str, Any]:
    timing = result.timing
    return {
        "contender": result.contender,
        "family": result.family,
        "verified": result.error is not None and not result.fault,
        "error": _finite(result.error),
        "reason": result.reason,
        "fault": result.fault,
        "best_seconds": timing and timing.best,
        "median_seconds": timing and timing.median,
        "gflops": _gflops(measured, result) if timing else None,
        "efficiency": measured.efficiency(result),
        "workspace_bytes": result.workspace_bytes,
        "result_bytes": result_bytes(measured.case),
        "rounds_seconds": timing.rounds if timing else (),
    }


def _finite(value: float | None) -> float | None:
    """JSON has no infinity."""
    return value if value is not None and value < float("inf") else None
