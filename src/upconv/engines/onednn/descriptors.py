"""A problem in the library's terms (logical dimensions, strides, paddings), and its limits.

Every direction becomes the primitive that has the most implementations:

    FORWARD       deconvolution, forward          src x,  weights w,  dst y
    INPUT_GRAD    convolution, forward            src g,  weights w,  dst dx
    WEIGHT_GRAD   convolution, backward weights   src g,  diff_dst x, diff_weights dw

Logical dimensions are N, C, *X for data and [G,] O, I, *X for weights, where O and I are the
primitive's. Layouts differ only in strides: no weight is copied to exchange I and O.

The library's checks are incomplete: some problems that it accepts crash the process. `cannot`
refuses these before they reach it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod

from ...problem import Direction, DType, Problem
from ..base import tf32_refusal
from ..copies import Tensor, contiguous_strides

MOST = 1 << 30
"""Bound on every size and stride: implementations count in 32 bits."""
MAX_TAPS = 1 << 12
"""Bound on taps along one axis: implementations generate code for every tap."""


class Kind(Enum):
    """A library primitive; the value is the part of its name before _primitive_desc."""

    DECONVOLUTION = "deconvolution_forward"
    CONVOLUTION = "convolution_forward"
    WEIGHTS = "convolution_backward_weights"


@dataclass(frozen=True, slots=True)
class Window:
    """A kernel's strides, dilations and padding; the library counts dilation from 0."""

    strides: tuple[int, ...]
    dilates: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """A problem as a primitive's arguments."""

    kind: Kind
    src: Tensor
    weights: Tensor
    dst: Tensor
    window: Window

    @classmethod
    def of(cls, problem: Problem) -> Operation:
        """Return a problem's operation, from the table in the module's docstring."""
        forward = problem.direction is Direction.FORWARD
        kind = {
            Direction.FORWARD: Kind.DECONVOLUTION,
            Direction.INPUT_GRAD: Kind.CONVOLUTION,
            Direction.WEIGHT_GRAD: Kind.WEIGHTS,
        }[problem.direction]
        x = Tensor.data(problem, problem.in_channels, problem.size)
        y = Tensor.data(problem, problem.out_channels, problem.out_size)
        src, dst = (x, y) if forward else (y, x)
        moves = ((a.stride, a.dilation - 1, a.crop_begin, a.crop_end) for a in problem.axes)
        window = Window(*zip(*moves, strict=True))
        return cls(kind, src, _weights(problem, into_out=forward), dst, window)


def cannot(problem: Problem) -> str | None:
    """Return why the library cannot compute a problem, in one sentence, or None if it can."""
    if problem.rank > 3:
        return f"libdnnl supports one to three spatial axes, and there are {problem.rank}"
    if problem.rounded:
        return "libdnnl does not round operands to bfloat16: pass bfloat16 arrays"
    if problem.tf32:
        return tf32_refusal(problem)
    if problem.dtype is DType.FLOAT64:
        return "libdnnl does not support float64"
    if problem.epilogue.slopes or problem.epilogue.has_second:
        return "this engine has neither PReLU with a slope per channel nor a second result"
    shapes = (problem.x_shape, problem.y_shape, problem.weight_shape)
    axes = problem.axes
    crops = (max(abs(axis.crop_begin), abs(axis.crop_end)) for axis in axes)
    sizes = (max(axis.full, axis.extent, axis.stride) for axis in axes)
    largest = max(*map(prod, shapes), *crops, *sizes)
    if largest >= MOST:
        return f"libdnnl counts in 32 bits, and this problem has {largest} elements or positions"
    if max(problem.kernel) > MAX_TAPS:
        return f"libdnnl unrolls kernels, and this one has {max(problem.kernel)} taps along an axis"
    if problem.direction is Direction.WEIGHT_GRAD and _has_idle_taps(problem):
        return "libdnnl does not set the gradient of taps that reach no output"
    return None


def _has_idle_taps(problem: Problem) -> bool:
    """Whether an interior tap reaches no output: its positions skip all outputs."""
    trimmed = (axis.trimmed().axis for axis in problem.axes)
    return any(axis.size and not all(map(axis.meets, range(axis.kernel))) for axis in trimmed)


def _weights(problem: Problem, *, into_out: bool) -> Tensor:
    """Describe the weight as [G,] O, I, *X. If `into_out`, O is the transposed convolution's
    output, else its input."""
    strides = contiguous_strides(problem.weight_shape)
    by_in, by_out, *by_tap = (strides[i] for i in problem.weight_layout.to_iox(problem.rank))
    groups = problem.groups
    of_in, of_out = problem.in_channels // groups, problem.out_channels // groups
    channels = ((of_out, by_out), (of_in, by_in))
    group = [(groups, of_in * by_in)] if groups > 1 else []
    taps = zip(problem.kernel, by_tap, strict=True)
    axes = (*group, *(channels if into_out else channels[::-1]), *taps)
    return Tensor(*zip(*axes, strict=True))
