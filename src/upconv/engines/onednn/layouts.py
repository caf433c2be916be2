"""Layout strategies: in which layouts data is offered to the library, and which is expected to be
the fastest.

    AS_GIVEN      data as it lies
    ANY           data in whatever layout the library likes; it is reordered on the way
    GEMM          data channels first, and of all implementations the one by matrix products
    CONVOLUTION   stride 1 as a convolution of the flipped kernel; ANY if channels come first

The rules below come from random layers measured with every strategy (docs/onednn.md), and hold for
most; tuning measures the one at hand.
"""

from __future__ import annotations

from enum import Enum
from math import prod

from ...problem import DataLayout, Direction, Problem
from .descriptors import is_convolution_of_flipped

_LANES = 16
"""Direct implementations pad the output channels to so many."""

_FEW_CHANNELS = 8
"""Up to so many, products are tried for them alone."""

_COLUMNS, _COLUMNS_AND_REORDERS = 48, 96
"""How many multiplications with padding, per position, tap and output channel, take as long as
writing and reading columns; with channels last two reorders come on top."""


class LayoutStrategy(Enum):
    """The strategies above; the value is the variant's name."""

    AS_GIVEN = "plain"
    ANY = "reordered"
    GEMM = "gemm"
    CONVOLUTION = "convolution"


def layout_strategies(problem: Problem, *, every: bool = False) -> tuple[LayoutStrategy, ...]:
    """The strategies worth trying, the fastest by expectation first; `every`: all there are."""
    last = problem.layout is DataLayout.NXC
    order = (
        [LayoutStrategy.AS_GIVEN, LayoutStrategy.ANY]
        if last
        else [LayoutStrategy.ANY, LayoutStrategy.AS_GIVEN]
    )
    if problem.direction is not Direction.FORWARD:
        return tuple(order)
    if is_convolution_of_flipped(problem):
        # Faster than the library's own flipping, by 2 to 7 % on most layers with channels last.
        order.insert(0 if last else 2, LayoutStrategy.CONVOLUTION)
    if last and _small_images(problem):
        order.remove(LayoutStrategy.ANY)
        order.insert(0, LayoutStrategy.ANY)
    if _gemm_pays(problem):
        order.insert(0, LayoutStrategy.GEMM)
    elif every:
        order.append(LayoutStrategy.GEMM)
    return tuple(order)


def _gemm_pays(problem: Problem) -> bool:
    """Whether columns cost less than what direct implementations lose to padding."""
    if problem.groups > 1:
        return False
    channels, strided = problem.out_channels, _strided(problem)
    wasted = problem.in_channels * (-channels % _LANES) / channels
    if problem.layout is DataLayout.NXC:
        few = _FEW_CHANNELS if strided else _FEW_CHANNELS // 2
        return channels <= few and wasted >= _COLUMNS_AND_REORDERS
    return channels <= _FEW_CHANNELS or (strided and (_apart(problem) or wasted >= _COLUMNS))


def _strided(problem: Problem) -> bool:
    return any(axis.stride > 1 for axis in problem.axes)


def _apart(problem: Problem) -> bool:
    """Whether outputs lie between all taps: columns do not hold them, direct kernels visit them."""
    return all(axis.extent < axis.stride for axis in problem.axes)


def _small_images(problem: Problem) -> bool:
    """Stride 1 and fewer positions than taps, as in a generator's first layer: the library's
    kernel for channels last does every tap of every output, most of which meet nothing."""
    few = prod(problem.size) < prod(problem.kernel)
    return few and problem.batch > 1 and problem.groups == 1 and not _strided(problem)
