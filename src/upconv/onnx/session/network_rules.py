"""`TABLE`: the ONNX operators that a network can compute, one row per operator.

A row adds a node's operation to a network, or raises `EngineRefusal` with one sentence if the
network has no such operation. The network's builder raises all other errors. The rows for
arithmetic and for operators that move axes are in `arranging`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ...dialects.onnx import Rule
from ...errors import EngineRefusal
from ...network import Network
from ...network.axes import per_channel
from ..graphs import is_op
from ..nodes import ConvTransposeNode, read
from ..operators import conv_keywords
from . import positions
from .calls import Call
from .units import Unit

Row = Callable[[Call], Any]


def translate(network: Network, unit: Unit, values: dict[ir.Value, Any], opset: int) -> None:
    """Add a unit to a network and its results to `values`; raise `UpconvError` if it does not fit.

    Every value of a network is float32.
    """
    if unit.operation is not None:
        method, *arguments = unit.operation
        result = getattr(network, method)(values[unit.inputs[0]], *arguments)
        values[unit.last.outputs[0]] = result
        return
    call = Call(network, unit.last, values, opset)
    row = TABLE.get(unit.last.op_type) if is_op(unit.last, unit.last.op_type) else None
    if row is None:
        domain = f"{unit.last.domain}." if unit.last.domain else ""
        raise EngineRefusal(f"A network has no {domain}{unit.last.op_type}.")
    results = row(call)
    outputs = [y for y in unit.last.outputs if y.name or y.uses()]
    results = results if isinstance(results, list) else [results]
    call.require(len(outputs) == len(results), "More than its first result is read.")
    values.update(zip(unit.last.outputs, results, strict=False))


# Layers -------------------------------------------------------------------------------------------


def _conv(call: Call) -> Any:
    attributes = {name: entry.value for name, entry in call.node.attributes.items()}
    weight, keywords = _weight(call), conv_keywords(attributes)
    return call.network.conv(call.x(), weight, call.optional(2), **keywords)


def _conv_transpose(call: Call) -> Any:
    weight = _weight(call)
    # Crops that depend on the size are those for the declared sizes, which the inputs have.
    node = read(call.node, call.opset, Rule.ONNXRUNTIME)
    if not isinstance(node, ConvTransposeNode):
        raise EngineRefusal(f"Its geometry cannot be read: {node.reason}.")
    keywords = node.layer.keywords()
    words = {name: keywords[name] for name in ("stride", "padding", "dilation", "groups")}
    return call.network.conv_transpose(call.x(), weight, call.optional(2), **words)


def _weight(call: Call) -> Array:
    weight = call.constant(1)
    call.require(weight.dtype == np.float32, f"Its weight is {weight.dtype}, not float32.")
    kernel = tuple(call.attribute("kernel_shape", ()))
    call.require(kernel in ((), weight.shape[2:]), "Its kernel_shape is not the weight's.")
    return weight


def _batch_norm(call: Call) -> Any:
    call.require(not call.attribute("training_mode", 0), "It is in training mode.")
    scale, offset, mean, variance = (call.constant(i) for i in range(1, 5))
    epsilon = call.attribute("epsilon", 1e-5)
    return call.network.batch_norm(call.x(), scale, offset, mean, variance, epsilon)


def _instance_norm(call: Call) -> Any:
    operands = call.constant(1), call.constant(2), call.attribute("epsilon", 1e-5)
    return call.network.instance_norm(call.x(), *operands)


def _group_norm(call: Call) -> Any:
    x, groups = call.x(), call.attribute("num_groups", 1)
    scale, offset = call.constant(1), call.constant(2)
    if call.opset < 21:  # one number per group
        scale, offset = (np.repeat(v, x.channels // groups) for v in (scale, offset))
    return call.network.group_norm(x, groups, scale, offset, call.attribute("epsilon", 1e-5))


# Pointwise ----------------------------------------------------------------------------------------


def _activation(name: str, call: Call) -> Any:
    return call.network.activation(call.x(), name)


def _with_number(name: str, attribute: str, default: float, call: Call) -> Any:
    return call.network.activation(call.x(), (name, call.attribute(attribute, default)))


def _gelu(call: Call) -> Any:
    by_erf = call.attribute("approximate", "none") == "none"
    return call.network.activation(call.x(), "gelu" if by_erf else "gelu_tanh")


def _prelu(call: Call) -> Any:
    x = call.x()
    slopes = np.broadcast_to(per_channel(x, call.constant(1)), (x.channels,))
    return call.network.activation(x, ("prelu", slopes))


def _clip(call: Call) -> Any:
    bounds = [
        None if bound is None else float(bound.item()) for bound in map(call.optional, (1, 2))
    ]
    return call.network.clip(call.x(), *bounds)


def _hard_sigmoid(call: Call) -> Any:
    x = call.network.mul(call.x(), call.attribute("alpha", 0.2))
    return call.network.clip(call.network.add(x, call.attribute("beta", 0.5)), 0, 1)


def _pow(call: Call) -> Any:
    exponent = call.constant(1)
    call.require(exponent.size == 1 and exponent.item() == 2, "Its exponent is not 2.")
    return call.network.activation(call.x(), "square")


def _same(call: Call) -> Any:
    training = call.optional(2) if call.node.op_type == "Dropout" else None
    call.require(training is None or not training.any(), "It is in training mode.")
    return call.x()


ACTIVATIONS = {
    **{kind: kind.lower() for kind in ("Relu", "Tanh", "Sigmoid", "Softplus", "Mish")},
    **{kind: kind.lower() for kind in ("Abs", "Exp", "Sin", "Cos", "Sqrt")},
    "HardSwish": "hard_swish",
}
"""Operator without attributes -> the network's activation."""

TABLE: dict[str, Row] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    **{kind: partial(_activation, name) for kind, name in ACTIVATIONS.items()},
    "LeakyRelu": partial(_with_number, "leaky_relu", "alpha", 0.01),
    "Elu": partial(_with_number, "elu", "alpha", 1.0),
    "Gelu": _gelu,
    "PRelu": _prelu,
    "Clip": _clip,
    "HardSigmoid": _hard_sigmoid,
    "Pow": _pow,
    "Concat": positions.concat,
    "Slice": positions.slice_of,
    "Split": positions.split,
    "Pad": positions.pad,
    "MaxPool": positions.max_pool,
    "AveragePool": positions.average_pool,
    "GlobalAveragePool": partial(positions.global_pool, "average"),
    "GlobalMaxPool": partial(positions.global_pool, "max"),
    "Softmax": positions.softmax,
    "Resize": positions.resize,
    "DepthToSpace": positions.depth_to_space,
    **dict.fromkeys(("Identity", "Dropout"), _same),
}
