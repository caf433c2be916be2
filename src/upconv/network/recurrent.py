"""Steps of recurrent layers: each image is a job that computes its positions in order."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from ..engines.jit.recurrence import LAYOUT, lstm_code, packed
from ..engines.jit.steps import Step
from ..engines.jit.walk import Phase
from ..problem import DataLayout
from .graph import Array, Lstm
from .matrices import image_stride, position_stride
from .tables import Arrays, Target, stored_type, walk_step


def steps(operation: Lstm, outputs: Arrays, inputs: Arrays, target: Target) -> list[Step]:
    """Return the native step of an LSTM on channels-last arrays."""
    assert target.layout is DataLayout.NXC  # noqa: S101 - `labels` ensures it
    (y,), x, channels = outputs, inputs[0], operation.weight.shape[1]
    state = np.zeros((1, 1, 2 * channels), y.dtype) if len(inputs) < 2 else inputs[1][:, -1:]
    weight = _packed(operation, target.cpu.lanes(4))
    values = {
        "x": x.ctypes.data, "x_image": image_stride(x), "x_row": position_stride(x),
        "y": y.ctypes.data, "y_image": image_stride(y), "y_row": position_stride(y),
        "state": state.ctypes.data, "state_image": image_stride(state),
        "weight": weight.ctypes.data, "count": x.shape[1], "channels": channels,
    }  # fmt: skip
    code = lstm_code(stored_type(y), target.cpu)
    phase = Phase(code.addresses["lstm"], None, None, outer_count=len(x))
    kept = (code, weight, state, x, y)
    return [walk_step(LAYOUT, values, [phase], target, kept)]


_weights: WeakKeyDictionary[Lstm, tuple[int, Array]] = WeakKeyDictionary()


def _packed(operation: Lstm, lanes: int) -> Array:
    """Return the packed weight, which all programs of a network share."""
    known = _weights.get(operation)
    if known is None or known[0] != lanes:
        _weights[operation] = known = lanes, packed(operation.weight, lanes)
    return known[1]
