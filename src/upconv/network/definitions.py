"""The meaning of every operation in short, slow NumPy: the oracle for passes and programs.

Arrays are channels first and float32 or float64; results have the dtype of input 0. Weights are
float32 and are converted to that dtype, so a graph evaluated on float64 arrays is exact up to
rounding in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ..activations import Activation, apply
from ..engines.base import Engine
from ..engines.ordered_sums import ORDERED, InvariantEngine
from ..engines.reference import ReferenceEngine
from ..errors import ShapeError
from ..problem import DType
from . import graph as ir
from .graph import Array, Chain
from .kinds import signature_of

Arrays = tuple[Array, ...]


def evaluate(graph: ir.Graph, arrays: Sequence[Array]) -> Arrays:
    """Compute a graph's outputs from input arrays; all arrays are channels first.

    Views are read and written in the array of the value that contains them, so a pass that wrongly
    overlaps two values changes the results.
    """
    dtype = np.result_type(*arrays)
    memory: dict[int, Array] = {}

    def value(number: int) -> Array:
        if number in graph.views:
            holder, first = graph.views[number]
            axis = graph.part_axis(number)
            stop = first + graph.shapes[number][axis]
            return value(holder)[(*[slice(None)] * axis, slice(first, stop))]
        if number not in memory:
            memory[number] = np.full(graph.shapes[number], np.nan, dtype)
        return memory[number]

    for number, array in zip(graph.inputs.values(), arrays, strict=True):
        value(number)[...] = array
    for node in graph.nodes:
        results = define(node.operation, tuple(value(number) for number in node.inputs))
        for number, result in zip(node.outputs, results, strict=True):
            if result.shape != graph.shapes[number]:
                expected = f"{graph.shapes[number]} for {node.operation}"
                raise ShapeError(f"value {number}'s shape", str(result.shape), expected)
            value(number)[...] = result
    return tuple(value(number).copy() for number in graph.outputs)


def define(operation: ir.Operation, inputs: Arrays) -> Arrays:
    """Compute the outputs of one operation."""
    with np.errstate(all="ignore"):  # infinity and NaN are valid results
        return DEFINITIONS[type(operation)](operation, inputs)


def chain_results(chain: Chain, value: Array, inputs: Arrays) -> Arrays:
    """Return the stored values of a chain that starts with `value`, and its last value."""
    stored = []
    for op in chain:
        if op.name == "store":
            stored.append(value)
        else:
            operand = _operand(op, value.ndim, inputs)
            value = FUNCTIONS[op.name](value, operand).astype(value.dtype, copy=False)
    return (*stored, value)


def _operand(op: ir.Op, ndim: int, inputs: Arrays) -> Any:
    if isinstance(op.operand, ir.Input):
        return inputs[op.operand.number]
    if isinstance(op.operand, np.ndarray):
        return op.operand.reshape(1, -1, *[1] * (ndim - 2))
    return op.operand


def _activation(kind: Activation) -> Callable[[Array, Any], Array]:
    """Make the function of a layer's activation."""

    def function(value: Array, slope: Any) -> Array:
        result = value.copy()
        apply(kind, 0.0 if slope is None else slope, result)
        return result

    return function


FUNCTIONS: dict[str, Callable[[Array, Any], Array]] = {
    **{kind.value: _activation(kind) for kind in Activation if kind.value},
    "elu": lambda v, alpha: np.where(v > 0, v, alpha * np.expm1(np.minimum(v, 0))),
    "softplus": lambda v, _: np.logaddexp(v, 0),
    "prelu": lambda v, slope: np.where(v < 0, slope * v, v),
    "snake": lambda v, a: v + np.sin(a * v) ** 2 / a,
    "gelu_tanh": lambda v, _: v * (np.tanh((v + 0.044715 * v**3) * (2 / np.pi) ** 0.5) + 1) / 2,
    "mish": lambda v, _: v * np.tanh(np.logaddexp(v, 0)),
    "abs": lambda v, _: np.abs(v),
    "exp": lambda v, _: np.exp(v),
    "sin": lambda v, _: np.sin(v),
    "cos": lambda v, _: np.cos(v),
    "square": lambda v, _: v * v,
    "sqrt": lambda v, _: np.sqrt(v),
    "add": lambda v, other: v + other,
    "sub": lambda v, other: v - other,
    "rsub": lambda v, other: other - v,
    "mul": lambda v, other: v * other,
    "div": lambda v, other: v / other,
    "rdiv": lambda v, other: other / v,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
"""Chain operations as functions of the chain's value and the operand."""


def _convolution(operation: ir.Convolution, inputs: Arrays) -> Arrays:
    x = inputs[0]
    weight = operation.weight.astype(x.dtype, copy=False)
    bias = None if operation.bias is None else operation.bias.astype(x.dtype, copy=False)
    signature = signature_of(operation, x.shape)
    problem = signature.problem.replace(dtype=DType(x.dtype.name))
    engine: Engine = ReferenceEngine()
    if operation.sums is not None:  # the same summation order at all sizes
        ordered = operation.sums == ORDERED.sums
        engine = ORDERED if ordered else InvariantEngine(operation.sums)
    primitive = engine.build(problem, threads=1)
    result = np.empty(signature.shape, x.dtype)
    primitive.run(result, x, primitive.pack(weight), bias, None)
    return chain_results(operation.epilogue, result, inputs)


def _lstm(operation: ir.Lstm, inputs: Arrays) -> Arrays:
    x, channels = inputs[0], operation.channels
    state = np.zeros((len(x), 2 * channels), x.dtype)
    if len(inputs) > 1:
        state = inputs[1][:, :, -1]
    results, weight = [], operation.weight.astype(x.dtype)
    for gates in np.moveaxis(x, -1, 0):
        h, cell = np.split(state, 2, axis=1)
        i, forget, g, o = np.split(gates + h @ weight.T, 4, axis=1)
        i, forget, o = (1 / (1 + np.exp(-v)) for v in (i, forget, o))
        cell = forget * cell + i * np.tanh(g)
        state = np.concatenate([o * np.tanh(cell), cell], axis=1)
        results.append(state)
    return (np.stack(results, axis=-1),)


def _pad(operation: ir.Pad, inputs: Arrays) -> Arrays:
    """Pad after cropping, so that only remaining positions are reflected."""
    x = inputs[0]
    ends = list(zip(x.shape[2:], operation.amounts, strict=True))
    kept: Any = (slice(max(0, -begin), size - max(0, -end)) for size, (begin, end) in ends)
    widths = [(0, 0), (0, 0), *((max(0, begin), max(0, end)) for _, (begin, end) in ends)]
    mode: Any = {"replicate": "edge"}.get(operation.mode, operation.mode)
    words: Any = {"constant_values": operation.value} if mode == "constant" else {}
    return (np.pad(x[(..., *kept)], widths, mode, **words),)


def _norm(operation: ir.Norm, inputs: Arrays) -> Arrays:
    """Normalize; statistics are computed in float64 for every dtype."""
    x = inputs[0]
    values = x.astype(np.float64).reshape(len(x), operation.groups, -1, *x.shape[2:])
    axes = (2,) if operation.per_position else tuple(range(2, values.ndim))
    centred = values - values.mean(axes, keepdims=True)
    variance = np.square(centred).mean(axes, keepdims=True)
    result = centred / np.sqrt(variance + operation.epsilon)
    return chain_results(operation.epilogue, result.reshape(x.shape).astype(x.dtype), inputs)


def _resample(operation: ir.Resample, inputs: Arrays) -> Arrays:
    result, sizes = inputs[0], operation.sizes
    sizes = sizes or tuple(
        n * factor for n, factor in zip(result.shape[2:], operation.factors, strict=True)
    )
    for axis, size in enumerate(sizes, 2):
        if operation.mode == "nearest":
            result = result.take(np.arange(size) * result.shape[axis] // size, axis)
        else:
            result = _linear(result, axis, size, operation.aligned)
    return (result,)


def _linear(x: Array, axis: int, after: int, aligned: bool) -> Array:
    """Interpolate: output o reads position (o + 1/2) / scale - 1/2, clamped to the input, or
    o / scale if the ends are aligned."""
    size, out = x.shape[axis], np.arange(after)
    positions = (out + 0.5) * size / after - 0.5
    if aligned:
        positions = out * (size - 1) / max(1, after - 1)
    positions = np.clip(positions, 0, size - 1)
    left = positions.astype(int)
    right = np.minimum(left + 1, size - 1)
    shape = [-1 if number == axis else 1 for number in range(x.ndim)]
    share = (positions - left).reshape(shape).astype(x.dtype)
    result: Array = x.take(left, axis) * (1 - share) + x.take(right, axis) * share
    return result


def _pool(operation: ir.Pool, inputs: Arrays) -> Arrays:
    x, axes = inputs[0], tuple(range(2 - inputs[0].ndim, 0))
    operation = operation.at(x.shape[2:])
    if operation.mode == "max":
        return (_windows(operation, x, -np.inf).max(axes),)
    ones = np.ones_like(x)
    counted = _windows(operation, ones, float(operation.count_padding)).sum(axes)
    return (_windows(operation, x, 0).sum(axes) / counted,)


def _windows(operation: ir.Pool, x: Array, padding: float) -> Array:
    """Return x's windows, (N, C, *positions, *kernel), after padding x with `padding`."""
    padded = np.pad(x, ((0, 0), (0, 0), *operation.padding), constant_values=padding)
    columns = (x.shape[2:], operation.kernel, operation.stride, operation.dilation)
    spans, steps, beyond = [], [], []
    for axis, (size, kernel, stride, dilation) in enumerate(zip(*columns, strict=True)):
        span = dilation * (kernel - 1) + 1
        extent = (operation.count(axis, size) - 1) * stride + span
        beyond.append((0, max(0, extent - padded.shape[2 + axis])))
        spans.append(span)
        steps.append(slice(0, extent - span + 1, stride))
    nothing = -np.inf if operation.mode == "max" else 0
    padded = np.pad(padded, ((0, 0), (0, 0), *beyond), constant_values=nothing)
    axes = tuple(range(2, x.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, axes)
    taps = (slice(None, None, dilation) for dilation in operation.dilation)
    result: Array = windows[(slice(None), slice(None), *steps, *taps)]
    return result


def _channel_pool(operation: ir.ChannelPool, inputs: Arrays) -> Arrays:
    function = np.max if operation.mode == "max" else np.mean
    return (function(inputs[0], axis=1, keepdims=True),)


def _pixel_shuffle(operation: ir.PixelShuffle, inputs: Arrays) -> Arrays:
    x = inputs[0]
    size, factors = x.shape[2:], operation.factors
    channels, rank = x.shape[1] // prod(factors), len(factors)
    split = x.reshape(len(x), channels, *factors, *size)
    pairs = [axis for i in range(rank) for axis in (2 + rank + i, 2 + i)]
    result = split.transpose(0, 1, *pairs)
    return (result.reshape(len(x), channels, *(n * f for n, f in zip(size, factors, strict=True))),)


def _pixel_unshuffle(operation: ir.PixelUnshuffle, inputs: Arrays) -> Arrays:
    x, rank = inputs[0], len(operation.factors)
    sizes = [n // f for n, f in zip(x.shape[2:], operation.factors, strict=True)]
    pairs = [extent for pair in zip(sizes, operation.factors, strict=True) for extent in pair]
    axes = (*range(3, 3 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2))
    split = x.reshape(*x.shape[:2], *pairs).transpose(0, 1, *axes)
    return (split.reshape(len(x), -1, *sizes),)


DEFINITIONS: dict[type[ir.Operation], Callable[[Any, Arrays], Arrays]] = {
    ir.Convolution: _convolution,
    ir.Pointwise: lambda operation, inputs: chain_results(operation.chain, inputs[0], inputs),
    ir.Concat: lambda operation, inputs: (np.concatenate(inputs, axis=operation.axis),),
    ir.Slice: lambda operation, inputs: (inputs[0][:, operation.start : operation.stop],),
    ir.Pad: _pad,
    ir.Norm: _norm,
    ir.Lstm: _lstm,
    ir.Resample: _resample,
    ir.Pool: _pool,
    ir.ChannelPool: _channel_pool,
    ir.PixelShuffle: _pixel_shuffle,
    ir.PixelUnshuffle: _pixel_unshuffle,
    ir.Permute: lambda operation, inputs: (inputs[0][:, list(operation.order)],),
    ir.Convert: lambda _, inputs: inputs,
}
