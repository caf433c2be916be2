"""ONNX Runtime on the processor.

One inter-op thread, as many intra-op threads as asked for, which spin as its default has it; its
log is silent. `optimisation` says how far it may rewrite the graph.

bfloat16 and the 8-bit floats, for which it knows no NumPy type, go in and out as their bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from ...arrays import Array
from ...errors import EngineRefusal
from .base import REFUSED, Session, lacking, reported
from .protos import Handed, handed
from .values import Interface, code_of, dtype_of_code

if TYPE_CHECKING:
    import onnxruntime

_NAME = "onnxruntime"
_FATAL = 4  # the least that it can be told to log


class Optimisation(Enum):
    """How far the graph is rewritten: the names of ONNX Runtime's levels."""

    NONE = "ORT_DISABLE_ALL"
    BASIC = "ORT_ENABLE_BASIC"
    EXTENDED = "ORT_ENABLE_EXTENDED"
    ALL = "ORT_ENABLE_ALL"


@dataclass(frozen=True, slots=True)
class OnnxRuntime:
    """The runtime "onnxruntime"."""

    optimisation: Optimisation = Optimisation.ALL
    name: str = _NAME

    def missing(self) -> str | None:
        """None where onnxruntime can be imported; else why not, and the command."""
        return lacking("onnxruntime", "pip install 'upconv[onnx]'")

    def session(self, model: onnx.ModelProto, *, threads: int) -> Session:
        """The model on the CPU provider; see `base.Runtime`."""
        interface, given = Interface.of(model), handed(_harmless(model))
        try:
            with reported(_NAME, *REFUSED):
                return _OnnxRuntimeSession(interface, given, self._made(given, threads))
        except BaseException:
            given.close()
            raise

    def _made(self, given: Handed, threads: int) -> onnxruntime.InferenceSession:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL
        levels = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = getattr(levels, self.optimisation.value)
        source = given.model if isinstance(given.model, bytes) else str(given.model)
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _harmless(model: onnx.ModelProto) -> onnx.ModelProto:
    """Refuse a model at which ONNX Runtime's shape inference would end the process."""
    from ..hazards import fatal, harmless  # they need this package

    reason = fatal(model)
    if reason is not None:
        raise EngineRefusal(f"{_NAME} does not take the model: {reason}")
    return harmless(model)


class _OnnxRuntimeSession(Session):
    def __init__(self, interface: Interface, given: Handed, session: Any) -> None:
        super().__init__(_NAME, interface)
        self._given, self._session = given, session
        self._names = [value.name for value in self.outputs]

    def _run(self, feeds: dict[str, Array]) -> dict[str, Any]:
        values = {name: _value(array) for name, array in feeds.items()}
        found = self._session.run_with_ort_values(self._names, values)
        made = dict(zip(self._names, found, strict=True))
        others = [name for name, value in made.items() if not value.is_tensor()]
        # what is in a sequence or a map, only this call tells
        rest = self._session.run(others, values) if others else []
        told = dict(zip(others, rest, strict=True))
        return {n: told[n] if n in told else _array(value) for n, value in made.items()}

    def _bind(self, feeds: dict[str, Array]) -> Callable[[], None]:
        """Outputs are bound to arrays of the shapes that a first run has.

        Where the model is wrong about a shape, which ONNX Runtime holds against arrays alone, it
        makes the output anew each time.
        """
        session, binding = self._session, self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, _value(array))
        for name in self._names:
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        found = binding.get_outputs()
        loose = []
        for name, value, told in zip(self._names, found, session.get_outputs(), strict=True):
            if value.is_tensor() and _fits(value.shape(), told.shape):
                binding.bind_ortvalue_output(name, value)
            else:
                loose.append(name)

        def again() -> None:
            for name in loose:  # what it made last is bound otherwise
                binding.bind_output(name, "cpu")
            session.run_with_iobinding(binding)

        return again

    def _release(self) -> None:
        self._session = None
        self._given.close()


def _fits(shape: Sequence[int], told: Sequence[Any]) -> bool:
    """Whether a shape is what ONNX Runtime expects; what is open there is no integer."""
    pairs = zip(shape, told, strict=False)
    return len(shape) == len(told) and all(not isinstance(n, int) or m == n for m, n in pairs)


def _value(array: Array) -> Any:
    """An array as ONNX Runtime's own value, sharing its memory."""
    import onnxruntime

    make = onnxruntime.OrtValue
    if array.dtype.isbuiltin == 1:  # 2 is ml_dtypes's
        return make.ortvalue_from_numpy(array)
    plain = array.view(np.dtype(f"u{array.dtype.itemsize}"))
    return make.ortvalue_from_numpy_with_onnx_type(plain, code_of(array.dtype))


def _array(value: Any) -> Any:
    """ONNX Runtime's tensor as an array of its own memory."""
    dtype = dtype_of_code(value.element_type())
    if dtype is None or dtype.isbuiltin == 1:
        return value.numpy()
    array = np.empty(value.shape(), dtype)  # .numpy() knows no such type: copy the bytes
    ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array
