"""A kernel, or a variant of an engine, as the engine that `testing.check` is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from upconv.engines.base import Primitive
from upconv.problem import Problem


@dataclass(frozen=True)
class Held:
    """An engine by the name that failures tell, which makes a primitive for some threads."""

    name: str
    make: Callable[[Problem, int], Primitive]

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """The primitive, whatever variant is asked for."""
        return self.make(problem, threads)
