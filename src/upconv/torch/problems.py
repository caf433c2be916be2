"""Convert an operator's call to a `Problem`: shapes, dtype and layout, cached per signature.

An ordinary convolution is the input gradient of the transposed one with the same weight. So both
share one problem, and each result is one of its directions:

    result                 transposed     ordinary
    forward                FORWARD        INPUT_GRAD
    gradient of the input  INPUT_GRAD     FORWARD
    gradient of the weight WEIGHT_GRAD    WEIGHT_GRAD with exchanged operands
"""

from __future__ import annotations

from enum import IntFlag
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from ..arrays import Operand
from ..errors import ArgumentError, EngineMissing
from ..keywords import Keywords
from ..problem import DataLayout, Problem
from ..shape_checks import convolution, transposed
from .tensors import DTYPES

Shape = tuple[int, ...]


class ResultMask(IntFlag):
    """The results of a layer that upconv computes; PyTorch's operator computes the others."""

    FORWARD = 1
    INPUT_GRAD = 2
    WEIGHT_GRAD = 4
    ALL = 7


class Geometry(NamedTuple):
    """A layer's geometry, in the order of `aten::convolution`'s arguments."""

    stride: Shape
    padding: Shape
    dilation: Shape
    transposed: bool
    output_padding: Shape
    groups: int

    @classmethod
    def of(cls, arguments: Any) -> Geometry:
        """Return the geometry given by an operator's six arguments, which may be lists."""
        stride, padding, dilation, is_transposed, output_padding, groups = arguments
        axes = tuple(stride), tuple(padding), tuple(dilation)
        return cls(*axes, is_transposed, tuple(output_padding), groups)


class Operands(NamedTuple):
    """The shapes and dtype of a layer's input and weight, and which other operands it has."""

    x: Shape
    weight: Shape
    dtype: Any
    last: bool  # whether data is channels-last
    bias: bool = False
    residual: bool = False
    activation: str = ""


@lru_cache(maxsize=4096)
def forward_problem(operands: Operands, geometry: Geometry) -> Problem | None:
    """Return the problem of a layer's result; None for empty tensors and invalid calls."""
    if operands.dtype not in DTYPES or not _regular(operands, geometry):
        return None
    layout = DataLayout.NXC if operands.last else DataLayout.NCX
    stride, padding, dilation, is_transposed, output_padding, groups = geometry
    pads, extra = tuple((p, p) for p in padding), output_padding if is_transposed else 0
    weight_layout = "IOX" if is_transposed else "OIX"
    axes = stride, pads, extra, dilation
    keywords = Keywords(*axes, groups, None, layout.value, weight_layout)
    try:
        return _problem(operands, geometry, keywords, layout)
    except (ArgumentError, EngineMissing):  # EngineMissing: bfloat16 without ml_dtypes
        return None


def _problem(
    operands: Operands, geometry: Geometry, keywords: Keywords, layout: DataLayout
) -> Problem:
    kind = DTYPES[operands.dtype].numpy
    batch, channels, *size = operands.x
    x = Operand(layout.shape(batch, channels, tuple(size)), kind)
    weight = Operand(operands.weight, kind)
    call = transposed if geometry.transposed else convolution
    activation = operands.activation or None
    outputs = operands.weight[1] * geometry.groups if geometry.transposed else operands.weight[0]
    bias = Operand((outputs,), kind) if operands.bias else None
    bare = call(x, weight, bias, None, keywords, activation)
    if not operands.residual:
        return bare.problem
    return call(x, weight, bias, Operand(bare.shape, kind), keywords, activation).problem


def _regular(operands: Operands, geometry: Geometry) -> bool:
    """Whether PyTorch also accepts the call, and no operand is empty."""
    rank = len(operands.x) - 2
    entries = (geometry.stride, geometry.padding, geometry.dilation, geometry.output_padding)
    if not 1 <= rank <= 3 or len(operands.weight) != rank + 2:
        return False
    pads = geometry.padding + geometry.output_padding
    if any(len(entry) != rank for entry in entries) or min(pads) < 0:
        return False
    limits = map(max, geometry.stride, geometry.dilation)
    if not all(extra < limit for extra, limit in zip(geometry.output_padding, limits, strict=True)):
        return False
    return prod(operands.x) > 0 and prod(operands.weight) > 0


def result_shape(problem: Problem) -> Shape:
    """Return the shape of a problem's result in PyTorch's order: N, C, spatial axes."""
    shape = problem.result_shape
    if problem.layout is DataLayout.NCX:
        return shape
    return (shape[0], shape[-1], *shape[1:-1])


def axis_order(problem: Problem) -> Shape | None:
    """Return the tensor's axes in the order of the problem's layout; None if they are the same."""
    if problem.layout is DataLayout.NCX:
        return None
    return (0, *range(2, problem.rank + 2), 1)
