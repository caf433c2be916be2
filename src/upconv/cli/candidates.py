"""Who computes a case: upconv's engines by name, and what users would pick instead, at their best.

A peer is imported inside its function and nowhere else. It gets the same arrays, keeps its weights
prepared outside the timing, and writes into a buffer where its interface lets it: ONNX Runtime and
OpenVINO do, PyTorch allocates. PyTorch runs in both memory orders, under inference_mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from .. import testing
from ..arrays import Array
from ..engines import load
from ..errors import EngineRefusal
from ..execution import PreparedCall
from ..primitives import shared_cache
from ..problem import Direction, DType, Problem
from ..signatures import Signature
from .layers import Layer


@dataclass(frozen=True)
class Case:
    """A layer in one direction, with data in NCX and IOX from a fixed seed."""

    layer: Layer
    direction: Direction
    dtype: DType

    @cached_property
    def problem(self) -> Problem:
        """The problem to solve."""
        problem = self.layer.problem(self.dtype)
        forward = self.direction is Direction.FORWARD
        return problem if forward else problem.replace(direction=self.direction, bias=False)

    @property
    def flop(self) -> int:
        """Floating-point operations of the direct algorithm."""
        return 2 * self.problem.multiply_adds

    @property
    def result_bytes(self) -> int:
        """Bytes of the result."""
        return prod(self.problem.result_shape) * self.dtype.itemsize

    @cached_property
    def operands(self) -> testing.Operands:
        """The operands; `before` is NaN, so that nothing left unwritten looks right."""
        given = testing.operands(self.problem, seed=7)
        given.before.fill(np.nan)
        return given

    @cached_property
    def expected(self) -> Array:
        """The result in float64, by the reference engine."""
        given, wide = self.operands, self.problem.replace(dtype=DType.FLOAT64)
        arrays = (given.a, given.b, given.bias, None, given.before)
        exact = (None if array is None else array.astype(np.float64) for array in arrays)
        return testing.compute(load("reference"), wide, testing.Operands(*exact))  # type: ignore[arg-type]

    @property
    def tolerance(self) -> float:
        """The largest `error` that rounding explains: summing, and storing the result."""
        return testing.tolerance(self.problem) + self.problem.dtype.epsilon

    def error(self, result: Array) -> float:
        """The largest |result - expected| over the largest |expected|; inf for another shape."""
        if result.shape != self.expected.shape:
            return float("inf")
        largest = float(np.abs(self.expected).max()) or 1.0
        worst = float(np.abs(result.astype(np.float64) - self.expected).max()) / largest
        return worst if np.isfinite(worst) else float("inf")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of computing a case: `run` does it once, `result` gives the NumPy array.

    `group` is the library, of which there may be several settings; `workspace_bytes` is None where
    it cannot be asked.
    """

    name: str
    group: str
    run: Callable[[], object]
    result: Callable[[], Array]
    workspace_bytes: int | None = None


def engine(name: str, case: Case, threads: int) -> Candidate:
    """An engine of upconv. The weight of a result is packed beforehand, that of a gradient in every
    call, as training changes it.

    Raises `EngineRefusal` where the engine does not do the case.
    """
    chosen, given, result = load(name), case.operands, case.operands.before.copy()
    refusal = chosen.refuses(case.problem)
    if refusal is not None:
        raise EngineRefusal(refusal)
    call = PreparedCall(Signature.whole(case.problem), chosen, threads, tune=False)
    packed = call.pack(given.b) if case.direction is Direction.FORWARD else None
    workspace = shared_cache().entry(case.problem, chosen, threads).primitive.workspace_bytes

    def run() -> None:
        if packed is not None:
            packed.run(result, given.a, given.bias)
        else:
            call.run(result, given.a, given.b)

    return Candidate(name, name, run, lambda: result, workspace)


def _torch(case: Case, threads: int) -> Sequence[Candidate]:
    import torch

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    made = [_torch_candidate("torch", case, torch.contiguous_format)]
    last = {2: torch.channels_last, 3: torch.channels_last_3d}.get(len(case.layer.size))
    if last is not None:
        made.append(_torch_candidate("torch-last", case, last))
    return made


def _torch_candidate(name: str, case: Case, order: Any) -> Candidate:
    import torch

    def tensor(array: Array) -> Any:
        if case.dtype is DType.BFLOAT16:  # a type PyTorch does not take from NumPy
            return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
        return torch.from_numpy(array)

    layer, given, box = case.layer, case.operands, {}
    a, b = (tensor(array).contiguous(memory_format=order) for array in (given.a, given.b))
    if given.bias is not None:
        bias = tensor(given.bias)
        function = getattr(torch.nn.functional, f"conv_transpose{len(layer.size)}d")

        def run() -> None:
            box["y"] = function(a, b, bias, layer.s, layer.p, layer.op, layer.g, layer.d)
    else:
        at = int(case.direction is Direction.WEIGHT_GRAD)
        wanted = torch.empty(case.problem.result_shape, dtype=a.dtype)  # whose shape alone counts
        x, w = (b, wanted) if at else (wanted.contiguous(memory_format=order), b)
        sizes = (layer.s, layer.p, layer.d, True, layer.op, layer.g, [at == 0, at == 1, False])

        def run() -> None:
            box["y"] = torch.ops.aten.convolution_backward(a, x, w, [layer.oc], *sizes)[at]

    def result() -> Array:
        y = box["y"].float() if case.dtype is DType.BFLOAT16 else box["y"]
        found: Array = y.numpy()
        return found

    return Candidate(name, "torch", torch.inference_mode()(run), result)


def _onnxruntime(case: Case, threads: int) -> Sequence[Candidate]:
    import onnxruntime

    _require_forward("ONNX Runtime", case)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        _onnx_model(case), options, providers=["CPUExecutionProvider"]
    )
    y, binding = case.operands.before.copy(), session.io_binding()
    binding.bind_cpu_input("x", case.operands.a)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    run = lambda: session.run_with_iobinding(binding)  # noqa: E731
    return [Candidate("onnxruntime", "onnxruntime", run, lambda: y)]


def _onnx_model(case: Case) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    layer, given = case.layer, case.operands
    node = helper.make_node(
        "ConvTranspose", ["x", "w", "b"], ["y"], kernel_shape=layer.k, strides=layer.s,
        pads=[*layer.p, *layer.p], output_padding=layer.op, dilations=layer.d, group=layer.g,
    )  # fmt: skip
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", layer.x_shape), ("y", case.problem.y_shape))
    )
    constants = [numpy_helper.from_array(given.b, "w"), numpy_helper.from_array(given.bias, "b")]
    graph = helper.make_graph([node], "layer", [x], [y], constants)
    opsets = [helper.make_opsetid("", 17)]
    model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return model


def _openvino(case: Case, threads: int) -> Sequence[Candidate]:
    import openvino

    _require_forward("OpenVINO", case)
    setting = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY",
               "INFERENCE_PRECISION_HINT": "f32"}  # fmt: skip
    core = openvino.Core()
    model = core.compile_model(core.read_model(_onnx_model(case)), "CPU", setting)
    request, out = model.create_infer_request(), case.operands.before.copy()
    request.set_input_tensor(openvino.Tensor(case.operands.a, shared_memory=True))
    request.set_output_tensor(openvino.Tensor(out, shared_memory=True))
    # without share_outputs every output is copied once more
    run = lambda: request.infer(share_outputs=True)  # noqa: E731
    return [Candidate("openvino", "openvino", run, lambda: out)]


def _require_forward(who: str, case: Case) -> None:
    if case.direction is not Direction.FORWARD:
        raise EngineRefusal(f"{who} has no gradients")
    if case.dtype is not DType.FLOAT32:
        raise EngineRefusal(f"{who} is measured in float32 only")


PEERS: dict[str, Callable[[Case, int], Sequence[Candidate]]] = {
    "torch": _torch,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}
"""Name, which is the distribution's -> its candidates for a case and a number of threads."""
