"""The choice of a kernel, from a table of candidates per problem, thread count and processor.

Every kernel lists its candidates in `candidates.py` in its folder. The table also lists libdnnl,
using measured times (libdnnl_times.py). All cycles are per thread (processor_costs.py). Code that
chooses, tunes, explains, or needs one order of sums for all chunks reads this table.

The cycles of all direct kernels are divided by the number of threads in the same way. So the number
of threads changes neither the choice among them nor a single bit of their results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from math import prod

from ...forks import importing
from ...geometry import Axis
from ...problem import DataLayout, Direction, DType, Problem
from ..base import Candidate, Eligible, ranked, tf32_refusal
from ..interior import Interior
from . import libdnnl_times
from .channels.candidates import CHANNELS, DOTS
from .channels.candidates import candidates as channels
from .correlation import Correlation
from .cpu import Cpu, host
from .direct import TILES, refused, takes_tiles
from .engine_limits import too_much
from .im2col.candidates import candidates as im2col
from .planes.candidates import candidates as planes
from .positions.candidates import candidates as positions
from .winograd.candidates import candidates as winograd


def tiles(correlation: Correlation, threads: int, cpu: Cpu) -> tuple[Candidate, ...]:
    """Return the candidates of the tile kernel, which is imported only for bfloat16 operands."""
    if not takes_tiles(correlation):
        return ()
    with importing:
        from .tiles.candidates import candidates

    return candidates(correlation, threads, cpu)


KERNELS = (positions, channels, planes, tiles, im2col)
"""Functions that list the candidates with direct sums; of equal ones, the first is preferred."""


@lru_cache(maxsize=512)  # six classes of sizes for a model of 80 layers
def table(
    problem: Problem, threads: int, cpu: Cpu, *, every: bool, prepared: bool = False
) -> tuple[Candidate, ...]:
    """Return the candidates for a problem: `every` one, or only those that the model might take.

    prepared: whether many runs will follow the choice, so that choosing may take longer.
    """
    reason = refusal(problem, cpu)
    if reason is not None:
        return (Candidate("jit", "", eligible=Eligible.NEVER, reason=reason),)
    inner = interior_of(problem, margins=True).problem
    if inner is None:
        reason = "there is nothing to multiply"
        # Any order of sums is correct here, but chunks of other sizes require one to be named.
        nothing = Candidate("jit", "", sums=CHANNELS, reason=reason)
        return (nothing, refused("winograd", reason, winograd=True))
    if problem.direction is Direction.WEIGHT_GRAD:
        with importing:  # most first calls do not need it
            from .weight_grad.candidates import candidates as weight_grad

        candidates = weight_grad(inner, threads, cpu)
        reason = "Winograd's algorithm computes only results and input gradients"
        no_winograd = refused("winograd", reason, winograd=True)
        libdnnl_candidate = libdnnl_times.of_weight_grad(problem, ranked(candidates)[0], cpu)
        return (*_cast(problem, candidates, threads, cpu), no_winograd, libdnnl_candidate)
    correlation = Correlation.of(inner)
    direct_sums = _eligible(
        [candidate for kernel in KERNELS for candidate in kernel(correlation, threads, cpu)]
    )
    direct_sums = list(_cast(problem, direct_sums, threads, cpu))
    best = ranked(direct_sums)[0]
    transformed = _winograd(
        problem, inner, threads, cpu, every=every, direct=best.cycles, prepared=prepared
    )
    return (
        *direct_sums,
        *_cast(problem, transformed, threads, cpu),
        libdnnl_times.of_correlation(problem, correlation, best, cpu),
    )


def _cast(
    problem: Problem, candidates: Iterable[Candidate], threads: int, cpu: Cpu
) -> Iterator[Candidate]:
    """Add the cycles of rounding operands, which needs copies, to the candidates.

    Tiles need no copies, and dot products none of data that is transposed or packed.
    """
    numbers = prod(problem.operand_shapes[0])
    if problem.direction is Direction.WEIGHT_GRAD:
        numbers += prod(problem.operand_shapes[1])
    cycles = cpu.costs.packing.cast * numbers / threads if problem.rounded else 0.0
    packs = problem.direction is Direction.WEIGHT_GRAD or problem.layout is DataLayout.NCX
    for candidate in candidates:
        rounds = candidate.variant == TILES or (packs and candidate.variant == DOTS)
        yield candidate if rounds else replace(candidate, cycles=candidate.cycles + cycles)


def _eligible(candidates: list[Candidate]) -> list[Candidate]:
    """Let the model choose candidates on request if there are no others."""
    if any(candidate.eligible is Eligible.BY_MODEL for candidate in candidates):
        return candidates
    return [
        replace(candidate, eligible=Eligible.BY_MODEL)
        if candidate.eligible is Eligible.ON_REQUEST
        else candidate
        for candidate in candidates
    ]


def _winograd(
    problem: Problem, inner: Problem, threads: int, cpu: Cpu, *, every: bool, direct: float,
    prepared: bool,
) -> tuple[Candidate, ...]:  # fmt: skip
    """Return the candidates of Winograd's algorithm, given that direct sums take `direct` cycles.

    They leave out outputs that no input reaches: neighbours would add rounding errors to them.
    """
    reached = interior_of(problem, margins=False).problem or inner
    border = prod(problem.result_shape) - prod(reached.result_shape)
    filling, correlation = cpu.costs.packing.border * border, Correlation.of(reached)
    return winograd(
        correlation, threads, cpu, every=every, border=filling, direct=direct, prepared=prepared
    )


@lru_cache(maxsize=256)
def size_class(problem: Problem) -> Problem:
    """Return the problem whose table this problem uses: sizes above 64 are rounded up to eighths of
    a power of two, and so grow by less than an eighth.

    A vocoder meets a new length with every sentence. All lengths share a few tables, and mostly the
    same code.
    """
    axes = tuple(_rounded(axis) for axis in problem.axes)
    if axes == problem.axes:
        return problem
    rounded = problem.replace(axes=axes)
    return problem if refusal(rounded, host()) else rounded


def _rounded(axis: Axis) -> Axis:
    crops = max(axis.crop_begin, axis.crop_end)
    if axis.size <= _EXACT or crops > axis.dilation * (axis.kernel - 1):
        return axis  # if crops leave out inputs, the interior may depend on the size
    step = 1 << ((axis.size - 1).bit_length() - 4)
    size = -(-axis.size // step) * step
    return axis if size == axis.size else replace(axis, size=size)


_EXACT = 64  # sizes up to this fill few vectors, so each has a separate table


def direct_variant(problem: Problem, threads: int, cpu: Cpu) -> str:
    """Return the name of the kernel that the model chooses for direct sums."""
    candidates = table(size_class(problem), threads, cpu, every=False, prepared=False)
    direct = (candidate for candidate in candidates if not candidate.winograd)
    return next(candidate.variant for candidate in ranked(direct) if candidate.engine == "jit")


@lru_cache(maxsize=512)  # as for `table`
def refusal(problem: Problem, cpu: Cpu) -> str | None:
    """Return why the engine refuses a problem, or None, without enumerating phases."""
    if problem.tf32:
        return tf32_refusal(problem)
    if problem.dtype is DType.FLOAT16 and not cpu.half:
        return "this processor cannot convert float16"
    inner = interior_of(problem, margins=True).problem
    return None if inner is None else too_much(inner)


@lru_cache(maxsize=64)  # both the choice of a kernel and the kernel need it
def interior_of(problem: Problem, *, margins: bool) -> Interior:
    """Return the interior of a problem, which is the part that kernels compute.

    Axes of one point are left out, so that vectors run along a last axis with positions. `margins`
    includes outputs that no input reaches.
    """
    return Interior.of(problem, margins=margins, points=False)
