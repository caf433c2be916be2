"""What users would pick instead of upconv, each at its best setting.

A peer is imported inside its function and nowhere else. It gets the same arrays, keeps its weights
prepared outside the timing, and writes into a buffer where its interface lets it: ONNX Runtime and
OpenVINO do, PyTorch allocates. PyTorch runs in both memory orders, under inference_mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arrays import Array
from ..errors import EngineRefusal
from ..problem import DType
from . import machine
from .cases import Case, Contender, Way


def installed() -> tuple[str, ...]:
    """The names of the peers that are installed here."""
    return tuple(name for name in PEERS if machine.version_of(name) is not None)


def contenders(name: str, case: Case, threads: int) -> Sequence[Contender]:
    """The peer's ways of doing the case; raises whatever the peer raises."""
    return PEERS[name](case, threads)


def _torch(case: Case, threads: int) -> Sequence[Contender]:
    import torch

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    rank = len(case.layer.size)
    made = [_torch_contender("torch", case, torch.contiguous_format)]
    if rank in (2, 3):
        form = torch.channels_last if rank == 2 else torch.channels_last_3d
        made.append(_torch_contender("torch-last", case, form))
    return made


def _torch_contender(name: str, case: Case, form: Any) -> Contender:
    import torch

    layer, box = case.layer, {}

    def tensor(array: Array) -> Any:
        if case.dtype is DType.BFLOAT16:  # a type PyTorch does not take from NumPy
            return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
        return torch.from_numpy(array)

    x, w = (tensor(a).contiguous(memory_format=form) for a in (case.x, case.w))
    if case.way is Way.FORWARD:
        b = tensor(case.b)
        function = getattr(torch.nn.functional, f"conv_transpose{len(layer.size)}d")

        def run() -> None:
            box["y"] = function(x, w, b, layer.s, layer.p, layer.op, layer.g, layer.d)
    else:
        g = tensor(case.g).contiguous(memory_format=form)
        at = {Way.DATA: 0, Way.WEIGHT: 1}[case.way]
        mask = [at == 0, at == 1, False]
        sizes = (layer.s, layer.p, layer.d, True, layer.op, layer.g, mask)
        backward = torch.ops.aten.convolution_backward

        def run() -> None:
            box["y"] = backward(g, x, w, [layer.oc], *sizes)[at]

    def result() -> Array:
        y = box["y"].float() if case.dtype is DType.BFLOAT16 else box["y"]
        found: Array = y.numpy()
        return found

    return Contender(name, "torch", torch.inference_mode()(run), result)


def _onnxruntime(case: Case, threads: int) -> Sequence[Contender]:
    import onnxruntime

    _forward_in_float32("ONNX Runtime", case)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        _onnx_model(case), options, providers=["CPUExecutionProvider"]
    )
    y, x = case.new_result(), case.x
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)

    def run() -> None:
        session.run_with_iobinding(binding)

    return [Contender("onnxruntime", "onnxruntime", run, lambda: y)]


def _onnx_model(case: Case) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    layer = case.layer
    node = helper.make_node(
        "ConvTranspose",
        ["x", "w", "b"],
        ["y"],
        kernel_shape=layer.k,
        strides=layer.s,
        pads=[*layer.p, *layer.p],
        output_padding=layer.op,
        dilations=layer.d,
        group=layer.g,
    )
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, layer.x_shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, case.problem.y_shape)],
        [numpy_helper.from_array(case.w, "w"), numpy_helper.from_array(case.b, "b")],
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=9)
    serialized: bytes = model.SerializeToString()
    return serialized


def _openvino(case: Case, threads: int) -> Sequence[Contender]:
    import openvino
    from openvino import opset13 as ops

    _forward_in_float32("OpenVINO", case)
    layer, rank = case.layer, len(case.layer.size)
    x = ops.parameter(layer.x_shape, np.float32)
    how = {"dilations": layer.d, "output_padding": layer.op}
    ends = (list(layer.s), list(layer.p), list(layer.p))
    if layer.g == 1:
        y = ops.convolution_backprop_data(
            x, ops.constant(case.w), *ends[:1], None, *ends[1:], **how
        )
    else:
        grouped = case.w.reshape(layer.g, layer.ic // layer.g, *case.w.shape[1:])
        y = ops.group_convolution_backprop_data(
            x, ops.constant(grouped), *ends[:1], None, *ends[1:], **how
        )
    y = ops.add(y, ops.constant(case.b.reshape(1, -1, *[1] * rank)))
    setting = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    model = openvino.Model([y], [x])
    request = openvino.Core().compile_model(model, "CPU", setting).create_infer_request()
    out = case.new_result()
    request.set_input_tensor(openvino.Tensor(case.x, shared_memory=True))
    request.set_output_tensor(openvino.Tensor(out, shared_memory=True))

    def run() -> None:
        request.infer(share_outputs=True)  # without it every output is copied once more

    return [Contender("openvino", "openvino", run, lambda: out)]


def _forward_in_float32(who: str, case: Case) -> None:
    if case.way is not Way.FORWARD:
        raise EngineRefusal(f"{who} has no gradients")
    if case.dtype is not DType.FLOAT32:
        raise EngineRefusal(f"{who} is measured in float32 only")


PEERS: dict[str, Callable[[Case, int], Sequence[Contender]]] = {
    "torch": _torch,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}
"""Name, which is the distribution's -> its contenders for a case and a number of threads."""
