"""OpenVINO on the processor: float32 throughout, made for one call after the other.

INFERENCE_NUM_THREADS as asked for, the hint LATENCY, and the precision hint f32, without which it
may compute in bfloat16. Shapes that are not told stay dynamic. float64 is computed in float32.

Its processor plugin does not check at run time that dynamic shapes fit together, and multiplies
matrices that do not beyond their ends. So each new set of input shapes is first put through its
shape inference, in a clone of the model that shares the weights. What follows from the values of
inputs (a Reshape to a size that is fed) cannot be checked so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from ...arrays import Array
from .base import REFUSED, Session, lacking, reported
from .protos import Handed, handed
from .values import Interface

_NAME = "openvino"
_FOREIGN = {"bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2"}


@dataclass(frozen=True, slots=True)
class OpenVino:
    """The runtime "openvino"."""

    name: str = _NAME

    def missing(self) -> str | None:
        """None where openvino can be imported; else why not, and the command."""
        return lacking("openvino", "pip install openvino")

    def session(self, model: onnx.ModelProto, *, threads: int) -> Session:
        """The model on the device CPU; see `base.Runtime`."""
        interface, given = Interface.of(model), handed(model)
        try:
            with reported(_NAME, *REFUSED):
                source = given.model if isinstance(given.model, bytes) else str(given.model)
                read = _core().read_model(source)
                return _OpenVinoSession(interface, given, read, _compiled(read, threads))
        except BaseException:
            given.close()
            raise


@cache
def _core() -> Any:
    import openvino

    return openvino.Core()


def _compiled(read: Any, threads: int) -> Any:
    setting = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    return _core().compile_model(read, "CPU", setting)


class _OpenVinoSession(Session):
    def __init__(self, interface: Interface, given: Handed, read: Any, compiled: Any) -> None:
        super().__init__(_NAME, interface)
        self._given, self._compiled = given, compiled
        self._unchecked = read if read.is_dynamic() else None
        self._checked_shapes: set[tuple[tuple[int, ...], ...]] = set()
        self._ports = {name: port for port in compiled.inputs for name in port.names}

    def _run(self, feeds: dict[str, Array]) -> dict[str, Any]:
        request = self._request(feeds)
        request.infer(share_outputs=True)
        # Outputs are known by their place: one that only renames another may have lost its name.
        return {
            value.name: _array(request.get_output_tensor(i)).copy()
            for i, value in enumerate(self.outputs)
        }

    def _bind(self, feeds: dict[str, Array]) -> Callable[[], None]:
        request = self._request(feeds)

        def again() -> None:
            request.infer(share_outputs=True)  # without it every output is copied

        again()
        return again

    def _request(self, feeds: dict[str, Array]) -> Any:
        self._require_fitting({name: feeds[name].shape for name in feeds if name in self._ports})
        request = self._compiled.create_infer_request()
        for name, array in feeds.items():
            if name in self._ports:  # an input that nothing reads may be gone
                request.set_tensor(self._ports[name], _tensor(array))
        return request

    def _require_fitting(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Raise OpenVINO's own error if its shape inference refuses these input shapes."""
        key = tuple(shapes.values())
        if self._unchecked is not None and key not in self._checked_shapes:
            clone = self._unchecked.clone()
            clone.reshape({name: list(shape) for name, shape in shapes.items()})
            self._checked_shapes.add(key)

    def _release(self) -> None:
        self._compiled, self._unchecked, self._ports = None, None, {}
        self._given.close()


def _tensor(array: Array) -> Any:
    """An array as OpenVINO's tensor, sharing its memory."""
    import openvino

    shared = array if array.flags.writeable else array.copy()  # it takes no others
    if array.dtype.isbuiltin == 1:  # 2 is ml_dtypes's
        return openvino.Tensor(shared, shared_memory=True)
    plain = shared.view(np.dtype(f"u{array.dtype.itemsize}"))
    kind = getattr(openvino.Type, _FOREIGN[array.dtype.name])
    return openvino.Tensor(plain, openvino.Shape(list(array.shape)), kind)


def _array(tensor: Any) -> Array:
    """OpenVINO's tensor as an array of the type it has: it shows bfloat16 as float16."""
    kind = tensor.element_type.get_type_name()
    for name, theirs in _FOREIGN.items():
        if kind == theirs:
            foreign: Array = tensor.data.view(getattr(ml_dtypes, name))
            return foreign
    data: Array = tensor.data
    return data
