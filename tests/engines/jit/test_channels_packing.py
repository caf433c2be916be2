"""Weights of the channels kernel that are packed by parts, each by the thread that
multiplies by it."""

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.support.held_kernels import Held, packed_before_and_in_call
from upconv import testing
from upconv.engines.jit.channels import tables
from upconv.engines.jit.channels.primitive import Channels
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import host
from upconv.engines.jit.kernel_choice import interior_of
from upconv.engines.nonfinite import NonFinite
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Problem

L2 = 1 << 16
"""Bytes of the second-level cache: blocks of outputs have several passes."""
LAYERS = [
    Problem(Direction.INPUT_GRAD, axes, batch, *channels, groups=groups)
    for batch, axes, channels, groups in (
        (2, (Axis(3, 4, 2, 1, 1, 1),) * 2, (1000, 32), 1),  # the last block of outputs is ragged
        (1, (Axis(5, 3, 1, 1, 1, 1), Axis(7, 5, 2, 1, 2, 2)), (2 * 768, 2 * 24), 2),
        (1, (Axis(9, 11, 3, 1, 4, 4),), (768, 96), 1),
        (1, (Axis(3, 1, 1),) * 3, (3200, 40), 1),
    )
]


def kernel_of(problem: Problem, threads: int) -> Channels:
    return Channels(Correlation.of(problem), threads, replace(host(), l2=L2), False)


@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_threads_pack_what_they_multiply_by(
    number: int, threads: int, layout: DataLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = LAYERS[number].replace(layout=layout)
    kernel = kernel_of(problem, threads)
    assert 0 < kernel._slab * threads < kernel.order.nbytes
    testing.check(Held("channels", kernel_of), problem, threads=threads)
    for _ in range(3):  # the first call binds, later ones repeat it
        before, after = packed_before_and_in_call(kernel, problem)
        assert before.tobytes() == after.tobytes()
    given = testing.operands(problem)
    given.b.reshape(-1)[-1] = np.inf
    with pytest.raises(NonFinite):
        kernel.run_once(given.before.copy(), given.a, given.b)
    # The fault: the last block is multiplied by the first block's weights.
    placed = tables.Passes.placed

    def planted(self: tables.Passes, data: object) -> dict[str, np.ndarray]:
        made = placed(self, data)
        made["passes"]["piece"][made["passes"]["piece"] == made["passes"]["piece"].max()] = 0
        return made

    monkeypatch.setattr(tables.Passes, "placed", planted)
    before, after = packed_before_and_in_call(kernel_of(problem, threads), problem)
    assert before.tobytes() != after.tobytes()


def test_random_layers_have_the_same_bits() -> None:
    rng, count = random.Random(3), 0
    for _ in range(40):
        axes = tuple(
            Axis(rng.randint(1, 9), rng.randint(1, 5), rng.randint(1, 3), 1, 0, 0)
            for _ in range(rng.choice((1, 2, 2, 3)))
        )
        groups, threads = rng.choice((1, 1, 2)), rng.choice((1, 2, 3))
        channels = groups * rng.choice((384, 500, 700)), groups * rng.choice((3, 17, 32))
        dtype, layout = rng.choice((DType.FLOAT32, DType.BFLOAT16)), rng.choice((*DataLayout,))
        problem = Problem(
            Direction.INPUT_GRAD, axes, rng.choice((1, 2)), *channels, groups, dtype, layout
        )
        inner = interior_of(problem, margins=True).problem
        if inner is None:
            continue
        kernel = kernel_of(inner, threads)
        before, after = packed_before_and_in_call(kernel, inner)
        assert before.tobytes() == after.tobytes(), inner
        count += kernel._slab > 0
    assert count > 10, count
