"""Rows for values whose axes are in any order: moving axes, arithmetic, layers over channels.

All other operators have rows in `network_rules.py`, which accept only (N, C, *size).
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from ...errors import EngineRefusal, ShapeError
from ...network import Network, Value
from ...network.axes import Arranged, Axes, common_axes
from ..graphs import is_op
from .calls import Call
from .network_rules import ACTIVATIONS, Row, translate
from .units import Unit, is_bias


def translate_arranged(
    network: Network, unit: Unit, values: dict[ir.Value, Arranged], opset: int
) -> None:
    """Add a unit to a network and its results to `values`."""
    node = unit.last
    if unit.operation is not None and unit.operation[0] == "linear":
        x = values[unit.inputs[0]]
        values[node.outputs[0]] = _linear(network, x, *unit.operation[1:])
        return
    if unit.operation is None and is_op(node, *ROWS):
        results = ROWS[node.op_type](Call(network, node, values, opset))
        results = results if isinstance(results, list) else [results]
        values.update(zip(node.outputs, results, strict=False))
        return
    read = {x: values[x] for x in unit.inputs if x in values}
    if not read:
        raise EngineRefusal("none of its inputs depends on the inputs of the model")
    any_axes = suits_any_axes(unit)
    first = next(iter(read.values())).axes
    axes: Axes = first if any_axes else tuple(range(len(first)))
    known = {x: operand.value if any_axes else operand.plain() for x, operand in read.items()}
    translate(network, unit, known, opset)
    values.update({y: Arranged(known[y], axes) for y in node.outputs if y in known})


ARITHMETIC = {kind: kind.lower() for kind in ("Add", "Sub", "Mul", "Div")}
ARITHMETIC |= {"Max": "maximum", "Min": "minimum"}
"""Operator with two operands -> the network's method."""

_UNARY = {
    *ACTIVATIONS,
    *("LeakyRelu", "Elu", "Gelu", "Clip", "HardSigmoid", "Pow", "Identity", "Dropout"),
}
"""Rows of `network_rules.py` for which the order of axes does not matter."""


MOVES = "Transpose", "Squeeze", "Unsqueeze", "Reshape", "Expand", "Flatten"
"""Operators that move axes."""


def moves_axes(unit: Unit) -> bool:
    """Return whether a unit only rearranges axes."""
    return unit.operation is None and unit.last.op_type in MOVES


def suits_any_axes(unit: Unit) -> bool:
    """Return whether a unit accepts inputs whose axes are in any order.

    Such a unit does not show which axis is the channel axis.
    """
    if unit.operation is not None:
        name, *arguments = unit.operation
        numbers = arguments[0][1:] if arguments and isinstance(arguments[0], tuple) else ()
        return name == "activation" and all(np.size(number) == 1 for number in numbers)
    return unit.last.op_type in {*_UNARY, *ARITHMETIC, *MOVES}


def _transpose(call: Call) -> Arranged:
    x: Arranged = call.x()
    return x.permuted(call.attribute("perm", ()) or range(len(x.axes))[::-1])


def _dims(call: Call, rank: int) -> list[int]:
    listed = call.optional(1) if call.has(1) else None
    dims = call.attribute("axes", ()) if listed is None else [*map(int, np.ravel(listed))]
    return [dim % rank for dim in dims]


def _squeeze(call: Call) -> Arranged:
    x = call.x()
    dims = _dims(call, len(x.axes)) or [i for i, size in enumerate(x.shape) if size == 1]
    if any(x.shape[dim] != 1 for dim in dims):
        raise ShapeError("the squeezed axes", f"{dims} of {x.shape}", "axes of extent 1")
    return Arranged(x.value, tuple(axis for i, axis in enumerate(x.axes) if i not in dims))


def _unsqueeze(call: Call) -> Arranged:
    x = call.x()
    axes: list[int | None] = list(x.axes)
    count = len(call.attribute("axes", ())) or np.size(call.constant(1))
    for dim in sorted(_dims(call, len(axes) + count)):
        axes.insert(dim, None)
    return Arranged(x.value, tuple(axes))


def _reshape(call: Call) -> Arranged:
    x: Arranged = call.x()
    wanted = [int(size) for size in np.ravel(call.constant(1))]
    call.require(all(x.shape), "it reshapes a value of open size")
    if not call.attribute("allowzero", 0):
        wanted = [x.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    shape = np.broadcast_to(np.float32(0), x.shape).reshape(wanted).shape
    return x if shape == x.shape else x.reshaped(shape)


def _flatten(call: Call) -> Arranged:
    x: Arranged = call.x()
    call.require(all(x.shape), "it reshapes a value of open size")
    axis = call.attribute("axis", 1)
    axis += len(x.shape) if axis < 0 else 0
    return x.reshaped((prod(x.shape[:axis]), prod(x.shape[axis:])))


def _expand(call: Call) -> Arranged:
    x: Arranged = call.x()
    shape = tuple(map(int, np.ravel(call.constant(1))))
    call.require(all(x.shape), "it expands a value of open size")
    if np.broadcast_shapes(x.shape, shape) != x.shape:
        raise ShapeError("the shape", str(shape), f"{x.shape}, the shape of its input")
    return x


def _binary(name: str, call: Call) -> Arranged:
    """Add arithmetic on values, and on constants with one number per channel."""
    inputs, values = call.node.inputs, call.values
    operands = [values[x] for x in inputs if x is not None and x in values]
    call.require(operands and len(inputs) == 2, "it does not have two operands")
    like = Arranged(operands[0].value, common_axes(operands))
    pair = (
        values[x].value if x is not None and x in values else like.per_channel(call.constant(i))
        for i, x in enumerate(inputs)
    )
    return Arranged(_combined(call.network, name, *pair), like.axes)


def _combined(network: Network, name: str, first: Any, second: Any) -> Any:
    """Combine two values, or a value and numbers, in either order."""
    if not isinstance(first, Value):
        if name in ("sub", "div"):
            return first - second if name == "sub" else first / second
        first, second = second, first
    return getattr(network, name)(first, second)


def _matmul(call: Call) -> Arranged:
    """Add a fully connected layer over the last axis: a convolution with one tap."""
    x, weight = call.x(), call.constant(1)
    call.require(weight.ndim == 2, "its second operand is not a weight matrix")
    return _linear(call.network, x, weight.T)


def _gemm(call: Call) -> Arranged:
    plain = call.attribute("alpha", 1.0) == call.attribute("beta", 1.0) == 1
    plain = plain and not call.attribute("transA", 0)
    call.require(plain, "it scales or transposes its input")
    weight = call.constant(1)
    weight = weight if call.attribute("transB", 0) else weight.T
    bias = call.optional(2)
    call.require(bias is None or is_bias(bias, len(weight)), "its bias differs between positions")
    return _linear(call.network, call.x(), weight, None if bias is None else bias.reshape(-1))


def _linear(network: Network, x: Arranged, weight: Any, bias: Any = None) -> Arranged:
    if not x.channels_last():
        raise EngineRefusal("the last axis of its input is not the channel axis")
    kernel = weight.reshape(*weight.shape, *[1] * (len(x.value.shape) - 2))
    return Arranged(network.conv(x.value, kernel, bias), (*x.axes[:-1], 1))


def _layer_norm(call: Call) -> Arranged:
    x = call.x()
    last = call.attribute("axis", -1) in (-1, len(x.axes) - 1)
    call.require(last and x.channels_last(), "it normalizes axes other than the channels")
    scale, offset = call.constant(1).reshape(-1), call.optional(2)
    offset = None if offset is None else offset.reshape(-1)
    return Arranged(
        call.network.layer_norm(x.value, scale, offset, call.attribute("epsilon", 1e-5)), x.axes
    )


def _lstm(call: Call) -> Arranged:
    """Add an LSTM along the only spatial axis; its results have an axis for the direction."""
    x = call.x()
    forward = call.attribute("direction", "forward") == "forward"
    call.require(forward, "it runs from the end to the beginning, so it reads all positions")
    rest = ("activations", "activation_alpha", "activation_beta", "clip", "input_forget")
    plain = not any(name in call.node.attributes for name in rest) and not call.has(7)
    call.require(plain, "it has other activations, a clip or peepholes")
    call.require(not call.has(4), "it has separate lengths for each image")
    states = [call.optional(i) for i in (5, 6)]
    zero = all(state is None or not np.any(state) for state in states)
    call.require(zero, "its initial state is not 0")
    last = bool(call.attribute("layout", 0))
    call.require(x.channels_last(), "the last axis of its input is not the channel axis")
    along = x.axes[1 if last else 0] == 2 and len(x.value.shape) == 3
    call.require(along, "it does not run along time")
    weight, hidden = (_gates(call.constant(i)[0]) for i in (1, 2))
    bias = call.optional(3)
    if bias is not None:
        bias = _gates(np.add(*np.split(bias[0], 2)))
    axes = (*x.axes[:2], None, x.axes[2]) if last else (x.axes[0], None, *x.axes[1:])
    return Arranged(call.network.lstm(x.value, weight, hidden, bias), axes)


def _gates(rows: Any) -> Any:
    """Reorder the rows of the gates i, o, f, g to i, f, g, o."""
    i, o, f, g = np.split(rows, 4)
    return np.concatenate([i, f, g, o])


def _recurrent(*_: object) -> Any:
    words = "Stream the layers before and after it, and run it with its state in between"
    raise EngineRefusal(f"The only recurrent layer of a network is the LSTM. {words}.")


ROWS: dict[str, Row] = {
    "LSTM": _lstm, **dict.fromkeys(("GRU", "RNN"), _recurrent),
    "Transpose": _transpose, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Reshape": _reshape,
    "Expand": _expand, "Flatten": _flatten,
    "MatMul": _matmul, "Gemm": _gemm, "LayerNormalization": _layer_norm,
    **{kind: partial(_binary, name) for kind, name in ARITHMETIC.items()},
}  # fmt: skip
