"""`upconv bench`: verify and time real layers with every engine and installed library.

1. An engine that refuses the layer is skipped with its reason, and so is a library that cannot
   compute it or is not installed.
2. An engine that fails, or a candidate with wrong results, is a fault: it is shown, never timed.
3. `upconv.timing` times the others in interleaved rounds, with a rest before each sample.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from statistics import geometric_mean, median
from typing import Annotated, Any, Literal

from typer import BadParameter, Option

from .. import memory, roofline
from ..arrays import dtype_of
from ..engines import ON_DEVICES, load
from ..errors import EngineError, EngineRefusal, MemoryLimitError, brief
from ..explanations import engines as known_engines
from ..problem import Direction, DType
from ..terminal import folded, shown
from ..threads import get_num_threads
from ..timing import format_seconds, interleaved
from . import doctor, options, report
from .bench_layers import PEERS, Candidate, Case, Layer, engine, read
from .exits import FINDINGS, say

_ANY_WIDTH = 10_000  # columns of a file or pipe, so that a row stays on one line
_LEGEND = (
    "efficiency: the time of the direct roofline over the best time",
    "x NAME: the best time of NAME over the row's best time",
    "memory: of the result and the scratch memory of a call",
    "error: largest difference from the reference engine in float64, over the largest value",
)
_QUICK_SECONDS = 0.05
_QUICK_MULTIPLY_ADDS = 150_000_000
_SHORT = {"reference": "ref", "onnxruntime": "ort", "openvino": "ov"}


def _names(words: str) -> Any:
    return Option(parser=options.names, metavar="NAME,...", help=words)


def bench(
    *,
    layers: Annotated[
        Path | None, Option(metavar="FILE", help="Layers to measure, in JSON.")
    ] = None,
    quick: Annotated[
        bool, Option("--quick", help="Measure only the small layers, in a few seconds.")
    ] = False,
    only: Annotated[Any, _names("Measure only these layers.")] = None,
    engines: Annotated[Any, _names("Engines to measure (default: all available).")] = None,
    peers: Annotated[Any, _names(f"{', '.join(PEERS)}, or none (default: all installed).")] = None,
    direction: options.LayerDirection = Direction.FORWARD,
    dtype: options.ElementType = DType.FLOAT32,
    threads: options.Threads = None,
    seconds: Annotated[
        float, Option(min=0.0, max=3600.0, metavar="S", help="Time per candidate and layer.")
    ] = 0.3,
    device: Annotated[
        Literal["cpu", "cuda"], Option(help="Where to compute; cuda compares cuDNN with PyTorch.")
    ] = "cpu",
    precision: Annotated[
        Literal["float32", "tf32"], Option(help="Type of float32 products; tf32 needs a GPU.")
    ] = "float32",
    output_format: options.OutputFormat = "text",
) -> None:
    """Measure real layers with every engine and with other libraries.

    The other libraries are PyTorch, ONNX Runtime and OpenVINO. Every result is verified against the
    reference engine in float64 before it is timed; a wrong one is shown as WRONG and the exit code
    is 1. Times are the best and the median of interleaved rounds. Efficiency is the direct roofline
    time over the best time. It exceeds 1 if Winograd's algorithm saves multiplications, or if the
    data stays in the caches. "x torch" is the speed relative to PyTorch. "memory" is the size of
    the result and of a call's scratch memory.

    \b
    Examples:
      upconv bench --quick
      upconv bench --only hifigan_up1,unet_up1 --peers torch --threads 1
      upconv bench --direction weight_grad --engines reference --peers none
      upconv bench --layers my_layers.json --output-format json
      upconv bench --device cuda --dtype float16
    """
    chosen = _chosen_layers(layers, only, quick)
    if device == "cuda":
        from . import bench_gpu  # only here: it loads cuDNN's engine

        tf32 = precision == "tf32"
        bench_gpu.measure(chosen, direction, dtype, tf32=tf32, output_format=output_format)
    _require_processor(chosen, precision, dtype)
    options.use_threads(threads)
    statuses = [status for status in known_engines() if status.name != ON_DEVICES]
    computing = engines or [status.name for status in statuses if status.available]
    for name in computing:
        load(name, "--engines")  # raises for an unknown or missing engine
    others = peers or [name for name in PEERS if doctor.version_of(name) is not None]
    _require_known("--peers", others, (*PEERS, "none"))
    names = (*computing, *(name for name in others if name != "none"))
    groups = [name for name in names if name in ("reference", *PEERS)]
    count, spent = get_num_threads(), min(seconds, _QUICK_SECONDS) if quick else seconds
    limits, measured = roofline.measured(count), []
    with shown(None) as step:
        for number, layer in enumerate(chosen, 1):
            step(f"{layer.name}: verifying and timing", number, len(chosen))
            case = Case(layer, direction, dtype)
            work = case.problem.multiply_adds, case.problem.nbytes, dtype
            bound = None if limits is None else limits.seconds(*work)
            layer_results = measure(case, names, groups, bound, count, spent)
            measured.append(case.fields | {"roofline_seconds": bound, "results": layer_results})
    results = [result for layer in measured for result in layer["results"]]
    missing = [(s.name, s.reason) for s in statuses if engines is None and not s.available]
    left_out = [(r.candidate, r.reason) for r in results if r.reason]
    for name, reason in dict.fromkeys((*missing, *left_out)):  # the table shows the layers
        say(f"{name}: {' '.join(reason.split())}")
    means, faults = _means(results, groups), sum(result.fault for result in results)
    document = {
        "machine": doctor.facts(count),
        "engines": statuses,
        "peers": names[len(computing) :],
        "direction": direction,
        "dtype": dtype,
        "threads": count,
        "seconds": spent,
        "roofline": limits,
        "layers": measured,
        "summary": means,
        "faults": faults,
    }
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if on_terminal else _ANY_WIDTH
    table = folded(*_table(results, groups, means), left=2, width=width)
    talk, code = _LEGEND if on_terminal else (), FINDINGS if faults else 0
    report.finish("bench", output_format, document, table, talk=talk, code=code)


def _chosen_layers(file: Path | None, only: Sequence[str] | None, quick: bool) -> list[Layer]:
    layers = read() if file is None else read(file)
    if only is not None:
        _require_known("--only", only, [layer.name for layer in layers])
        layers = [layer for layer in layers if layer.name in only]
    if quick:
        most = _QUICK_MULTIPLY_ADDS
        layers = [a for a in layers if a.problem(DType.FLOAT32).multiply_adds <= most]
        if not layers:
            words = f"no layer has at most {most:,} multiply-adds"
            raise BadParameter(words, param_hint="--quick")
    return layers


def _require_processor(layers: Sequence[Layer], precision: str, dtype: DType) -> None:
    """Refuse options that only a GPU supports, and types whose package is not installed."""
    dtype_of(dtype.value)  # raises for bfloat16 if ml_dtypes is missing
    if precision == "tf32":
        words = "TF32 is available only on NVIDIA GPUs; add --device cuda"
        raise BadParameter(words, param_hint="--precision")
    conv = [layer.name for layer in layers if layer.conv]
    if conv:
        words = f"{conv[0]} is an ordinary convolution; add --device cuda"
        raise BadParameter(words, param_hint="--layers")


def _require_known(option: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    for name in wanted:
        if name not in known:
            words = f"{brief(name)} is not one of {', '.join(known)}"
            raise BadParameter(words, param_hint=option)


@dataclass(slots=True)
class Result:
    """Result of one candidate on one layer, with the fields of the JSON document.

    rounds_seconds: best seconds per call in every round; empty for an unmeasured candidate.
    reason: why it was not measured. fault: whether the result is wrong or the engine failed.
    efficiency: the roofline time over the best time, for upconv's engines. speeds: the best time
    of each group over the best time of this candidate.
    """

    layer: str
    candidate: str
    group: str
    result_bytes: int
    verified: bool = False
    error: float | None = None
    reason: str = ""
    fault: bool = False
    best_seconds: float | None = None
    median_seconds: float | None = None
    gflops: float | None = None
    efficiency: float | None = None
    workspace_bytes: int | None = None
    rounds_seconds: Sequence[float] = ()
    speeds: dict[str, float] = field(default_factory=dict)


def measure(
    case: Case,
    names: Sequence[str],
    groups: Sequence[str],
    roofline: float | None,
    threads: int,
    seconds: float,
) -> list[Result]:
    """Return the results of engines and peers on a case."""
    entries = [entry for name in names for entry in _entries(name, case, threads)]
    ready = [(candidate, result) for candidate, result in entries if candidate is not None]
    times = interleaved([candidate.run for candidate, _ in ready], seconds * len(ready))
    for (_, result), samples in zip(ready, times.samples, strict=True):
        result.rounds_seconds, result.best_seconds = samples, min(samples)
        result.median_seconds = median(samples)
        result.gflops = 2 * case.problem.multiply_adds / min(samples) / 1e9
        if roofline and result.group not in PEERS:
            result.efficiency = roofline / min(samples)
    for group in groups:
        best = [min(result.rounds_seconds) for _, result in ready if result.group == group]
        for _, result in ready if best else ():
            result.speeds[group] = min(best) / min(result.rounds_seconds)
    return [result for _, result in entries]


_Entry = tuple[Candidate | None, Result]
"""A candidate to time, or None, and its result so far."""


def _entries(name: str, case: Case, threads: int) -> list[_Entry]:
    """Return the verified candidates of an engine or a peer, or one entry with a reason."""
    peer, fault = PEERS.get(name), False
    try:
        candidates = peer(case, threads) if peer else [engine(name, case, threads)]
        return [_verified(candidate, case) for candidate in candidates]
    except (EngineRefusal, MemoryLimitError) as error:
        reason = str(error)
    except ImportError as error:
        reason = f"not installed ({error})"
    # A third-party library may raise any error, which must not end the benchmark.
    except Exception as error:
        fault = peer is None
        if fault and not isinstance(error, EngineError):
            raise
        reason = str(error) if fault else f"{type(error).__name__}: {error}"[:300]
    result = Result(case.layer.name, name, name, case.result_bytes, reason=reason, fault=fault)
    return [(None, result)]


def _verified(candidate: Candidate, case: Case) -> _Entry:
    """Compare the result of one call with the expected one, element by element."""
    error = case.error(candidate.array(candidate.run()))
    candidate.require()
    result = Result(case.layer.name, candidate.name, candidate.group, case.result_bytes)
    result.error = error if isfinite(error) else None  # JSON has no infinity
    result.workspace_bytes = candidate.workspace_bytes
    result.verified = error <= case.tolerance
    if result.verified:
        return candidate, result
    result.reason = f"wrong: the error is {error:.2g}; rounding explains {case.tolerance:.2g}"
    result.fault = True
    return None, result


_Means = dict[str, dict[str, float | None]]


def _means(results: Sequence[Result], groups: Sequence[str]) -> _Means:
    """Return each candidate's geometric means: speed against each group, and efficiency."""
    means: _Means = {}
    for name in dict.fromkeys(r.candidate for r in results if r.best_seconds):
        rows = [r for r in results if r.candidate == name]
        means[name] = {group: _mean(r.speeds.get(group) for r in rows) for group in groups}
        means[name]["efficiency"] = _mean(r.efficiency for r in rows)
    return means


def _mean(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value]
    return geometric_mean(known) if known else None


def _table(
    results: Sequence[Result], groups: Sequence[str], means: _Means
) -> tuple[list[list[str]], list[str]]:
    """Return rows and headings; every result's row names its layer, so that `grep` finds it."""
    rows = []
    for r in results:
        times = [format_seconds(t) if t else "-" for t in (r.best_seconds, r.median_seconds)]
        size = memory.readable(r.result_bytes + (r.workspace_bytes or 0))
        error = "-" if r.error is None else f"{r.error:.0e}"
        wrong = "WRONG" if r.reason.startswith("wrong") else "FAILED"
        rows.append([
            r.layer, r.candidate, *times, f"{r.gflops:.1f}" if r.gflops else "-",
            _ratio(r.efficiency), *(_ratio(r.speeds.get(group)) for group in groups),
            size if r.best_seconds else "-", wrong if r.fault else error,
        ])  # fmt: skip
    for name, mean in means.items():
        ratios = [_ratio(mean[column]) for column in ("efficiency", *groups)]
        rows.append(["geometric mean", name, "", "", "", *ratios, "", ""])
    speeds = [f"x {_SHORT.get(group, group)}" for group in groups]
    headings = ["layer", "by", "best", "median", "GFLOP/s", "efficiency"]
    return rows, [*headings, *speeds, "memory", "error"]


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
