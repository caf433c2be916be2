"""`BACKENDS`: a runtime's name -> the class that runs a model in it, in this process.

The reference is ONNX's evaluator with some of upconv's operators (`operators`): slow but correct.
With precision f64 it computes the whole model in float64, which replaces every narrower float
(except 8-bit storage) in

1. initializers and tensors in attributes (Constant, ConstantOfShape);
2. a Constant's plain numbers, and ConstantOfShape without a value, which are float32 by definition;
3. attributes that name an element type: Cast's `to`, `dtype`, `output_dtype` and the like.

A few operators (GridSample, DynamicQuantizeLinear) use float32 internally. If an output's type
shows this, the output is not compared with float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from ...arrays import Array
from ...errors import EngineRefusal
from ...timing import Call
from .runtime import PROVIDERS, Runtime

Feeds = dict[str, Array]


class Backend(ABC):
    """A model in a runtime, in this process."""

    @abstractmethod
    def __init__(self, model: bytes | str, runtime: Runtime, outputs: Sequence[str]) -> None:
        """Open a model from its bytes or its path."""

    @abstractmethod
    def run(self, feeds: Feeds) -> list[Any]:
        """Run the model; return the outputs, which the caller owns, in the model's order."""

    def bind(self, feeds: Feeds) -> Call:
        """Run the model once on `feeds`, and return a call that does so again each time."""
        self.run(feeds)
        return lambda: self.run(feeds)


class _OnnxRuntime(Backend):
    """A model in an ONNX Runtime session, whose threads spin by default."""

    def __init__(self, model: bytes | str, runtime: Runtime, outputs: Sequence[str]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = runtime.threads or 1, 1
        options.log_severity_level = 4  # log only fatal errors
        provider, _ = PROVIDERS[runtime.provider]
        settings = {"device_id": runtime.device} if runtime.device else {}
        self._session = onnxruntime.InferenceSession(
            model, options, providers=[(provider, settings)]
        )
        self._names = list(outputs)
        actual = self._session.get_providers()[0]
        if actual != provider:  # ONNX Runtime silently uses the CPU if a driver is missing
            raise EngineRefusal(
                f"its {runtime.provider} does not work here; {actual} would run the model"
            )

    def run(self, feeds: Feeds) -> list[Any]:
        return list(self._session.run(self._names, feeds))

    def bind(self, feeds: Feeds) -> Call:
        """Bind the outputs anew for each call, since a model may declare wrong shapes."""
        session, binding = self._session, self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)

        def call() -> None:
            for name in self._names:
                binding.bind_output(name, "cpu")
            session.run_with_iobinding(binding)

        call()
        return call


class _OpenVino(Backend):
    """A model compiled by OpenVINO for successive calls (the hint LATENCY).

    OpenVINO computes float64 in float32.
    """

    def __init__(self, model: bytes | str, runtime: Runtime, outputs: Sequence[str]) -> None:
        import openvino

        core, device = openvino.Core(), runtime.device or "CPU"
        here = core.available_devices
        if device not in here and device not in {name.partition(".")[0] for name in here}:
            raise EngineRefusal(
                f"it has no device {device} here (it has {', '.join(here)}): install its driver"
            )
        setting: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
        if device == "CPU":
            setting["INFERENCE_NUM_THREADS"] = runtime.threads
        if runtime.precision:
            setting["INFERENCE_PRECISION_HINT"] = runtime.precision
        self._compiled = core.compile_model(core.read_model(model), device, setting)
        self._ports = {name: port for port in self._compiled.inputs for name in port.names}
        self._outputs = len(outputs)

    def run(self, feeds: Feeds) -> list[Any]:
        """Return the outputs by index, since one that only renames another may lose its name."""
        request = self._request(feeds)
        return [_array(request.get_output_tensor(i)).copy() for i in range(self._outputs)]

    def bind(self, feeds: Feeds) -> Call:
        request = self._request(feeds)
        return lambda: request.infer(share_outputs=True)

    def _request(self, feeds: Feeds) -> Any:
        """Return a request that has already computed the outputs for these inputs."""
        request = self._compiled.create_infer_request()
        for name, array in feeds.items():
            if name in self._ports:
                request.set_tensor(self._ports[name], _tensor(array))
        request.infer(share_outputs=True)  # otherwise every output is copied
        return request


def _tensor(array: Array) -> Any:
    """Return an array as an OpenVINO tensor that shares its memory."""
    import openvino

    shared = array if array.flags.writeable else array.copy()  # it refuses read-only arrays
    if array.dtype != ml_dtypes.bfloat16:
        return openvino.Tensor(shared, shared_memory=True)
    return openvino.Tensor(
        shared.view(np.uint16), openvino.Shape([*array.shape]), openvino.Type.bf16
    )


def _array(tensor: Any) -> Array:
    """Return an OpenVINO tensor as an array; OpenVINO presents bfloat16 as float16."""
    data: Array = tensor.data
    is_bfloat16 = tensor.element_type.get_type_name() == "bf16"
    return data.view(ml_dtypes.bfloat16) if is_bfloat16 else data


_NARROW = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_TYPES = ("to", "dtype", "output_dtype", "output_datatype", "softmax_precision")


class _Reference(Backend):
    """A model in ONNX's evaluator."""

    def __init__(self, model: bytes | str, runtime: Runtime, outputs: Sequence[str]) -> None:
        from onnx.reference import ReferenceEvaluator

        from ..operators import evaluator_operators

        proto = onnx.load(model) if isinstance(model, str) else onnx.load_from_string(model)
        parsed = ir.from_proto(proto)
        if parsed.functions:  # `new_ops` does not apply inside functions
            InlinePass()(parsed)
        self._wide = runtime.precision == "f64"
        if self._wide:
            _to_float64(parsed)
        operators = evaluator_operators(runtime.rule, parsed.opset_imports.get("", 1))
        self._evaluator = ReferenceEvaluator(ir.to_proto(parsed), new_ops=operators)
        self._names = list(outputs)

    def run(self, feeds: Feeds) -> list[Any]:
        """Return copies of the outputs: an Identity returns the caller's own array, or a weight."""
        arrays = {n: _wide_array(a) for n, a in feeds.items()} if self._wide else feeds
        with np.errstate(all="ignore"):  # a model may compute infinities in every runtime
            outputs = self._evaluator.run(self._names, arrays)
        return [np.copy(value) if isinstance(value, np.ndarray) else value for value in outputs]


def _to_float64(model: ir.Model) -> None:
    for graph in model.graphs():
        for node in graph:
            _widen_node(node)
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _wide_tensor(value.const_value)


def _wide_array(array: Array) -> Array:
    narrow = array.dtype.name in ("float32", "float16", "bfloat16")
    return array.astype(np.float64) if narrow else array


def _wide_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if tensor.dtype not in _NARROW:
        return tensor
    return ir.tensor(tensor.numpy().astype(np.float64), name=tensor.name)


def _widen_node(node: ir.Node) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.type is ir.AttributeType.TENSOR:
            node.attributes[name] = ir.AttrTensor(name, _wide_tensor(attribute.as_tensor()))
        elif name in _TYPES and attribute.value in _NARROW:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.DOUBLE))
        elif name in ("value_float", "value_floats") and node.op_type == "Constant":
            del node.attributes[name]
            numbers = np.asarray(attribute.value, np.float64)
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(numbers))
    if not node.attributes and node.op_type == "ConstantOfShape":
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.zeros(1)))
    elif not node.attributes and node.op_type == "EyeLike":
        node.attributes["dtype"] = ir.AttrInt64("dtype", int(ir.DataType.DOUBLE))


class _Upconv(Backend):
    """A model in an `upconv.onnx.Session`, where upconv computes all parts."""

    def __init__(self, model: bytes | str, runtime: Runtime, outputs: Sequence[str]) -> None:
        from ..session import Session

        self._session = Session(model, threads=runtime.threads, measure=False)
        self._names = list(outputs)

    def run(self, feeds: Feeds) -> list[Any]:
        return self._session.run(self._names, feeds)


BACKENDS: dict[str, type[Backend]] = {
    "onnxruntime": _OnnxRuntime,
    "openvino": _OpenVino,
    "reference": _Reference,
    "upconv": _Upconv,
}
