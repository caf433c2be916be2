"""OpenVINO, in the worker's process; it computes float64 in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import openvino

from ...arrays import Array
from ...errors import EngineRefusal
from ...timing import Call
from .host import Backend, Feeds

if TYPE_CHECKING:
    from . import Runtime


class Model(Backend):
    """A model compiled by OpenVINO for one call after the other (the hint LATENCY)."""

    def __init__(self, model: bytes | str, runtime: Runtime, outputs: Sequence[str]) -> None:
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
        """The outputs by place: one that only renames another may have lost its name."""
        request = self._request(feeds)
        request.infer(share_outputs=True)
        return [_array(request.get_output_tensor(i)).copy() for i in range(self._outputs)]

    def bind(self, feeds: Feeds) -> Call:
        """See `Backend`."""
        request = self._request(feeds)
        request.infer(share_outputs=True)  # without it every output is copied
        return lambda: request.infer(share_outputs=True)

    def _request(self, feeds: Feeds) -> Any:
        request = self._compiled.create_infer_request()
        for name, array in feeds.items():
            if name in self._ports:
                request.set_tensor(self._ports[name], _tensor(array))
        return request


def _tensor(array: Array) -> Any:
    """An array as OpenVINO's tensor, sharing its memory."""
    shared = array if array.flags.writeable else array.copy()  # it takes no others
    if array.dtype != ml_dtypes.bfloat16:
        return openvino.Tensor(shared, shared_memory=True)
    return openvino.Tensor(
        shared.view(np.uint16), openvino.Shape([*array.shape]), openvino.Type.bf16
    )


def _array(tensor: Any) -> Array:
    """OpenVINO's tensor as an array of the type it has: it shows bfloat16 as float16."""
    data: Array = tensor.data
    return data.view(ml_dtypes.bfloat16) if tensor.element_type == openvino.Type.bf16 else data
