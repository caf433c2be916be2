"""The reach of each node: which `Reach` its operation has, or the reason why it has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import EngineRefusal
from ..keywords import Same, paddings, paddings_of_stride_1
from ..stream_progress import Progress
from . import graph as ir
from .kinds import signature_of
from .reach import Edges, Multiplied, Reach, Taps


def reach(node: ir.Node, graph: ir.Graph, number: int) -> Reach:
    """The reach of a node along a spatial axis of any size.

    Raises `EngineRefusal` with the reason for a node that needs all positions at once.
    """
    rule = REACHES.get(type(node.operation))
    if rule is None:
        raise EngineRefusal("it reads all positions")
    return rule(node.operation, graph.shapes[node.inputs[0]], number)


def _convolution(operation: ir.Convolution, shape: ir.Shape, number: int) -> Reach:
    axes = signature_of(operation, shape).problem.axes
    along = axes[number]
    ends = along.crop_begin, along.crop_end
    if not operation.transposed:  # the crop at the end depends on the size
        padding, kernel = operation.keywords.padding, [axis.kernel for axis in axes]
        if along.stride > 1 and isinstance(paddings(padding, len(axes)), Same):
            raise EngineRefusal("its padding depends on the size of the input")
        ends = paddings_of_stride_1(padding, kernel, [axis.dilation for axis in axes])[number]
    progress = Progress(along.kernel, along.stride, along.dilation, *ends, not operation.transposed)
    pairs = tuple((one.crop_begin, one.crop_end) for one in axes)
    return Taps(operation, progress, number, pairs, cuts=True)


def _pool(operation: ir.Pool, _: ir.Shape, number: int) -> Reach:
    if operation.windows or operation.ceil:
        raise EngineRefusal("its windows depend on the size of the input")
    kernel, stride = operation.kernel[number], operation.stride[number]
    dilation = operation.at(()).dilation[number]
    progress = Progress(kernel, stride, dilation, *operation.padding[number], convolves=True)
    return Taps(operation, progress, number, operation.padding)


def _multiplied(operation: ir.Resample | ir.PixelShuffle, _: ir.Shape, number: int) -> Reach:
    if isinstance(operation, ir.Resample) and operation.by_position:
        raise EngineRefusal("its factor depends on the size of the input")
    factor = operation.factors[number]
    linear = isinstance(operation, ir.Resample) and operation.mode == "linear" and factor > 1
    return Multiplied(operation, factor, linear)


def _divided(operation: ir.PixelUnshuffle, _: ir.Shape, number: int) -> Reach:
    factor = operation.factors[number]
    progress = Progress(factor, factor, 1, 0, 0, convolves=True)
    return Taps(operation, progress, number, ((0, 0),) * len(operation.factors))


def _norm(operation: ir.Norm, *_: object) -> Reach:
    if not operation.per_position:
        raise EngineRefusal("mean and variance are taken over all positions")
    return Reach(operation)


_ONE_BY_ONE = ir.Pointwise, ir.Concat, ir.Slice, ir.Permute, ir.ChannelPool, ir.Convert
REACHES: dict[type[ir.Operation], Callable[[Any, ir.Shape, int], Reach]] = {
    ir.Convolution: _convolution,
    ir.Pool: _pool,
    ir.Resample: _multiplied,
    ir.PixelShuffle: _multiplied,
    ir.PixelUnshuffle: _divided,
    ir.Norm: _norm,
    ir.Lstm: lambda operation, *_: Reach(operation, recurs=True),
    ir.Pad: lambda operation, _, number: Edges(operation, number),
    **dict.fromkeys(_ONE_BY_ONE, lambda operation, *_: Reach(operation)),
}
