"""The engine: its refusals, its variants, and the building of primitives.

The library is loaded when the engine is first used. It is queried for an implementation when a
problem is first used.
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
"""Multiply-adds, or bytes moved, per thread: about 20 microseconds of work, a few times the
overhead of starting threads and waiting for them."""


class OnednnEngine:
    """libdnnl as an engine; raises `EngineMissing` if it is not installed."""

    name = "onednn"
    finite_weights_only = True  # other weights go to the reference engine

    def __init__(self) -> None:
        self._runtime = runtime()
        isa = self._runtime.library.get_effective_cpu_isa()
        self._fingerprint = f"libdnnl {self._runtime.version} isa {isa:#x}"

    def fingerprint(self) -> str:
        """Return the library's version and the instruction set that it uses."""
        return self._fingerprint

    def refuses(self, problem: Problem) -> str | None:
        """Return None if the library has a fast implementation for `problem`, else why not."""
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
        """Return the layout strategies that have a fast implementation; the first is ""."""
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
        """Create a problem's library primitives; this takes a few milliseconds."""
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
        """Return the library, after the self-test for the problem's direction."""
        selftest.ensure(self._runtime, problem.direction)
        return self._runtime


def _interior(problem: Problem) -> Interior:
    """Return a problem's interior; the library computes nothing else.

    It cannot add positions that no input reaches. If part of the input or the kernel takes part in
    no product, it errs or writes out of bounds.
    """
    return Interior.of(problem, margins=False, points=True)
