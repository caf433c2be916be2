"""The engine: its refusals, its variants, and building a primitive.

The library is loaded at the engine's first use. It is queried for an implementation at the first
use of a problem.
"""

from __future__ import annotations

from ...errors import EngineMissing, EngineRefusal
from ...problem import Direction, Problem
from ..base import Primitive
from ..interior import Interior, bordered
from ..nonfinite import NonFiniteFallback
from . import selftest
from .candidates import LayoutStrategy, best, candidate, layout_strategies
from .descriptors import cannot
from .library import Runtime, runtime
from .primitive import OnednnPrimitive

_WORTH = 1 << 20
"""Multiply-adds, or bytes moved, for each thread: about 20 microseconds of work, a few times the
overhead of starting threads and waiting for them."""


class OnednnEngine:
    """libdnnl; raises `EngineMissing` where there is none."""

    name = "onednn"
    finite_weights_only = True  # other weights go to the reference engine

    def __init__(self) -> None:
        self._runtime = runtime()
        isa = self._runtime.library.get_effective_cpu_isa()
        self._fingerprint = f"libdnnl {self._runtime.version} isa {isa:#x}"

    def fingerprint(self) -> str:
        """The version of the library, and the instruction set that it uses."""
        return self._fingerprint

    def refuses(self, problem: Problem) -> str | None:
        """Return None if the library has more than reference loops for `problem`, else why not."""
        try:
            _ = problem.dtype.numpy
        except EngineMissing as missing:
            return str(missing)
        reason = cannot(problem)
        if reason is not None:
            return reason
        inner = _interior(problem).problem
        if inner is not None and best(self._tested(problem), inner, 1) is None:
            return f"libdnnl {self._runtime.version} has only slow reference loops for it here"
        return None

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """Return the layout strategies that lead to more than reference loops; "" is the first."""
        inner = _interior(problem).problem
        if inner is None:
            return ("",)
        offers = [
            strategy
            for strategy in layout_strategies(inner)
            if candidate(self._tested(problem), inner, threads, strategy) is not None
        ]
        return ("", *(strategy.value for strategy in offers[1:]))

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """Create the primitives of a problem; this takes a few milliseconds."""
        interior = _interior(problem)
        inner = interior.problem
        if inner is None:
            return bordered(problem, interior, None)
        worth = (problem.multiply_adds + problem.nbytes) // _WORTH
        threads = min(threads, max(1, worth))
        if variant:
            offer = candidate(self._tested(problem), inner, threads, LayoutStrategy(variant))
        else:
            offer = best(self._tested(problem), inner, threads)
        if offer is None:
            raise EngineRefusal(f"libdnnl has no implementation of {problem}")
        inner_primitive = OnednnPrimitive(self._runtime, inner, threads, offer)
        primitive = bordered(problem, interior, inner_primitive)
        if problem.direction is Direction.WEIGHT_GRAD:
            return primitive
        return NonFiniteFallback(primitive, problem, threads)

    def _tested(self, problem: Problem) -> Runtime:
        """Return the library, after testing which of its implementations err in a direction."""
        selftest.ensure(self._runtime, problem.direction)
        return self._runtime


def _interior(problem: Problem) -> Interior:
    """Return the interior of a problem, which is all that the library computes.

    It cannot add positions that no input reaches. Where a part of the input or the kernel meets
    nothing, it errs or writes out of bounds.
    """
    return Interior.of(problem, margins=False, points=True)
