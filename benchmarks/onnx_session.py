"""`upconv.onnx.Session` compared with ONNX Runtime's own session, model by model.

    pip install transformers monai onnxscript
    python benchmarks/onnx_session.py --models DIR       # all models; names and --threads choose

The models are those of `onnx_zoo`, kept in DIR (default: a temporary folder). A session's own
measurements are not used: it and ONNX Runtime's InferenceSession, on as many threads, take turns
here, and the best round counts. "share" is the part of the original's time that ONNX Runtime's
profiler finds in ConvTranspose; the mean covers the models with 10 % or more. "error" is the
largest difference of the results, over the largest value.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import onnxruntime
from onnx_layers import Arrays, largest_error
from onnx_zoo import ZOO, example, stored

from upconv.onnx import Session
from upconv.onnx.session.operators import Kernel
from upconv.testing import require_engine
from upconv.timing import rest

SHARE = 0.1
CALLS = 3


def options(threads: int) -> onnxruntime.SessionOptions:
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads, made.inter_op_num_threads = threads, 1
    return made


def share(path: Path, feeds: Arrays, threads: int) -> float:
    """Return the part of the time that ONNX Runtime spends in ConvTranspose."""
    with tempfile.TemporaryDirectory() as folder:
        profiling = options(threads)
        profiling.enable_profiling = True
        profiling.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(path, profiling)
        for _ in range(4):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    times: dict[tuple[str, str], list[int]] = {}
    for event in events:
        if event["name"].endswith("_kernel_time"):
            key = event["name"], event["args"]["op_name"]
            times.setdefault(key, []).append(event["dur"])
    best = {key: min(durations) for key, durations in times.items()}
    part = sum(each for (_, kind), each in best.items() if kind == "ConvTranspose")
    return part / sum(best.values())


def interleaved(calls: list[Callable[[], object]], seconds: float) -> list[list[float]]:
    """Return milliseconds of the best call in each turn; each round has another order."""
    found: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    end, i = time.perf_counter() + seconds, 0
    while i < 5 or time.perf_counter() < end:
        for j in range(len(calls)):
            at, best = (i + j) % len(calls), math.inf
            rest()
            for _ in range(CALLS):
                start = time.perf_counter()
                calls[at]()
                best = min(best, (time.perf_counter() - start) * 1e3)
            found[at].append(best)
        i += 1
    return found


def measured(name: str, path: Path, threads: int, seconds: float, verbose: bool) -> list[object]:
    """Return the cells of a row."""
    feeds = example(name)
    plain = onnxruntime.InferenceSession(path, options(threads))
    start = time.perf_counter()
    session = Session(path, threads=threads, feeds=feeds)
    took = time.perf_counter() - start
    if verbose:
        print(session.report(), file=sys.stderr, flush=True)
    error = largest_error(session.run(None, feeds), plain.run(None, feeds))
    calls = [lambda: plain.run(None, feeds), lambda: session.run(None, feeds)]
    before, after = interleaved(calls, seconds)
    require_layers(name, session, feeds)
    rows = session.report().rows
    ours = [row.layers for row in rows if row.upconv]
    gain = min(before) / min(after)
    typical = statistics.median(before) / statistics.median(after)
    return [
        name,
        threads,
        f"{share(path, feeds, threads):.0%}",
        f"{min(before):.2f}",
        f"{min(after):.2f}",
        f"{gain:.2f}",
        f"{typical:.2f}",
        f"{sum(ours)} of {sum(row.layers for row in rows)} in {len(ours)}",
        f"{error:.0e}",
        f"{took:.0f}",
    ]


def require_layers(name: str, session: Session, feeds: Arrays) -> None:
    """Raise `EngineError` unless upconv computes all layers that the report says it computes."""
    compute = Kernel.compute
    with mock.patch.object(Kernel, "compute", autospec=True, side_effect=compute) as computed:
        session.run(None, feeds)
    names = {call.args[0].name for call in computed.call_args_list}
    for layer in session.report().rows:
        engine = "upconv" if layer.name in names else "onnxruntime"
        require_engine(f"{name}, {layer.name}", "upconv" if layer.upconv else engine, engine)


HEADS = (
    *("model", "threads", "share", "ms ONNX Runtime", "ms Session", "times as fast", "by medians"),
    *("layers by upconv, in parts", "error", "s to measure"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ZOO)}")
    parser.add_argument("--models", type=Path, help="folder for their files")
    parser.add_argument("--threads", type=int, nargs="*", default=[2, 1])
    parser.add_argument("--seconds", type=float, default=6.0, help="time for one row")
    parser.add_argument("--verbose", action="store_true", help="print each session's report")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(ZOO):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(ZOO)}")
    print(f"| {' | '.join(HEADS)} |\n|{' --- |' * len(HEADS)}", flush=True)
    gains: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.models or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for threads in arguments.threads:
            for name in arguments.names or ZOO:
                try:
                    path = stored(name, folder)
                except ImportError as missing:
                    print(f"{name} is left out: {missing}", file=sys.stderr)
                    continue
                row = measured(name, path, threads, arguments.seconds, arguments.verbose)
                print(f"| {' | '.join(map(str, row))} |", flush=True)
                if float(str(row[2]).rstrip("%")) >= 100 * SHARE:
                    gains.setdefault(threads, []).append(float(str(row[5])))
    for threads, some in gains.items():
        mean = math.exp(sum(map(math.log, some)) / len(some))
        print(f"\n{threads} threads: {mean:.2f} times as fast, geometric mean of {len(some)}.")


if __name__ == "__main__":
    main()
