"""The JIT engine: kernels in LLVM IR, compiled for classes of problems and for this processor.

docs/jit-code.md lists the files.
"""

from __future__ import annotations

from functools import lru_cache, partial

import llvmlite

from ..._version import __version__
from ...forks import importing
from ...problem import Direction, Problem
from ..base import Candidate, Primitive
from ..interior import bordered
from ..nonfinite import NonFiniteFallback
from .border_fill import JitBorder
from .channels.candidates import DOTS
from .correlation import Correlation
from .cpu import Cpu, host
from .direct import TILES, takes_tiles
from .im2col.candidates import IM2COL
from .im2col.limits import refusal as im2col_refusal
from .kernel_choice import direct_variant, interior_of, refusal, size_class, table
from .planes.candidates import PLANES
from .positions.candidates import POSITIONS
from .positions.limits import refusal as positions_refusal
from .winograd.candidates import is_winograd, schedule_of


class JitEngine:
    """The engine that compiles a kernel for each class of problems."""

    name = "jit"
    finite_weights_only = True  # other weights go to the reference engine

    def fingerprint(self) -> str:
        """Return the versions, processor and features on which compiled code depends."""
        return _fingerprint(host())

    def refuses(self, problem: Problem) -> str | None:
        """Return None if this engine can compute `problem`, else why not."""
        return refusal(problem, host())

    def candidates(
        self, problem: Problem, threads: int, *, every: bool = False, prepared: bool = False
    ) -> tuple[Candidate, ...]:
        """Return the candidates: direct kernels, Winograd's algorithm, and libdnnl."""
        return table(size_class(problem), threads, host(), every=every, prepared=prepared)

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """Return the kernels that compute direct sums, or only "" if there is just one."""
        names = tuple(
            candidate.variant
            for candidate in self.candidates(problem, threads)
            if candidate.engine == self.name and not candidate.winograd and candidate.possible
        )
        return ("", *names) if len(names) > 1 else ("",)

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """Compile code for the problem's class, and schedule the problem."""
        interior = interior_of(problem, margins=not is_winograd(variant))
        inner = interior.problem
        fill = partial(JitBorder, threads=threads)
        if problem.direction is Direction.WEIGHT_GRAD:
            gradient = None if inner is None else _weight_grad(inner, threads, variant)
            return bordered(problem, interior, gradient, fill)
        variant = variant or direct_variant(problem, threads, host())
        kernel = None if inner is None else _kernel(inner, threads, variant)
        return NonFiniteFallback(bordered(problem, interior, kernel, fill), problem, threads)


@lru_cache(maxsize=4)
def _fingerprint(cpu: Cpu) -> str:
    dots = " bf16" if cpu.dots else ""
    tiles = " tiles" if cpu.tiles else ""
    return f"jit {__version__} llvmlite {llvmlite.__version__} {cpu.name}{dots}{tiles}"


def _kernel(problem: Problem, threads: int, variant: str) -> Primitive:
    """Build the kernel that a variant names, or the channels kernel if it cannot run.

    Kernels are imported on first use: each takes a fifth of the engine's import time (2026-11-23).
    """
    correlation, cpu = Correlation.of(problem), host()
    if variant == TILES and takes_tiles(correlation):
        with importing:
            from .tiles.primitive import Tiles

        return Tiles(correlation, threads, cpu)
    if problem.rounded and variant != DOTS:
        with importing:
            from .rounded_operands import RoundedOperands

        kernel = _kernel(problem.replace(rounded=False), threads, variant)
        return RoundedOperands(kernel, problem, threads, cpu)
    if is_winograd(variant):
        with importing:
            from .winograd.primitive import Winograd

        plan = schedule_of(correlation, variant, threads, cpu)
        return Winograd(correlation, plan, partial(_direct, problem, threads), cpu)
    if variant == POSITIONS and positions_refusal(correlation) is None:
        with importing:
            from .positions.primitive import Positions

        return Positions(correlation, threads, cpu)
    if variant == IM2COL and im2col_refusal(correlation) is None:
        with importing:
            from .im2col.primitive import Im2col

        return Im2col(correlation, threads, cpu)
    if variant == PLANES:
        with importing:
            from .planes.primitive import Planes, plane_tile

        tile = plane_tile(correlation, cpu)
        if tile is not None:
            return Planes(correlation, tile, threads, cpu)
    with importing:
        from .channels.primitive import Channels

    return Channels(correlation, threads, cpu, variant == DOTS)


def _weight_grad(problem: Problem, threads: int, variant: str) -> Primitive:
    """Build the weight gradient's kernel, which rounds operands itself or reads rounded copies."""
    with importing:  # most first calls do not need it
        from .rounded_operands import RoundedOperands
        from .weight_grad.candidates import FLOATS, TILES, chosen
        from .weight_grad.primitive import WeightGrad
        from .weight_grad.tile_primitive import TileWeightGrad

    cpu = host()
    if chosen(problem, variant, cpu) == TILES:
        other = partial(_weight_grad, problem, threads, FLOATS)
        return TileWeightGrad(problem, threads, cpu, other)
    gradient = WeightGrad(problem, threads, cpu, variant)
    if problem.rounded and not gradient.rounds:
        return RoundedOperands(gradient, problem, threads, cpu)
    return gradient


def _direct(problem: Problem, threads: int) -> Primitive:
    """Build the kernel that the model chooses for direct sums."""
    return _kernel(problem, threads, direct_variant(problem, threads, host()))
