"""`upconv bench`: real layers through every engine and installed peer, verified, then timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
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
            case = Case(layer, direction, dtype)
            work = case.problem.multiply_adds, case.problem.nbytes, dtype
            floor = None if limits is None else limits.seconds(*work)
            measured.append(measure(case, own, peers, count, spent, floor, step))
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


def _table(measured: Sequence[Measured], groups: Sequence[str]) -> list[list[str]]:
    """Headings and rows; every row names its layer, so that it can be searched for by itself."""
    speeds = [f"x {_SHORT.get(group, group)}" for group in groups]
    rows = [["layer", "by", "best ms", "median", "GFLOP/s", "efficiency", *speeds, "memory"]]
    rows[0].append("error")
    for m in measured:
        for r in m.results:
            size = m.case.result_bytes + (r.workspace_bytes or 0)
            times = [f"{t * 1e3:.3f}" if t else "-" for t in (r.best_seconds, r.median_seconds)]
            rows.append([
                m.case.layer.name, r.candidate, *times, f"{r.gflops:.1f}" if r.gflops else "-",
                _ratio(r.efficiency), *(_ratio(m.speed(r, group)) for group in groups),
                memory.readable(size) if r.best_seconds else "-",
                _verdict(r),
            ])  # fmt: skip
    for name, means in summary(measured, groups).items():
        ratios = [_ratio(means[mean]) for mean in ("efficiency", *groups)]
        rows.append(["geometric mean", name, "", "", "", *ratios, "", ""])
    return rows


def _ratio(value: float | None) -> str:
    """Three digits, whatever the size.

    >>> _ratio(1.234), _ratio(12.34), _ratio(123.4), _ratio(None)
    ('1.23', '12.3', '123', '-')
    """
    if value is None:
        return "-"
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def _verdict(result: Result) -> str:
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
        "tolerance": case.tolerance,
        "roofline_seconds": measured.roofline,
        "results": [_result_fields(case, result) for result in measured.results],
    }


def _result_fields(case: Case, result: Result) -> dict[str, Any]:
    known = result.error is not None and isfinite(result.error)  # JSON has no infinity
    return asdict(result) | {
        "verified": result.error is not None and not result.fault,
        "error": result.error if known else None,
        "result_bytes": case.result_bytes,
    }
