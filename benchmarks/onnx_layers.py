"""Timing of an ONNX model's deconvolutions, each in a separate model, in several runtimes.

`deconvolutions` runs a model once and records the inputs of every ConvTranspose, so that no shape
must be inferred; `alone` makes a model of one layer. `runner` prepares a model in a runtime, and
`best_milliseconds` times several in turn. This file judges upconv and so uses only its `rest`.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime

from upconv.timing import rest

Arrays = dict[str, np.ndarray]
Runner = Callable[[], list[np.ndarray]]


@dataclass(frozen=True)
class Layer:
    """A ConvTranspose node, and the values of X, W and B when the model ran."""

    node: onnx.NodeProto
    inputs: tuple[np.ndarray, ...]

    def __str__(self) -> str:
        words = {a.name: onnx.helper.get_attribute_value(a) for a in self.node.attribute}
        groups = words.pop("group", 1)
        x, w, *bias = (array.shape for array in self.inputs)
        sizes = "x".join(map(str, x))
        extra = [f"{name} {value}" for name, value in sorted(words.items()) if _says(name, value)]
        extra.append("bias" if bias else "no bias")
        return f"c{w[0]}->{w[1] * groups} of {sizes}, groups {groups}, {', '.join(extra)}"

    def alone(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return a model of this layer alone: X is its input, weights and bias are constants."""
        names = ("X", "W", "B")[: len(self.inputs)]
        node = onnx.helper.make_node("ConvTranspose", names, ["Y"])
        node.attribute.extend(self.node.attribute)
        x, *constants = self.inputs
        kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
        graph = onnx.helper.make_graph(
            [node],
            "layer",
            [onnx.helper.make_tensor_value_info("X", kind, x.shape)],
            [onnx.helper.make_tensor_value_info("Y", kind, [None] * x.ndim)],
            [
                onnx.numpy_helper.from_array(array, name)
                for array, name in zip(constants, names[1:], strict=True)
            ],
        )
        versions = {"opset_imports": model.opset_import, "ir_version": model.ir_version}
        return onnx.helper.make_model(graph, **versions)


def _says(name: str, value: object) -> bool:
    """Return whether an attribute differs from its default."""
    if name == "auto_pad":
        return value != b"NOTSET"
    return value != [int(name in ("strides", "dilations"))] * len(value)


def deconvolutions(model: onnx.ModelProto, inputs: Arrays) -> list[Layer]:
    """Return every ConvTranspose of a model's main graph, with its inputs when the model runs."""
    nodes = [node for node in model.graph.node if node.op_type == "ConvTranspose"]
    names = list(dict.fromkeys(name for node in nodes for name in node.input if name))
    known = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer} | inputs
    if asked := [name for name in names if name not in known]:
        opened = onnx.ModelProto()
        opened.CopyFrom(model)
        # A name that is already an output must not be declared twice.
        there = {value.name for value in model.graph.output}
        extra = [onnx.ValueInfoProto(name=name) for name in asked if name not in there]
        opened.graph.output.extend(extra)
        known |= zip(asked, _session(opened, threads=2).run(asked, inputs), strict=True)
    return [Layer(node, tuple(known[name] for name in node.input if name)) for node in nodes]


def _session(model: onnx.ModelProto, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)


def _in_onnxruntime(model: onnx.ModelProto, inputs: Arrays, threads: int) -> Runner:
    session = _session(model, threads)
    return lambda: session.run(None, inputs)


def _in_openvino_f32(model: onnx.ModelProto, inputs: Arrays, threads: int) -> Runner:
    # The default is bfloat16 where the processor supports it, with that format's errors.
    return _in_openvino(model, inputs, threads, INFERENCE_PRECISION_HINT="f32")


def _in_openvino(model: onnx.ModelProto, inputs: Arrays, threads: int, **more: object) -> Runner:
    import openvino

    core = openvino.Core()
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        **more,
    }
    read = core.read_model(io.BytesIO(model.SerializeToString()))
    request = core.compile_model(read, "CPU", settings).create_infer_request()
    return lambda: [np.asarray(value) for value in request.infer(inputs).values()]


RUNTIMES: dict[str, Callable[[onnx.ModelProto, Arrays, int], Runner]] = {
    "onnxruntime": _in_onnxruntime,
    "openvino": _in_openvino,
    "openvino:f32": _in_openvino_f32,
}


def runner(target: str, model: onnx.ModelProto, inputs: Arrays, threads: int) -> Runner:
    """Prepare a model in a runtime: each call computes it once, and returns its results."""
    return RUNTIMES[target](model, inputs, threads)


def best_milliseconds(runners: Sequence[Runner], rounds: int, seconds: float) -> list[float]:
    """Return each runner's shortest time over several rounds, in which all take turns.

    No round begins after `seconds`, the total for all runners, except the first three.
    """
    best, begin = [math.inf] * len(runners), time.perf_counter()
    for i in range(rounds):
        if i > 2 and time.perf_counter() - begin > seconds:
            break
        for index, run in enumerate(runners):
            rest()  # until the others' threads are asleep
            run()  # a warm-up: its threads wake up
            start = time.perf_counter()
            run()
            best[index] = min(best[index], (time.perf_counter() - start) * 1e3)
    return best


def largest_error(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Return the largest difference of any result, over that result's largest value."""
    errors = []
    for result, other in zip(results, expected, strict=True):
        if result.shape != other.shape:
            return math.inf
        errors.append(float(np.abs(result - other).max() / max(1e-30, np.abs(other).max())))
    return max(errors)
