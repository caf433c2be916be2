"""The JIT engine: kernels in LLVM IR, made for a problem's class and this machine's processor.

The files are listed in docs/jit.md.
"""

from __future__ import annotations

from functools import lru_cache, partial
from math import prod

import llvmlite

from ..._version import __version__
from ...problem import DataLayout, Direction, DType, Problem
from ..base import Primitive
from ..interior import Interior, bordered
from ..nonfinite import NonFiniteFallback
from .channels.lanes import can_dot, lanes_of
from .channels.primitive import Channels, prefers_channels
from .correlation import Correlation, too_much
from .cpu import host
from .planes.primitive import Planes, plane_tile
from .positions.primitive import Positions
from .positions.schedule import can_vectorise_positions
from .rows import activate
from .winograd.choice import ahead, by_name, is_winograd, refused, variants_of
from .winograd.primitive import Winograd

CHANNELS, DOTS = "channels", "dots"
"""The variants whose vectors run along output channels; `dots` multiplies pairs of bfloat16."""
POSITIONS = "positions"


_FEW_CHANNELS, _LANES, _FEW_POSITIONS = 8, 16, 64


class JitEngine:
    """Compiles what it computes."""

    name = "jit"
    finite_weights_only = True  # others go to the reference engine

    def fingerprint(self) -> str:
        """What compiled code depends on besides its problem."""
        dots = " bf16" if host().dots else ""
        return f"jit {__version__} llvmlite {llvmlite.__version__} {host().name}{dots}"

    def refuses(self, problem: Problem) -> str | None:
        """None when this engine can do `problem`, else why not."""
        if problem.dtype is DType.FLOAT16 and not host().half:
            return "this processor converts no float16"
        inner = _interior(problem).problem
        return None if inner is None else too_much(inner)

    def defers(self, problem: Problem) -> str | None:
        """Why another engine, if there is one, is likely to be faster, or None.

        Measured against libdnnl on layers of real models, Zen 4, one thread, 2026-11-22 and 23, as
        times as fast: few channels to reduce 0.3 to 1.0; narrow groups 0.3 to 1.0, forward 0.35 to
        0.57, but with a bias 1.7 to 4; channels-last data of many positions mostly 0.9; weight
        gradients of one tap 0.8 to 1.0, depthwise of 3x3 taps 0.6 to 0.9. The rest is 0.75 to 18.
        """
        if problem.direction is Direction.WEIGHT_GRAD:
            return _defers_weight_grad(problem)
        first = problem.layout is DataLayout.NCX
        if problem.direction is Direction.FORWARD:  # whose phases may be too many to list
            made = problem.out_channels // problem.groups
            narrow = 1 < problem.groups < problem.in_channels and 1 < made < _LANES
            return _narrow(made) if narrow and not (first or problem.bias) else None
        correlation = Correlation.of(problem)
        made = correlation.made // correlation.groups
        depthwise = 1 < correlation.groups == correlation.made == correlation.reduced
        if plane_tile(correlation, host()):
            return None
        if first and (depthwise or _is_heavy(correlation) or can_vectorise_positions(correlation)):
            return None  # libdnnl reorders data as much, and weights more slowly
        if depthwise and correlation.rank > 2:
            return None  # libdnnl takes 5 to 21 times as long
        inside = all(line.is_inside for line in correlation.lines)
        if correlation.reduced // correlation.groups < _FEW_CHANNELS and not (first and inside):
            return f"it is slow on fewer than {_FEW_CHANNELS} channels to sum over"
        if made < _LANES and (correlation.groups > 1 or made > _LANES // 4):
            return _narrow(made)
        positions = prod(correlation.result_size)
        if problem.layout is DataLayout.NXC and positions > _FEW_POSITIONS:
            return "convolutions of channels-last data are not its fastest"
        return None

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """Both kernels, the second with dot products and without where the processor has
        instructions for them."""
        if problem.direction is Direction.WEIGHT_GRAD:
            return ("",)
        correlation = Correlation.of(problem)
        dots = (DOTS,) if can_dot(correlation, host()) else ()
        if not can_vectorise_positions(correlation):
            return ("", CHANNELS, *dots) if dots else ("",)
        return ("", POSITIONS, CHANNELS, *dots)

    def refuses_winograd(self, problem: Problem) -> str | None:
        """None when a problem can be done by Winograd's algorithm, else why not."""
        if problem.direction is Direction.WEIGHT_GRAD:
            return "Winograd's algorithm is for results and input gradients"
        inner = _interior(problem, margins=False).problem
        return "there is nothing to multiply" if inner is None else refused(Correlation.of(inner))

    def winograd(self, problem: Problem, threads: int, *, exact: bool = False) -> tuple[str, ...]:
        """A variant for each choice of tiles, the fastest by the model first."""
        inner = _interior(problem, margins=False).problem
        if inner is None:
            return ()
        return variants_of(Correlation.of(inner), threads, host(), exact=exact)

    def quicker(self, problem: Problem, threads: int, *, once: bool) -> str:
        """The exact variant by Winograd that the model expects to beat direct sums, or "".

        Where another engine is chosen for those, and weights are many and packed `once`, it may be
        that of a kernel: libdnnl takes longer to reorder them. All of a gradient of nine
        channels-last layers was 1.06 to 1.5 times as fast on a Zen 4 (one thread, 2026-11-23).
        """
        if problem.direction is Direction.WEIGHT_GRAD:
            return ""
        inner = _interior(problem, margins=False).problem
        deferred = self.defers(problem) is not None
        if inner is None:
            return ""
        correlation = Correlation.of(inner)
        variant = ahead(correlation, threads, host(), once=once, deferred=deferred)
        channels = min(correlation.reduced, correlation.made)
        if variant or not (once and deferred and channels >= _LANES and _is_heavy(correlation)):
            return variant
        return self.settled(problem)

    def settled(self, problem: Problem) -> str:
        """The variant that sums as the model's own choice for `problem` does, at every size.

        Which kernel is the faster one depends on the size, and each adds up in an order of its own.
        """
        inner = _interior(problem).problem
        if problem.direction is Direction.WEIGHT_GRAD:
            return ""
        if inner is None:
            return CHANNELS  # nothing is added up: any will do, and one it must be
        correlation = Correlation.of(inner)
        if can_vectorise_positions(correlation) and not prefers_channels(correlation, host()):
            return POSITIONS
        return DOTS if lanes_of(correlation, host()).dots else CHANNELS

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """Compile what the problem's class needs, and lay the problem out."""
        interior = _interior(problem, margins=not is_winograd(variant))
        inner = interior.problem
        if problem.direction is Direction.WEIGHT_GRAD:
            from .weight_grad.primitive import (
                WeightGrad,  # five files that most first calls do without
            )

            made = None if inner is None else WeightGrad(inner, threads, host())
            return bordered(problem, interior, made, activate)
        kernel = None if inner is None else _kernel(inner, threads, variant)
        whole = bordered(problem, interior, kernel, activate)
        return NonFiniteFallback(whole, problem, threads)


def _is_heavy(correlation: Correlation) -> bool:
    """Whether there are more weights than data, in one group."""
    weight = correlation.reduced * correlation.made * correlation.taps
    data = prod(correlation.operand_shape) + prod(correlation.result_shape)
    return correlation.groups == 1 and weight > data


def _narrow(channels: int) -> str:
    return f"its vectors are not full with {channels} channels of a group"


def _defers_weight_grad(problem: Problem) -> str | None:
    kernel, first = [axis.kernel for axis in problem.axes], problem.layout is DataLayout.NCX
    each = max(problem.in_channels, problem.out_channels) // problem.groups
    if first and prod(kernel) == 1:
        return "it transposes channels-first data, which is much for a weight of one tap"
    if each == 1 < problem.groups and kernel == [3, 3]:
        return "libdnnl has a kernel for depthwise weights of 3x3 taps"
    if not first and problem.groups > 1 and 1 < each < _LANES:
        return _narrow(each)
    return None


def _kernel(problem: Problem, threads: int, variant: str) -> Primitive:
    """The kernel that a variant names, or the one that the model expects to be faster."""
    correlation = Correlation.of(problem)
    plan = by_name(correlation, variant, threads, host())
    if plan is not None:
        return Winograd(correlation, plan, partial(_kernel, problem, threads, ""), host())
    if variant in (CHANNELS, DOTS):
        return Channels(correlation, threads, host(), variant == DOTS)
    tile = None if variant else plane_tile(correlation, host())
    if tile is not None:
        return Planes(correlation, tile, threads, host())
    possible = can_vectorise_positions(correlation)
    if not possible or (not variant and prefers_channels(correlation, host())):
        return Channels(correlation, threads, host())
    return Positions(correlation, threads, host())


def _interior(problem: Problem, *, margins: bool = True) -> Interior:
    """What kernels are given. They make outputs that nothing reaches (`margins`), but by Winograd's
    algorithm with rounding errors of their neighbours; the last axis, which vectors run along,
    should be one that has positions."""
    return _interior_of(problem, margins)


@lru_cache(maxsize=64)  # the choice of a kernel and the kernel ask for it
def _interior_of(problem: Problem, margins: bool) -> Interior:
    return Interior.of(problem, margins=margins, points=False)
