"""The JIT engine: kernels in LLVM IR, made for a problem's class and this machine's processor.

    cpu        the processor: vector width, registers, caches (a variable forces an older one)
    values, instructions, emit      IR as text; compile: from text to machine code
    cells, schedule                 plain data: where positions lie; tiles, blocks, windows, jobs
    tile, driver, layout, placing   the positions kernel: vectors along positions
    weights, rows                   packing weights; moving rows in and out
    positions                       its primitive
    channel_*, depthwise, turn      the channels kernel: vectors along output channels
    channels                        its primitive, and when it is the better one
    activation, primitive, limits   epilogues; what is around kernels; the machine's ceilings
    pool, protocol, places          fork and join
    slots, operands                 arguments of compiled functions; arrays as given

What lives here: the engine. What never does: size arithmetic of axes, which is geometry's.
"""

from __future__ import annotations

from math import prod

import llvmlite

from ..._version import __version__
from ...problem import DataLayout, Direction, DType, Problem
from ..base import Primitive
from .cells import without_points
from .channels import Channels, prefers_channels
from .cpu import host
from .positions import Positions
from .primitive import Empty, Guarded
from .schedule import VARIANTS, too_much

CHANNELS = "channels"
"""The variant whose vectors run along output channels."""


class JitEngine:
    """Compiles what it computes."""

    name = "jit"

    def fingerprint(self) -> str:
        """What compiled code depends on besides its problem."""
        return f"jit {__version__} llvmlite {llvmlite.__version__} {host().name}"

    def refuses(self, problem: Problem) -> str | None:
        """None when this engine can do `problem`, else why not."""
        if problem.direction is not Direction.FORWARD:
            return "it computes transposed convolutions only, not their gradients"
        if problem.dtype is DType.FLOAT16 and not host().half:
            return "this processor converts no float16"
        return too_much(problem)

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """Both kernels, the first with the schedules of `VARIANTS`."""
        if problem.layout is DataLayout.NXC:
            return ("",)
        return (*VARIANTS, CHANNELS)

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """Compile what the problem's class needs, and lay the problem out."""
        if not prod(problem.y_shape):
            return Empty()
        kernel = _kernel(without_points(problem), threads, variant)
        return Guarded(kernel, problem, threads)


def _kernel(problem: Problem, threads: int, variant: str) -> Primitive:
    """The kernel that a variant names, or the one that the model expects to be faster."""
    if variant == CHANNELS or (not variant and prefers_channels(problem, host())):
        return Channels(problem, threads, host())
    return Positions(problem, threads, host(), VARIANTS[variant])
