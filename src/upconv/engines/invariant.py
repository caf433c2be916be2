"""The JIT engine held to one order of sums: the same bits for an output, whatever the size.

Left to itself the engine takes one of two kernels, by size, and each adds up in an order of its
own. Whoever computes a result in pieces, and wants the bits of the whole, asks for this engine in
both.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..problem import Direction, Problem
from . import load
from .base import Primitive

if TYPE_CHECKING:
    from .jit import JitEngine


class InvariantEngine:
    """The JIT engine with the kernel `variant`; weight gradients have one kernel only.

    One for each variant in a process: pickling keeps that.
    """

    name = "jit"
    finite_weights_only = True

    def __init__(self, variant: str) -> None:
        jit: Any = load("jit")
        self._jit: JitEngine = jit
        self.variant = variant

    def fingerprint(self) -> str:
        """The JIT engine's."""
        return self._jit.fingerprint()

    def refuses(self, problem: Problem) -> str | None:
        """What the JIT engine says."""
        return self._jit.refuses(problem)

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """There is no choice."""
        return ("",)

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """The JIT engine's primitive."""
        only = problem.direction is Direction.WEIGHT_GRAD
        return self._jit.build(problem, threads, "" if only else self.variant)

    def __reduce__(self) -> tuple[Any, ...]:
        return _with, (self.variant,)

    def __repr__(self) -> str:
        return f"<jit {self.variant}>".replace(" >", ">")


@lru_cache(maxsize=8)
def _with(variant: str) -> InvariantEngine:
    return InvariantEngine(variant)


def invariant_engine(problem: Problem) -> InvariantEngine:
    """The engine that sums at every size as the JIT engine does `problem`.

    Raises `EngineMissing` where llvmlite is not installed.
    """
    jit: Any = load("jit")
    engine: JitEngine = jit
    return _with("" if engine.refuses(problem) else engine.settled(problem))
