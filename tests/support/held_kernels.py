"""A kernel, or a variant of an engine, as an engine for `testing.check`."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from upconv import testing
from upconv.engines import load
from upconv.engines.base import Primitive
from upconv.engines.jit.operands import Kernel
from upconv.problem import Problem


@dataclass(frozen=True)
class Held:
    """An engine that makes one kind of primitive; `name` appears in failures."""

    name: str
    make: Callable[[Problem, int], Primitive]

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """Build the primitive, whatever the variant."""
        return self.make(problem, threads)


def packed_before_and_in_call(kernel: Kernel, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return the results with the weight packed before the call, and during it."""
    given = testing.operands(problem)
    before, after = given.before.copy(), given.before.copy()
    kernel.run(before, given.a, kernel.pack(given.b), given.bias)
    kernel.run_once(after, given.a, given.b, given.bias)
    return before, after


def specials_stay(engine: object, problem: Problem, given: testing.Operands) -> None:
    """Assert that NaN and infinity are where the reference engine has them, with some of each."""
    got, wanted = (
        testing.compute(each, problem, given).astype(np.float32)
        for each in (engine, load("reference"))
    )
    for special in (np.isnan, np.isinf):
        assert np.array_equal(special(got), special(wanted))
        assert special(got).any()
