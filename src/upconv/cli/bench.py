"""`upconv bench`: real layers through every engine and installed peer, verified, then timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from math import isfinite, prod
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import memory, roofline
from ..arrays import dtype_of
from ..errors import EngineMissing, FileError
from ..explanations import EngineStatus, engines
from ..problem import Direction, DType
from ..threads import get_num_threads
from . import doctor, layers, options, report
from .candidates import PEERS, Case
from .endings import Ending, say
from .layers import Layer
from .measuring import Measured, Result, measure, reasons, summary
from .options import DirectionOption, ElementType, OutputFormat, Threads

_QUICK_SECONDS = 0.05
_QUICK_MULTIPLY_ADDS = 150_000_000
_SHORT = {"reference": "ref", "onnxruntime": "ort", "openvino": "ov"}


def _names(flag: str, words: str) -> Any:
    return typer.Option(flag, parser=options.names, metavar="NAME,...", help=words)


def bench(
    *,
    file: Annotated[
        Path | None, typer.Option("--layers", metavar="FILE", help="Layers to measure, in JSON.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the small layers, briefly: some seconds.")
    ] = False,
    only: Annotated[Any, _names("--only", "Only these layers.")] = None,
    engine_names: Annotated[
        Any, _names("--engines", "Engines to measure (default: all that are here).")
    ] = None,
    peer_names: Annotated[
        Any, _names("--peers", f"{', '.join(PEERS)}, or none (default: those installed).")
    ] = None,
    direction: DirectionOption = Direction.FORWARD,
    dtype: ElementType = DType.FLOAT32,
    threads: Threads = None,
    seconds: Annotated[
        float,
        typer.Option(min=0.0, max=3600.0, metavar="S", help="For each candidate on each layer."),
    ] = 0.3,
    output_format: OutputFormat = "text",
) -> None:
    """Measure real layers on this machine: every engine, and PyTorch, ONNX Runtime and OpenVINO.

    Every result is verified against the reference engine in float64 before it is timed; a wrong one
    is shown as WRONG and the exit code is 1. Times are the best and the median of interleaved
    rounds; efficiency is the time that this machine's roofline allows over the best; "x torch" is
    how many times as fast as PyTorch; memory is the result and the scratch memory of a call.

    \b
    Examples:
      upconv bench --quick
      upconv bench --only hifigan_up1,unet_up1 --peers torch --threads 1
      upconv bench --direction weight_grad --engines reference --peers none
      upconv bench --layers my_layers.json --output-format json > result.json
    """
    options.use_threads(threads)
    dtype_of(dtype.value)  # raises for bfloat16 where ml_dtypes is missing
    statuses, chosen = engines(), _chosen_layers(file, only, quick)
    own, peers = _chosen_engines(statuses, engine_names), _chosen_peers(peer_names)
    count, spent = get_num_threads(), min(seconds, _QUICK_SECONDS) if quick else seconds
    limits, measured = roofline.measured(count), []
    with report.progress(2 * len(chosen)) as step:
        for layer in chosen:
            found = measure(Case(layer, direction, dtype), own, peers, count, spent, step)
            if limits is not None:
                work = found.case.problem
                floor = limits.seconds(work.multiply_adds, work.nbytes, work.dtype)
                found = replace(found, roofline=floor)
            measured.append(found)
    for status in statuses if engine_names is None else ():
        if not status.available:
            say(f"{status.name}: {' '.join(status.reason.split())}")
    for line in reasons(measured):
        say(line)
    groups = (*(name for name in own if name == "reference"), *peers)
    faults = sum(result.fault for layer in measured for result in layer.results)
    if output_format == "json":
        report.document(
            "bench",
            machine=doctor.facts(count),
            engines=[asdict(status) for status in statuses],
            peers=peers,
            direction=direction.value,
            dtype=dtype.value,
            threads=count,
            seconds=spent,
            roofline=limits and asdict(limits),
            layers=[_layer_fields(layer) for layer in measured],
            summary=summary(measured, groups),
            faults=faults,
        )
    else:
        report.table(_table(measured, groups))
    if faults:
        raise typer.Exit(int(Ending.FINDINGS))


# What to measure ----------------------------------------------------------------------------------


def _chosen_layers(file: Path | None, only: Sequence[str] | None, quick: bool) -> list[Layer]:
    found = layers.built_in() if file is None else layers.read(file)
    if only is not None:
        options.require_known("--only", only, [layer.name for layer in found])
        found = [layer for layer in found if layer.name in only]
    if quick:
        most = _QUICK_MULTIPLY_ADDS
        found = [a for a in found if a.problem(DType.FLOAT32).multiply_adds <= most]
        if not found:
            what = layers.BUILT_IN if file is None else str(file)
            raise FileError(
                f"{what}: no layer has at most {most:,} multiply-adds, as --quick asks."
            )
    return found


def _chosen_engines(
    statuses: Sequence[EngineStatus], wanted: Sequence[str] | None
) -> tuple[str, ...]:
    if wanted is None:
        return tuple(status.name for status in statuses if status.available)
    options.require_known("--engines", wanted, [status.name for status in statuses])
    for status in statuses:
        if status.name in wanted and not status.available:
            raise EngineMissing(status.reason)
    return tuple(wanted)


def _chosen_peers(wanted: Sequence[str] | None) -> tuple[str, ...]:
    if wanted is None:
        return tuple(name for name in PEERS if doctor.version_of(name) is not None)
    options.require_known("--peers", wanted, (*PEERS, "none"))
    return tuple(name for name in wanted if name != "none")


# What is printed ----------------------------------------------------------------------------------

_Cell = Callable[[Measured, Result], str]


def _table(measured: Sequence[Measured], groups: Sequence[str]) -> list[list[str]]:
    """Headings and rows; every row names its layer, so that it can be searched for by itself."""
    speeds: dict[str, _Cell] = {f"x {_SHORT.get(g, g)}": _speed(g) for g in groups}
    columns: dict[str, _Cell] = {
        "best ms": lambda _, r: f"{r.best * 1e3:.3f}" if r.best else "-",
        "median": lambda _, r: f"{r.median * 1e3:.3f}" if r.median else "-",
        "GFLOP/s": lambda m, r: f"{m.case.flop / r.best / 1e9:.1f}" if r.best else "-",
        "efficiency": lambda m, r: _ratio(m.efficiency(r)),
        **speeds,
        "memory": _memory,
        "error": _verdict,
    }
    rows = [["layer", "by", *columns]]
    rows += [
        [m.case.layer.name, r.candidate, *(cell(m, r) for cell in columns.values())]
        for m in measured
        for r in m.results
    ]
    for name, means in summary(measured, groups).items():
        by_column = {f"x {_SHORT.get(g, g)}": _ratio(means[g]) for g in groups}
        by_column["efficiency"] = _ratio(means["efficiency"])
        rows.append(["geometric mean", name, *(by_column.get(title, "") for title in columns)])
    return rows


def _speed(group: str) -> _Cell:
    return lambda m, r: _ratio(m.speed(r, group))


def _ratio(value: float | None) -> str:
    """Three digits, whatever the size.

    >>> _ratio(1.234), _ratio(12.34), _ratio(123.4), _ratio(None)
    ('1.23', '12.3', '123', '-')
    """
    if value is None:
        return "-"
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def _memory(measured: Measured, result: Result) -> str:
    """The result, and the scratch memory of a call where the candidate tells."""
    if not result.samples and result.reason:
        return "-"
    return memory.readable(_result_bytes(measured.case) + (result.workspace_bytes or 0))


def _result_bytes(case: Case) -> int:
    return prod(case.problem.result_shape) * case.dtype.itemsize


def _verdict(_: Measured, result: Result) -> str:
    if result.fault:
        return "FAILED" if result.error is None else "WRONG"
    return "-" if result.error is None else f"{result.error:.0e}"


def _layer_fields(measured: Measured) -> dict[str, Any]:
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
        "roofline_seconds": measured.roofline,
        "results": [_result_fields(measured, result) for result in measured.results],
    }


def _result_fields(measured: Measured, result: Result) -> dict[str, Any]:
    known = result.error is not None and isfinite(result.error)  # JSON has no infinity
    return {
        "candidate": result.candidate,
        "group": result.group,
        "verified": result.error is not None and not result.fault,
        "error": result.error if known else None,
        "reason": result.reason,
        "fault": result.fault,
        "best_seconds": result.best,
        "median_seconds": result.median,
        "gflops": measured.case.flop / result.best / 1e9 if result.best else None,
        "efficiency": measured.efficiency(result),
        "workspace_bytes": result.workspace_bytes,
        "result_bytes": _result_bytes(measured.case),
        "rounds_seconds": result.samples,
    }
