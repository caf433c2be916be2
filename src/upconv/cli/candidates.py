"""Who computes a case: upconv's engines by name, and what users would pick instead, at their best.

A peer is imported inside its function and nowhere else. It gets the same arrays, keeps its weights
prepared outside the timing, and writes into a buffer where its interface lets it: ONNX Runtime and
OpenVINO do, PyTorch allocates. PyTorch runs in both memory orders, under inference_mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import Array
from ..engines import load
from ..errors import EngineRefusal
from ..gradients import Gradients
from ..ops import conv_transpose_backward
from ..plans import plan
from ..primitives import shared_cache
from ..problem import Direction, DType
from .cases import NEEDS, Case


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
    """An engine of upconv, its weight packed beforehand and its result written into place.

    Raises `EngineRefusal` where the engine does not do the case.
    """
    chosen, result, layer = load(name), case.new_result(), case.layer
    refusal = chosen.refuses(case.problem)
    if refusal is not None:
        raise EngineRefusal(refusal)
    x, w, third = case.operands
    if case.forward:
        ready = plan(layer.x_shape, w, third, engine=chosen, threads=threads, **layer.keywords)
        workspace = ready.workspace_bytes

        def run() -> object:
            return ready(x, out=result)
    else:
        need, how = NEEDS[case.direction], {**layer.keywords, "engine": chosen}
        out = Gradients(**{need: result})
        with shared_cache().lease(case.problem, chosen, threads) as primitive:
            workspace = primitive.workspace_bytes

        def run() -> object:
            return conv_transpose_backward(third, x, w, needs=(need,), out=out, **how)

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

    layer, box = case.layer, {}
    x, w = (tensor(array).contiguous(memory_format=order) for array in case.operands[:2])
    if case.forward:
        b = tensor(case.operands[2])
        function = getattr(torch.nn.functional, f"conv_transpose{len(layer.size)}d")

        def run() -> None:
            box["y"] = function(x, w, b, layer.s, layer.p, layer.op, layer.g, layer.d)
    else:
        g = tensor(case.operands[2]).contiguous(memory_format=order)
        at = int(case.direction is Direction.WEIGHT_GRAD)
        mask = [at == 0, at == 1, False]
        sizes = (layer.s, layer.p, layer.d, True, layer.op, layer.g, mask)

        def run() -> None:
            box["y"] = torch.ops.aten.convolution_backward(g, x, w, [layer.oc], *sizes)[at]

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
    y, binding = case.new_result(), session.io_binding()
    binding.bind_cpu_input("x", case.operands[0])
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    run = lambda: session.run_with_iobinding(binding)  # noqa: E731
    return [Candidate("onnxruntime", "onnxruntime", run, lambda: y)]


def _onnx_model(case: Case) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    layer = case.layer
    node = helper.make_node(
        "ConvTranspose", ["x", "w", "b"], ["y"], kernel_shape=layer.k, strides=layer.s,
        pads=[*layer.p, *layer.p], output_padding=layer.op, dilations=layer.d, group=layer.g,
    )  # fmt: skip
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", layer.x_shape), ("y", case.problem.y_shape))
    )
    constants = [
        numpy_helper.from_array(a, n) for a, n in zip(case.operands[1:], "wb", strict=True)
    ]
    graph = helper.make_graph([node], "layer", [x], [y], constants)
    opsets = [helper.make_opsetid("", 17)]
    model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return model


def _openvino(case: Case, threads: int) -> Sequence[Candidate]:
    import openvino
    from openvino import opset13 as ops

    _require_forward("OpenVINO", case)
    layer, (array, w, b) = case.layer, case.operands
    x = ops.parameter(layer.x_shape, np.float32)
    build = ops.convolution_backprop_data
    if layer.g > 1:
        build = ops.group_convolution_backprop_data
        w = w.reshape(layer.g, layer.ic // layer.g, *w.shape[1:])
    strides, pads = list(layer.s), list(layer.p)
    more = {"dilations": layer.d, "output_padding": layer.op}
    y = build(x, ops.constant(w), strides, None, pads, pads, **more)
    y = ops.add(y, ops.constant(b.reshape(1, -1, *[1] * len(layer.size))))
    setting = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY",
               "INFERENCE_PRECISION_HINT": "f32"}  # fmt: skip
    model = openvino.Core().compile_model(openvino.Model([y], [x]), "CPU", setting)
    request, out = model.create_infer_request(), case.new_result()
    request.set_input_tensor(openvino.Tensor(array, shared_memory=True))
    request.set_output_tensor(openvino.Tensor(out, shared_memory=True))
    # without share_outputs every output is copied once more
    return [
        Candidate("openvino", "openvino", lambda: request.infer(share_outputs=True), lambda: out)
    ]


def _require_forward(who: str, case: Case) -> None:
    if not case.forward:
        raise EngineRefusal(f"{who} has no gradients")
    if case.dtype is not DType.FLOAT32:
        raise EngineRefusal(f"{who} is measured in float32 only")


PEERS: dict[str, Callable[[Case, int], Sequence[Candidate]]] = {
    "torch": _torch,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}
"""Name, which is the distribution's -> its candidates for a case and a number of threads."""
