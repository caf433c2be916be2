"""OpenVINO on the processor: float32 throughout, made for one call after the other.

INFERENCE_NUM_THREADS as asked for, the hint LATENCY, and the precision hint f32, without which it
may compute in bfloat16. Shapes that are not told stay dynamic. float64 is computed in float32.
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
                return _OpenVinoSession(interface, given, _compiled(given, threads))
        except BaseException:
            given.close()
            raise


@cache
def _core() -> Any:
    import openvino

    return openvino.Core()


def _compiled(given: Handed, threads: int) -> Any:
    source = given.model if isinstance(given.model, bytes) else str(given.model)
    setting = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    return _core().compile_model(_core().read_model(source), "CPU", setting)


class _OpenVinoSession(Session):
    def __init__(self, interface: Interface, given: Handed, compiled: Any) -> None:
        super().__init__(_NAME, interface)
        self._given, self._compiled = given, compiled
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
        request = self._compiled.create_infer_request()
        for name, array in feeds.items():
            if name in self._ports:  # an input that nothing reads may be gone
                request.set_tensor(self._ports[name], _tensor(array))
        return request

    def _release(self) -> None:
        self._compiled, self._ports = None, {}
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
