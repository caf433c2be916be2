"""A problem as one of cuDNN's three convolution operations, with its tensors.

    FORWARD       data gradient      loss x, filter w  ->  image y
    INPUT_GRAD    convolution        image g, filter w ->  loss dx
    WEIGHT_GRAD   weight gradient    image g, loss x   ->  filter dw

cuDNN's names refer to an ordinary convolution. Its *image* is the transposed convolution's result.
Its *loss*, the gradient of a convolution's result, is the transposed convolution's input. All
tensors are contiguous. The filter has the data's order: (I, O/g, *k) for channels first,
(I, *k, O/g) for channels last. cuDNN needs at least two spatial axes; a missing one has size 1.

Nothing here imports cuDNN, so this file can be tested on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import NamedTuple

from ...activations import Activation
from ...geometry import Axis
from ...problem import DataLayout, Direction, DType, Epilogue, Problem, WeightLayout
from ..copies import Tensor

MOST = (1 << 31) - (1 << 12)
"""A tensor must have fewer elements: kernels count in 32 bits, and upconv's one block further."""


class Kind(Enum):
    """A cuDNN operation; the value is its name in graphs."""

    DATA_GRADIENT = "conv_dgrad"
    CONVOLUTION = "conv_fprop"
    WEIGHT_GRADIENT = "conv_wgrad"


KINDS = {
    Direction.FORWARD: Kind.DATA_GRADIENT,
    Direction.INPUT_GRAD: Kind.CONVOLUTION,
    Direction.WEIGHT_GRAD: Kind.WEIGHT_GRADIENT,
}


class Ends(NamedTuple):
    """A graph's steps after its convolution: + bias, + residual, then the activation; or only the
    accumulation into the result."""

    bias: bool = False
    residual: bool = False
    activation: Activation = Activation.NONE
    slope: float = 0.0
    accumulate: bool = False

    def __bool__(self) -> bool:
        return self != Ends()


NO_ENDS = Ends()

_FUSED = {
    Activation.NONE,
    Activation.RELU,
    Activation.LEAKY_RELU,
    Activation.TANH,
    Activation.SIGMOID,
    Activation.SILU,
    Activation.GELU,
}


def fusible(problem: Problem) -> Ends | None:
    """Return a problem's epilogue as part of a graph, or None if it needs a separate step."""
    epilogue = problem.epilogue
    if problem.accumulate:
        return None if problem.bias or not epilogue.empty else Ends(accumulate=True)
    if epilogue.slopes or epilogue.has_second:
        return None
    if epilogue.activation not in _FUSED:
        return None
    return Ends(problem.bias, epilogue.residual, epilogue.activation, epilogue.slope)


@dataclass(frozen=True, slots=True)
class Convolution:
    """A cuDNN operation, used as a graph's cache key; `pre` and `post` are paddings.

    `tf32`: tensor cores may round operands to ten fraction bits.
    """

    kind: Kind
    image: Tensor
    filter: Tensor
    loss: Tensor
    pre: tuple[int, ...]
    post: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    dtype: DType
    tf32: bool = False
    ends: Ends = NO_ENDS

    @classmethod
    def of(cls, problem: Problem, ends: Ends = NO_ENDS) -> Convolution:
        """Return the operation for a problem without negative crops."""
        axes = problem.axes if problem.rank > 1 else (Axis(1, 1), *problem.axes)
        wide = problem.replace(axes=axes)
        image = Tensor.data(wide, wide.out_channels, wide.out_size)
        loss = Tensor.data(wide, wide.in_channels, wide.size)
        pre, post = zip(*map(_pads, axes), strict=True)
        stride, dilation = zip(*((axis.stride, axis.dilation) for axis in axes), strict=True)
        return cls(
            KINDS[problem.direction], image, _filter(wide), loss, pre, post, stride, dilation,
            problem.dtype, problem.tf32, ends,
        )  # fmt: skip

    @property
    def result(self) -> Tensor:
        """The result's tensor."""
        return {
            Kind.DATA_GRADIENT: self.image,
            Kind.CONVOLUTION: self.loss,
            Kind.WEIGHT_GRADIENT: self.filter,
        }[self.kind]

    @property
    def operands(self) -> tuple[Tensor, Tensor]:
        """The operands in the order of `Primitive.run`."""
        return {
            Kind.DATA_GRADIENT: (self.loss, self.filter),
            Kind.CONVOLUTION: (self.image, self.filter),
            Kind.WEIGHT_GRADIENT: (self.image, self.loss),
        }[self.kind]

    def __str__(self) -> str:
        def by(sizes: tuple[int, ...]) -> str:
            return "x".join(map(str, sizes))

        pads = by(self.pre) if self.pre == self.post else f"{by(self.pre)}..{by(self.post)}"
        return (
            f"{self.kind.value} image {by(self.image.dims)} filter {by(self.filter.dims)} loss"
            f" {by(self.loss.dims)} pad {pads} stride {by(self.stride)} {self.dtype.value}"
        )


def _pads(axis: Axis) -> tuple[int, int]:
    """Return an axis's paddings, made equal if the stride's remainder allows it."""
    even = axis.evened()[0] == axis
    return axis.crop_begin, axis.crop_begin if even else axis.crop_end


def evened(problem: Problem) -> tuple[Problem, tuple[int, ...]]:
    """Return the problem with equal paddings at both ends, and the offsets of its outputs."""
    axes, offsets = zip(*(axis.evened() for axis in problem.axes), strict=True)
    return problem.replace(axes=axes), offsets


def cannot(problem: Problem) -> str | None:
    """Return why cuDNN cannot compute a problem, in one sentence, or None if it can."""
    if problem.rank > 3:
        return f"cuDNN supports one to three spatial axes, and there are {problem.rank}"
    if problem.rounded:
        return (
            "cuDNN's results have the operands' type, so operands are not rounded to bfloat16: pass"
            " bfloat16 arrays, or precision='tf32'"
        )
    axes = problem.axes
    shapes = (problem.x_shape, problem.y_shape, problem.weight_shape)
    sizes = (max(a.full, a.extent, a.stride, abs(a.crop_begin), abs(a.crop_end)) for a in axes)
    largest = max(*map(prod, shapes), *sizes)
    if largest >= MOST:
        return f"cuDNN counts in 32 bits, and this problem has {largest} elements or positions"
    return None


def filter_layout(layout: DataLayout) -> WeightLayout:
    """Return the weight layout that cuDNN uses with a data layout."""
    return WeightLayout.IOX if layout is DataLayout.NCX else WeightLayout.IXO


def without_epilogue(problem: Problem) -> Problem:
    """Return the problem without bias, epilogue and accumulation."""
    return problem.replace(bias=False, epilogue=Epilogue(), accumulate=False)


def _filter(problem: Problem) -> Tensor:
    """Describe the filter as (I, O/g, *k)."""
    layout, per_group = filter_layout(problem.layout), problem.out_channels // problem.groups
    shape = layout.shape(problem.in_channels, per_group, problem.kernel)
    return Tensor.of(shape, layout.to_iox(problem.rank))
