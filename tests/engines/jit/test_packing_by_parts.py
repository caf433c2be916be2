"""Weights that are packed by parts, each by the thread that multiplies by it."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

from tests.support.held_kernels import Held, packed_before_and_in_call
from tests.support.tile_engines import TileEngine, needs_amx
from upconv import testing
from upconv.engines.jit.channels import tables
from upconv.engines.jit.channels.primitive import Channels
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import AMX, host
from upconv.engines.jit.kernel_choice import interior_of
from upconv.engines.jit.operands import Kernel
from upconv.engines.jit.tiles import walks
from upconv.engines.nonfinite import NonFinite
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Problem

LAYERS = [
    (2, (Axis(5, 4, 2, 1, 1, 1),) * 2, (1000, 32), 1),  # the last block of outputs is ragged
    (1, (Axis(5, 3, 1, 1, 1, 1), Axis(7, 5, 2, 1, 2, 2)), (2 * 768, 2 * 64), 2),
    (1, (Axis(9, 11, 3, 1, 4, 4),), (800, 96), 1),
    (1, (Axis(3, 1, 1),) * 3, (3200, 128), 1),
    (1, (Axis(4, 1, 1),), (300, 900), 1),  # the channels of a tap have several passes
]


class Kind(NamedTuple):
    """A kernel whose second-level cache is small, its types, and what makes its table of parts."""

    make: Callable[[Problem, int], Kernel]
    dtypes: tuple[DType, ...]
    table: tuple[Any, str]


def channels_kernel(problem: Problem, threads: int) -> Kernel:
    """Blocks of outputs have several passes."""
    return Channels(Correlation.of(problem), threads, replace(host(), l2=1 << 16), False)


def of_tiles(instructions: str) -> Kind:
    """The weights of a job fill a quarter of the cache."""
    make = TileEngine(instructions, l2=1 << 18).kernel
    return Kind(make, (DType.BFLOAT16,), (walks, "_rows"))


CHANNELS = Kind(channels_kernel, (DType.FLOAT32, DType.BFLOAT16), (tables.Passes, "placed"))
KINDS = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(CHANNELS, id="channels"),
        pytest.param(of_tiles(AMX), id="tiles, AMX", marks=needs_amx),
        pytest.param(of_tiles(""), id="tiles, vector code"),
    ],
)


@KINDS
@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_threads_pack_what_they_multiply_by(
    number: int, threads: int, layout: DataLayout, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, axes, channels, groups = LAYERS[number]
    problem = Problem(Direction.INPUT_GRAD, axes, batch, *channels, groups, kind.dtypes[0], layout)
    kernel = kind.make(problem, threads)
    assert 0 < kernel._slab * threads < kernel.order.nbytes
    testing.check(Held("packing by parts", kind.make), problem, threads=threads)
    for _ in range(3):  # the first call binds, later ones repeat it
        before, after = packed_before_and_in_call(kernel, problem)
        assert before.tobytes() == after.tobytes()
    given = testing.operands(problem)
    given.b.reshape(-1)[-1] = np.inf
    with pytest.raises(NonFinite):
        kernel.run_once(given.before.copy(), given.a, given.b)
    _plant(kind, monkeypatch)
    before, after = packed_before_and_in_call(kind.make(problem, threads), problem)
    assert before.tobytes() != after.tobytes()


def _plant(kind: Kind, patch: pytest.MonkeyPatch) -> None:
    """The last part's job packs the first part's weights, or multiplies by them."""
    owner, name = kind.table
    real = getattr(owner, name)

    def planted(*given: object) -> Any:
        made = real(*given)
        pieces = (made["passes"] if owner is tables.Passes else made)["piece"]
        pieces[pieces == pieces.max()] = 0
        return made

    patch.setattr(owner, name, planted)


@KINDS
def test_random_layers_have_the_same_bits(kind: Kind) -> None:
    rng, count = random.Random(3), 0
    for _ in range(40):
        axes = tuple(
            Axis(rng.randint(1, 9), rng.randint(1, 5), rng.randint(1, 3), 1, 0, 0)
            for _ in range(rng.choice((1, 2, 2, 3)))
        )
        groups, threads = rng.choice((1, 1, 2)), rng.choice((1, 2, 3))
        channels = groups * rng.choice((384, 500, 700)), groups * rng.choice((3, 17, 32))
        dtype, layout = rng.choice(kind.dtypes), rng.choice((*DataLayout,))
        problem = Problem(
            Direction.INPUT_GRAD, axes, rng.choice((1, 2)), *channels, groups, dtype, layout
        )
        inner = interior_of(problem, margins=True).problem
        if inner is None:
            continue
        kernel = kind.make(inner, threads)
        before, after = packed_before_and_in_call(kernel, inner)
        assert before.tobytes() == after.tobytes(), inner
        count += kernel._slab > 0
    assert count > 10, count
