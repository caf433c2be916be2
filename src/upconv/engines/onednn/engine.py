"""The engine: what it refuses, what it can be tuned to, and building a primitive.

The library is loaded when the engine is first asked for, and asked whether it has an implementation
when a problem is first seen.
"""

from __future__ import annotations

from math import prod

from ...errors import EngineMissing, EngineRefusal
from ...problem import Problem
from ..base import Array, Primitive
from .candidates import Candidate, Way, best, candidate, ways
from .descriptors import cannot
from .library import runtime
from .primitive import OnednnPrimitive


class Empty:
    """A problem whose result has no elements."""

    workspace_bytes = 0
    resident_bytes = 0
    description = "nothing to compute"
    predicted_cycles = 0.0

    def pack(self, weight: Array) -> None:
        """Nothing."""

    def run(
        self,
        out: Array,
        a: Array,
        b: object,
        bias: Array | None = None,
        residual: Array | None = None,
    ) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class OnednnEngine:
    """libdnnl; raises `EngineMissing` where there is none."""

    name = "onednn"

    def __init__(self) -> None:
        self._runtime = runtime()
        isa = self._runtime.library.get_effective_cpu_isa()
        self._fingerprint = f"libdnnl {self._runtime.version} isa {isa:#x}"

    def fingerprint(self) -> str:
        """The version of the library and the instructions it uses."""
        return self._fingerprint

    def refuses(self, problem: Problem) -> str | None:
        """None when the library can do `problem` by more than reference loops, else why not."""
        try:
            _ = problem.dtype.numpy
        except EngineMissing as missing:
            return str(missing)
        reason = cannot(problem)
        if reason is not None or not prod(problem.result_shape):
            return reason
        if best(self._runtime, problem, 1) is None:
            return f"libdnnl {self._runtime.version} has only slow reference loops for it here"
        return None

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """The ways that lead to more than reference loops, besides the one taken without asking."""
        if not prod(problem.result_shape):
            return ("",)
        found = [way for way in ways(problem, every=True) if self._candidate(problem, threads, way)]
        return ("", *(way.value for way in found[1:]))

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """Create what the library needs for a problem; a millisecond or a few."""
        if not prod(problem.result_shape):
            return Empty()
        if variant:
            found = self._candidate(problem, threads, Way(variant))
        else:
            found = best(self._runtime, problem, threads)
        if found is None:
            raise EngineRefusal(f"libdnnl has no implementation of {problem}")
        return OnednnPrimitive(self._runtime, problem, threads, found)

    def _candidate(self, problem: Problem, threads: int, way: Way) -> Candidate | None:
        return candidate(self._runtime, problem, threads, way)
