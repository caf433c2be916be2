"""ONNX Runtime, in the worker's process.

One inter-op thread, as many intra-op threads as asked for, which spin as its default has it; its
log is silent. bfloat16 and the 8-bit floats, for which it knows no NumPy type, go as their bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from ...arrays import Array
from ...errors import EngineRefusal
from .timing import Call, Feeds

if TYPE_CHECKING:
    from . import Runtime


def options(threads: int) -> Any:
    """ONNX Runtime's options for one session on so many threads, which logs nothing."""
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads, made.inter_op_num_threads = threads, 1
    made.log_severity_level = 4  # only what is fatal
    return made


class OnnxRuntime:
    """A model in a session of ONNX Runtime; see `host.Backend`."""

    def __init__(self, model: bytes | str, runtime: Runtime, outputs: Sequence[str]) -> None:
        from . import PROVIDERS

        provider, _ = PROVIDERS[runtime.provider]
        settings = {"device_id": runtime.device} if runtime.device else {}
        self._session = onnxruntime.InferenceSession(
            model, options(runtime.threads or 1), providers=[(provider, settings)]
        )
        self._names = list(outputs)
        took = self._session.get_providers()[0]
        if took != provider:  # it takes the CPU without a word where a driver is missing
            raise EngineRefusal(f"its {runtime.provider} does not work here; {took} took the model")

    def run(self, feeds: Feeds) -> list[Any]:
        """The outputs; see `host.Backend`."""
        values = {name: _value(array) for name, array in feeds.items()}
        made = self._session.run_with_ort_values(self._names, values)
        if all(value.is_tensor() for value in made):
            return [_array(value) for value in made]
        told = self._session.run(self._names, values)  # what is in a sequence, only this call tells
        return [_array(m) if m.is_tensor() else t for m, t in zip(made, told, strict=True)]

    def bind(self, feeds: Feeds) -> Call:
        """Outputs go where those of the first run lie, unless the model is wrong about a shape."""
        session, binding = self._session, self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, _value(array))
        for name in self._names:
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        misdeclared = []
        for name, value, told in zip(
            self._names, binding.get_outputs(), session.get_outputs(), strict=True
        ):
            if value.is_tensor() and _as_told(value.shape(), told.shape):
                binding.bind_ortvalue_output(name, value)
            else:
                misdeclared.append(name)

        def again() -> None:
            for name in misdeclared:  # what it made last is bound otherwise
                binding.bind_output(name, "cpu")
            session.run_with_iobinding(binding)

        return again


def _as_told(shape: Sequence[int], told: Sequence[Any]) -> bool:
    """Whether a shape is what ONNX Runtime expects; what is open there is no integer."""
    pairs = zip(shape, told, strict=False)
    return len(shape) == len(told) and all(not isinstance(n, int) or m == n for m, n in pairs)


def _value(array: Array) -> Any:
    """An array as ONNX Runtime's own value, sharing its memory."""
    make = onnxruntime.OrtValue
    if array.dtype.kind != "V":  # which ml_dtypes's have
        return make.ortvalue_from_numpy(array)
    plain = array.view(np.dtype(f"u{array.dtype.itemsize}"))
    return make.ortvalue_from_numpy_with_onnx_type(plain, int(ir.DataType.from_numpy(array.dtype)))


def _array(value: Any) -> Any:
    """ONNX Runtime's tensor as an array."""
    code = ir.DataType(value.element_type())
    dtype = None if code is ir.DataType.STRING else code.numpy()
    if dtype is None or np.dtype(dtype).kind != "V":
        return value.numpy()
    array = np.empty(value.shape(), dtype)  # .numpy() knows no such type: copy the bytes
    ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array
