"""How far two right computations of one model may differ, value by value.

Rounding is followed along the graph as a variance. A value of element type t with unit u(t), made
by a node that adds up n products in an accumulator with unit a(t), has

    V(value) = max over the node's inputs of V + u(t)^2 + n * a(t)^2        (1)
    allowed  = FACTOR * sqrt(V), as a part of the value's largest magnitude  (2)

1. Errors of different nodes are independent, so variances add, and along the worst chain only: what
   meets again has the same error, not two.
2. 16-bit types are stored in 16 bits and summed in float32.
3. Inputs and weights are exact. Integers, booleans and text, which nothing rounds, must be equal.
4. A node with a graph inside adds what the nodes in there add, 64 times for a loop or a recurrence.

n is the length of the sums of convolutions, matrix products and reductions, as far as shapes are
known, else 1024; 1 for all others. FACTOR is for the many elements, of which the worst counts, and
for layers that amplify.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod, sqrt

import numpy as np
import onnx

from ..known import Known

FACTOR = 4
"""Generous: rewritten decoders of 50 to 200 layers come to a twentieth of what it allows."""

_UNKNOWN = 1024
_REPEATS = 64
_REPEATING = ("Loop", "Scan", "LSTM", "GRU", "RNN", "SequenceMap")
_EPSILON = {"float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_FLOAT32 = 2.0**-23


def allowances(model: onnx.ModelProto, known: Known) -> dict[str, float]:
    """Value -> the error that rounding may make of it, as a part of its largest magnitude.

    For the values of the main graph that nodes make; those with no rounding have 0.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {y = Neg(x)}'
    >>> model = onnx.parser.parse_model(text)
    >>> allowances(model, Known({}))["y"] < 2e-6
    True
    """
    functions = {(f.domain, f.name): len(f.node) for f in model.functions}
    variances: dict[str, float] = {}
    for node in model.graph.node:
        read = max((variances.get(name, 0.0) for name in _reads(node)), default=0.0)
        for name in node.output:
            dtype = known.dtype(name)
            own = _own(node, name, known, functions)
            variances[name] = 0.0 if dtype and dtype.kind in "biu" else read + own
    return {name: FACTOR * sqrt(variance) for name, variance in variances.items()}


def _own(
    node: onnx.NodeProto, output: str, known: Known, functions: Mapping[tuple[str, str], int]
) -> float:
    dtype = known.dtype(output)
    unit = _EPSILON.get(dtype.name, _FLOAT32) if dtype is not None else _FLOAT32
    accumulator = min(unit, _FLOAT32)
    once = unit**2 + sum_length(node, known) * accumulator**2
    once += sum(_own(inner, output, known, functions) for inner in _inside(node))
    steps = functions.get((node.domain, node.op_type), 0)
    once += steps * (unit**2 + _UNKNOWN * accumulator**2)
    return once * (_REPEATS if node.op_type in _REPEATING else 1)


def sum_length(node: onnx.NodeProto, known: Known) -> int:
    """How many products, or terms, one element of the node's result adds up."""
    if node.op_type not in _LENGTHS:
        return 1
    shapes = [known.shape(name) for name in node.input[:2]]
    if None in shapes:
        return _UNKNOWN
    try:
        return _LENGTHS[node.op_type](node, [shape for shape in shapes if shape is not None])
    except (IndexError, ZeroDivisionError):  # shapes that no such node has: the runtime will tell
        return _UNKNOWN


def _of_weight(node: onnx.NodeProto, shapes: list[tuple[int, ...]]) -> int:
    return prod(shapes[1][1:])


def _of_transposed(node: onnx.NodeProto, shapes: list[tuple[int, ...]]) -> int:
    groups = next((a.i for a in node.attribute if a.name == "group"), 1)
    return shapes[1][0] // groups * prod(shapes[1][2:])


def _of_product(node: onnx.NodeProto, shapes: list[tuple[int, ...]]) -> int:
    turned = any(a.name == "transA" and a.i for a in node.attribute)
    return shapes[0][-2 if turned else -1]


def _of_all(node: onnx.NodeProto, shapes: list[tuple[int, ...]]) -> int:
    return prod(shapes[0][1:])


def _unknown(node: onnx.NodeProto, shapes: list[tuple[int, ...]]) -> int:
    return _UNKNOWN


_LENGTHS: Mapping[str, Callable[[onnx.NodeProto, list[tuple[int, ...]]], int]] = {
    "Conv": _of_weight,
    "ConvTranspose": _of_transposed,
    "MatMul": _of_product,
    "Gemm": _of_product,
    **dict.fromkeys(
        ("GlobalAveragePool", "InstanceNormalization", "LayerNormalization", "GroupNormalization",
         "ReduceMean", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Softmax"), _of_all
    ),
    **dict.fromkeys(
        ("AveragePool", "LSTM", "GRU", "RNN", "Einsum", "Attention", "CumSum", "Resize"), _unknown
    ),
}  # fmt: skip
"""Operator -> the length of its sums from its first two inputs' shapes."""


def _inside(node: onnx.NodeProto) -> Iterable[onnx.NodeProto]:
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from graph.node


def _reads(node: onnx.NodeProto) -> Iterable[str]:
    """The names a node reads, those that its inner graphs take from outside among them."""
    waiting = [node]
    while waiting:
        reader = waiting.pop()
        yield from reader.input
        waiting.extend(_inside(reader))


def of_dtype(dtype: np.dtype[np.generic]) -> float:
    """What is allowed for a value that no node makes: the rounding of its type, once.

    >>> of_dtype(np.dtype("int64"))
    0.0
    """
    if dtype.kind in "biuOSU":
        return 0.0
    return FACTOR * _EPSILON.get(dtype.name, _FLOAT32)
