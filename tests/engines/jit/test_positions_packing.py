"""Weights that the positions kernel packs in parts of their input channels."""

import pytest

from tests.support.held_kernels import Held
from upconv import testing
from upconv.engines import load
from upconv.engines.base import Primitive
from upconv.engines.jit import packing
from upconv.engines.jit.positions.candidates import POSITIONS
from upconv.geometry import Axis
from upconv.problem import Direction, Problem


def built(problem: Problem, threads: int) -> Primitive:
    return load("jit").build(problem, threads, POSITIONS)


@pytest.mark.parametrize("run_bytes", [1, 1 << 13, 1 << 14, 1 << 30])
@pytest.mark.parametrize("threads", [1, 3])
def test_parts_of_any_size_give_the_right_values(
    run_bytes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an input gradient all weights of a result are adjacent, and results lie apart. 13 results
    are three blocks of each group, and 150 input channels up to 19 parts."""
    monkeypatch.setattr(packing, "_RUN_BYTES", run_bytes)
    layer = Problem(Direction.INPUT_GRAD, (Axis(9, 3),) * 2, 2, 26, 300, groups=2)
    testing.check(Held(f"parts of {run_bytes} bytes", built), layer, threads=threads)
