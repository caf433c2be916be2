"""Weights that are packed by parts, each by the thread that multiplies by it."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

from tests.support.held_kernels import packed_before_and_in_call
from tests.support.tile_engines import LOWERINGS, TileEngine, random_layers
from upconv import testing
from upconv.engines.jit.kernel_choice import interior_of
from upconv.engines.jit.tiles import walks
from upconv.engines.nonfinite import NonFinite
from upconv.geometry import Axis
from upconv.problem import NO_EPILOGUE, DataLayout, Direction, DType, Problem

L2 = 1 << 18
"""Bytes of the second-level cache, of which the weights of a job fill a quarter."""
LAYERS = [
    Problem(Direction.INPUT_GRAD, axes, batch, *channels, groups=groups, dtype=DType.BFLOAT16)
    for batch, axes, channels, groups in (
        (2, (Axis(8, 4, 2, 1, 1, 1),) * 2, (840, 32), 1),  # the last block of outputs has 8
        (1, (Axis(5, 3, 1, 1, 1, 1), Axis(7, 5, 2, 1, 2, 2)), (2 * 400, 2 * 64), 2),
        (1, (Axis(9, 11, 3, 1, 4, 4),), (800, 96), 1),
        (1, (Axis(3, 1, 1),) * 3, (3200, 128), 1),
    )
]


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_threads_pack_what_they_multiply_by(
    number: int, threads: int, layout: DataLayout, lowering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, engine = LAYERS[number].replace(layout=layout), TileEngine(lowering, l2=L2)
    kernel = engine.kernel(problem, threads)
    assert 0 < kernel._slab * threads < kernel.order.nbytes
    for _ in range(3):  # the first call binds, later ones repeat it
        before, after = packed_before_and_in_call(kernel, problem)
        assert before.tobytes() == after.tobytes()
    given = testing.operands(problem)
    given.b.reshape(-1)[-1] = np.inf
    with pytest.raises(NonFinite):
        kernel.run_once(given.before.copy(), given.a, given.b)
    # The fault: the last row's job packs the first row's weights.
    rows = walks._rows

    def planted(*arguments: object) -> np.ndarray:
        table = rows(*arguments)
        table["piece"][-1] = 0
        return table

    monkeypatch.setattr(walks, "_rows", planted)
    before, after = packed_before_and_in_call(engine.kernel(problem, threads), problem)
    assert before.tobytes() != after.tobytes()


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_random_layers_have_the_same_bits(lowering: str) -> None:
    count = 0
    for seed, drawn, threads in random_layers(iter(range(80))):
        # Many channels: few taps are merged, and each weight belongs to one job.
        more = {"in_channels": drawn.in_channels * 16, "out_channels": drawn.out_channels * 16}
        problem = replace(drawn, epilogue=NO_EPILOGUE, direction=Direction.INPUT_GRAD, **more)
        inner = interior_of(problem, margins=True).problem
        if inner is None:
            continue
        problem = inner
        kernel = TileEngine(lowering, l2=L2).kernel(problem, threads)
        before, after = packed_before_and_in_call(kernel, problem)
        assert before.tobytes() == after.tobytes(), seed
        count += kernel._slab > 0
    assert count > 5, count
