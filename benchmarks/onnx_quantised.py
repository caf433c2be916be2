"""Quantized models before and after their transposed convolutions are rewritten.

    python benchmarks/onnx_quantised.py [--models FSRCNN,U-Net] [--threads 2,1] [--seconds 2]

Five models of realistic size with random weights are quantized by ONNX Runtime's tools (uint8
activations, int8 weights, per channel where the tools can), rewritten (`sub_pixel`, and its form
`polyphase`), compared, and timed in turn in ONNX Runtime and OpenVINO. The fastest call counts,
since disturbances only make calls slower. ONNX Runtime's threads do not spin here: they would take
the cores from the next session.

`unequal` is the part of the output that differs from the original's in ONNX Runtime, and the
largest difference over the largest value.
"""

from __future__ import annotations

import argparse
import io
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.quantised_models import KINDS, feed, quantised
from upconv.onnx import rewrite

SIZES = {
    "FSRCNN": {"size": 128, "width": 56, "shrunk": 12},
    "U-Net": {"size": 128, "width": 32, "levels": 3},
    "DCGAN": {"width": 64, "batch": 4},
    "EnCodec": {"size": 50, "width": 512, "strides": (8, 5, 4, 2)},
    "depthwise": {"size": 64, "width": 64},
}
FORMS = ("sub_pixel", "sub_pixel:polyphase")
Runner = Callable[[], np.ndarray]


def in_onnxruntime(model: onnx.ModelProto, given: dict[str, np.ndarray], threads: int) -> Runner:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return lambda: session.run(None, given)[0]


def in_openvino(model: onnx.ModelProto, given: dict[str, np.ndarray], threads: int) -> Runner:
    import openvino

    core = openvino.Core()
    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    read = core.read_model(io.BytesIO(model.SerializeToString()))
    request = core.compile_model(read, "CPU", options).create_infer_request()
    return lambda: np.array(request.infer(given)[0])


RUNTIMES = {"ONNX Runtime": in_onnxruntime, "OpenVINO": in_openvino}


def fastest(runners: list[Runner], seconds: float) -> list[float]:
    """Return the milliseconds of each runner's fastest call; runners take turns."""
    for run in runners:
        run()
    best = [np.inf] * len(runners)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, run in enumerate(runners):
            start = time.perf_counter()
            run()
            best[i] = min(best[i], time.perf_counter() - start)
    return [1e3 * one for one in best]


def difference(wanted: np.ndarray, result: np.ndarray) -> str:
    """Return the part of the output that differs, and the largest relative difference."""
    error = np.abs(wanted - result)
    largest = np.abs(wanted).max()
    return f"{100 * (error > 1e-6 * largest).mean():.2g} %, {100 * error.max() / largest:.2g} %"


def rows(kind: str, threads: list[int], seconds: float) -> list[str]:
    net = KINDS[kind](**SIZES[kind])
    original, given = quantised(net, per_channel=kind != "depthwise"), feed(net, 0)
    models = [original]
    for form in FORMS:
        models.append(rewrite(original, ["fold_slice", "replace_deconv", form]).proto())
        assert "ConvTranspose" not in [node.op_type for node in models[-1].graph.node]
    wanted, *found = (in_onnxruntime(model, given, 1)() for model in models)
    unequal = difference(wanted, found[0])
    print(f"{kind}: models are ready", file=sys.stderr, flush=True)
    made = []
    for runtime, runner in RUNTIMES.items():
        for count in threads:
            times = fastest([runner(model, given, count) for model in models], seconds)
            cells = [f"{one:.2f}" for one in times] + [f"{times[0] / min(times[1:]):.2f}"]
            made.append(f"| {kind} | {runtime} | {count} | {' | '.join(cells)} | {unequal} |")
    return made


def main() -> None:
    logging.disable(logging.WARNING)  # the quantizer advises optimizing the model first
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(KINDS))
    parser.add_argument("--threads", default="2,1")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    print("| model | runtime | threads | ms before | sub_pixel | polyphase | best | unequal |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in options.models.split(","):
        threads = [int(count) for count in options.threads.split(",")]
        for row in rows(kind, threads, options.seconds):
            print(row, flush=True)


if __name__ == "__main__":
    main()
