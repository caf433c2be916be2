"""An engine that counts its calls."""

from __future__ import annotations

import time

from upconv.engines import load
from upconv.geometry import Axis
from upconv.problem import Direction, Problem

BASE = Problem(Direction.FORWARD, (Axis(5, 3, 2, 1, 1, 0), Axis(7, 4, 3)), 2, 6, 12, 3)


class CountingEngine:
    """The reference engine with a count of its calls."""

    name = "counting"

    def __init__(self, seconds: float = 0.0, nbytes: int = 100, fails: bool = False) -> None:
        self.seconds, self.nbytes, self.fails = seconds, nbytes, fails
        self.version = "1"
        self.built: list[Problem] = []
        self.closed: list[Problem] = []

    def fingerprint(self) -> str:
        return self.version

    def refuses(self, problem: Problem) -> str | None:
        return "it counts forward only" if problem.direction is Direction.INPUT_GRAD else None

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        return ("", "other")

    def build(self, problem: Problem, threads: int, variant: str = "") -> CountingPrimitive:
        self.built.append(problem)
        time.sleep(self.seconds)
        if self.fails:
            raise ZeroDivisionError("the build went wrong")
        return CountingPrimitive(self, problem, threads)


class CountingPrimitive:
    description, predicted_cycles = "it counts", 0.0

    def __init__(self, engine: CountingEngine, problem: Problem, threads: int) -> None:
        self.inner = load("reference").build(problem, threads)
        self.engine, self.problem = engine, problem
        self.workspace_bytes = self.inner.workspace_bytes
        self.resident_bytes = engine.nbytes
        self.is_closed = False

    def pack(self, weight):
        return self.inner.pack(weight)

    def run(self, *operands) -> None:
        self.inner.run(*operands)
        assert not self.is_closed, "closed while it ran"

    def close(self) -> None:
        self.is_closed = True
        self.engine.closed.append(self.problem)
