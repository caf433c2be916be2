"""Operations that are not convolutions, on NumPy arrays: shapes and values.

16-bit types are computed in float32 and rounded once. Biases and statistics are one per channel;
binary operations broadcast as NumPy does.

What lives here: BiasAdd, BatchNormInference, activations, binary operations, their two gradients.
What never does: convolutions; operations that no chain around a deconvolution needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import activations, memory
from ..activations import Activation
from ..arrays import Array
from ..errors import ShapeError
from .logical_tensors import Shape
from .operations import Operation

ACTIVATIONS: dict[str, Activation] = {
    "ReLU": Activation.RELU,
    "LeakyReLU": Activation.LEAKY_RELU,
    "Tanh": Activation.TANH,
    "Sigmoid": Activation.SIGMOID,
    "GELU": Activation.GELU,
}
"""Operations that a convolution's epilogue can do."""

_BINARY: dict[str, Callable[..., Array]] = {
    "Add": np.add,
    "Subtract": np.subtract,
    "Multiply": np.multiply,
    "Divide": np.divide,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
}


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one operation is computed: the result's shape, and its values in float32."""

    shape: Callable[[Operation, Sequence[Shape]], Shape]
    values: Callable[[Operation, Sequence[Array]], Array]


def result_shape(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """The shape of what an operation makes; raises `ShapeError` where shapes do not fit."""
    return _KINDS[operation.kind].shape(operation, shapes)


def compute(operation: Operation, arrays: Sequence[Array], shape: Shape) -> Array:
    """What an operation makes of arrays that fit together, in the type of the first."""
    dtype = arrays[0].dtype
    memory.require(int(np.prod(shape, dtype=object)) * 8, f"the result of {operation}")
    try:
        with np.errstate(all="ignore"):  # overflow, 0/0 and roots of negatives are results
            single = [array.astype(np.float32, copy=False) for array in arrays]
            result: Array = _KINDS[operation.kind].values(operation, single).astype(dtype)
    except MemoryError as error:
        raise memory.refused(f"the result of {operation}", error) from None
    return result


def channel_axis(operation: Operation, rank: int) -> int:
    """Which of `rank` axes holds the channels, by the attribute data_format."""
    return 1 if operation.attributes["data_format"] == "NCX" else rank - 1


def _scaling(operation: Operation, arrays: Sequence[Array]) -> tuple[Array, Array]:
    """Batch norm's factor and summand per channel, in float64, from gamma, beta, mean, variance."""
    gamma, beta, mean, variance = (array.astype(np.float64) for array in arrays)
    factor = gamma / np.sqrt(variance + operation.attributes["epsilon"])
    return factor, beta - mean * factor


def _same(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    return shapes[0]


def _with_channels(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    """Data, and one-dimensional operands with one entry per channel."""
    channels = _channels(operation, shapes[0])
    for slot, shape in zip(operation.schema.inputs[1:], shapes[1:], strict=True):
        if shape != (channels,):
            expected = f"{(channels,)}, one per channel of {shapes[0]}"
            raise ShapeError(f"dims of {slot.name}", str(shape), expected, "See data_format.")
    return shapes[0]


def _per_channel(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    return (_channels(operation, shapes[0]),)


def _channels(operation: Operation, shape: Shape) -> int:
    if len(shape) < 2:
        slot = operation.schema.inputs[0].name
        expected = "at least 2 dimensions, batch and channels"
        raise ShapeError(f"dims of {slot}", str(shape), expected)
    return shape[channel_axis(operation, len(shape))]


def _equal(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    if shapes[0] != shapes[1]:
        slot = operation.schema.inputs[1].name
        raise ShapeError(f"dims of {slot}", str(shapes[1]), f"{shapes[0]}, as the first input's")
    return shapes[0]


def _broadcast(operation: Operation, shapes: Sequence[Shape]) -> Shape:
    if operation.attributes["auto_broadcast"] == "none":
        return _equal(operation, shapes)
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        expected = f"dims that broadcast with {shapes[0]}"
        remedy = "Sizes are equal or 1, counted from the last."
        raise ShapeError("dims of src_1", str(shapes[1]), expected, remedy) from None


def _along(operation: Operation, data: Array, vector: Array) -> Array:
    """`vector` with as many axes as `data`, along its channels."""
    shape = [1] * data.ndim
    shape[channel_axis(operation, data.ndim)] = -1
    return vector.reshape(shape)


def _bias_add(operation: Operation, arrays: Sequence[Array]) -> Array:
    data, bias = arrays
    result: Array = data + _along(operation, data, bias)
    return result


def _bias_add_backward(operation: Operation, arrays: Sequence[Array]) -> Array:
    (data,) = arrays
    kept = channel_axis(operation, data.ndim)
    axes = tuple(axis for axis in range(data.ndim) if axis != kept)
    return np.asarray(np.add.reduce(data, axis=axes, dtype=np.float64))


def _batch_norm(operation: Operation, arrays: Sequence[Array]) -> Array:
    data, *statistics = arrays
    factor, summand = _scaling(operation, statistics)
    result: Array = data * _along(operation, data, factor) + _along(operation, data, summand)
    return result


def _activation(operation: Operation, arrays: Sequence[Array]) -> Array:
    values = np.array(arrays[0])
    kind = ACTIVATIONS[operation.kind]
    activations.apply(kind, operation.attributes.get("alpha", 0.0), values)
    return values


def _relu_backward(operation: Operation, arrays: Sequence[Array]) -> Array:
    """By src or by dst alike: both are positive where the gradient passes."""
    return np.where(arrays[0] > 0, arrays[1], np.float32(0))


def _binary(operation: Operation, arrays: Sequence[Array]) -> Array:
    return _BINARY[operation.kind](*arrays)


_KINDS: dict[str, _Kind] = {
    "BiasAdd": _Kind(_with_channels, _bias_add),
    "BiasAddBackward": _Kind(_per_channel, _bias_add_backward),
    "BatchNormInference": _Kind(_with_channels, _batch_norm),
    "ReLUBackward": _Kind(_equal, _relu_backward),
    **{kind: _Kind(_same, _activation) for kind in ACTIVATIONS},
    **{kind: _Kind(_broadcast, _binary) for kind in _BINARY},
}


PRESERVING = tuple(
    kind for kind, one in _KINDS.items() if one.shape in (_same, _with_channels, _equal)
)
"""Operations whose result has the dims of their first input."""


def activation_of(operation: Operation) -> Any:
    """What an activation operation is to `upconv.conv_transpose`: a name, or a name and a slope."""
    kind = ACTIVATIONS[operation.kind]
    if kind is Activation.LEAKY_RELU:
        return kind.value, operation.attributes["alpha"]
    return kind.value
