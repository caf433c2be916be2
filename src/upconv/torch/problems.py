"""From a call of an operator to a `Problem`: shapes, dtype and layout, remembered per signature.

An ordinary convolution is the input gradient of the transposed one with the same weight. So both
have one problem, and each result is one of its directions:

    result                 transposed     ordinary
    forward                FORWARD        INPUT_GRAD
    gradient of the input  INPUT_GRAD     FORWARD
    gradient of the weight WEIGHT_GRAD    WEIGHT_GRAD, its operands exchanged
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
from ..shapes import convolution, transposed
from .tensors import DTYPES

Shape = tuple[int, ...]


class Ours(IntFlag):
    """Which results upconv computes; PyTorch's operator computes the others."""

    FORWARD = 1
    INPUT_GRAD = 2
    WEIGHT_GRAD = 4
    ALL = 7


class Geometry(NamedTuple):
    """The geometry of a layer, in the order of `aten::convolution`'s arguments."""

    stride: Shape
    padding: Shape
    dilation: Shape
    transposed: bool
    output_padding: Shape
    groups: int

    @classmethod
    def of(cls, arguments: Any) -> Geometry:
        """From an operator's six arguments, which may be lists."""
        stride, padding, dilation, is_transposed, output_padding, groups = arguments
        axes = tuple(stride), tuple(padding), tuple(dilation)
        return cls(*axes, is_transposed, tuple(output_padding), groups)


class Operands(NamedTuple):
    """The shapes of a layer's input and weight, their dtype, and which other operands there are."""

    x: Shape
    weight: Shape
    dtype: Any
    last: bool  # computed on channels-last data
    bias: bool = False
    residual: bool = False
    activation: str = ""


@lru_cache(maxsize=4096)
def forward_problem(operands: Operands, how: Geometry) -> Problem | None:
    """The problem of a layer's result; None for empty tensors and what PyTorch has to refuse."""
    if operands.dtype not in DTYPES or not _regular(operands, how):
        return None
    layout = DataLayout.NXC if operands.last else DataLayout.NCX
    keywords = Keywords(
        how.stride,
        tuple((p, p) for p in how.padding),
        how.output_padding if how.transposed else 0,
        how.dilation,
        how.groups,
        None,
        layout.value,
        "IOX" if how.transposed else "OIX",
    )
    try:
        return _problem(operands, how, keywords, layout)
    except (ArgumentError, EngineMissing):  # the second for bfloat16 without ml_dtypes
        return None


def _problem(operands: Operands, how: Geometry, keywords: Keywords, layout: DataLayout) -> Problem:
    kind = DTYPES[operands.dtype].numpy
    batch, channels, *size = operands.x
    x = Operand(layout.shape(batch, channels, tuple(size)), kind)
    weight = Operand(operands.weight, kind)
    call = transposed if how.transposed else convolution
    end = operands.activation or None
    outputs = operands.weight[1] * how.groups if how.transposed else operands.weight[0]
    bias = Operand((outputs,), kind) if operands.bias else None
    bare = call(x, weight, bias, None, keywords, end)
    if not operands.residual:
        return bare.problem
    return call(x, weight, bias, Operand(bare.shape, kind), keywords, end).problem


def _regular(operands: Operands, how: Geometry) -> bool:
    """Whether PyTorch, too, has a meaning for the call, and there is something to compute."""
    rank = len(operands.x) - 2
    entries = (how.stride, how.padding, how.dilation, how.output_padding)
    if not 1 <= rank <= 3 or len(operands.weight) != rank + 2:
        return False
    if any(len(entry) != rank for entry in entries) or min(how.padding + how.output_padding) < 0:
        return False
    limits = map(max, how.stride, how.dilation)
    if not all(extra < limit for extra, limit in zip(how.output_padding, limits, strict=True)):
        return False
    return prod(operands.x) > 0 and prod(operands.weight) > 0


def result_shape(problem: Problem) -> Shape:
    """The shape of a result of data, its axes in PyTorch's order: N, C and the spatial ones."""
    shape = problem.result_shape
    if problem.layout is DataLayout.NCX:
        return shape
    return (shape[0], shape[-1], *shape[1:-1])


def axis_order(problem: Problem) -> Shape | None:
    """The positions of a problem's axes of data among a tensor's; None if they are in order."""
    if problem.layout is DataLayout.NCX:
        return None
    return (0, *range(2, problem.rank + 2), 1)
