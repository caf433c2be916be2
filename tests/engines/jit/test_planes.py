"""The planes kernel: which layers it takes, and values where its tiles meet borders."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from upconv import testing
from upconv.activations import Activation
from upconv.engines import load
from upconv.engines.base import Candidate
from upconv.engines.jit import kernel_choice
from upconv.engines.jit.cpu import host
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem

needs_masks = pytest.mark.skipif(host().vector_bytes < 32, reason="for AVX2 and AVX-512")


@pytest.fixture(autouse=True)
def planes_wherever_possible(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another kernel may be faster for layers as small as these."""

    def kernels(*given: object) -> list[Candidate]:
        listed = [each for each in kernel_choice.planes(*given) if each.possible]  # type: ignore[arg-type]
        return listed or list(kernel_choice.channels(*given))  # type: ignore[arg-type]

    monkeypatch.setattr(kernel_choice, "KERNELS", (kernels,))
    kernel_choice.table.cache_clear()
    yield
    kernel_choice.table.cache_clear()


def problem(*axes: Axis, channels: int = 3, **more: object) -> Problem:
    """An ordinary depthwise convolution."""
    return Problem(Direction.INPUT_GRAD, axes, 2, channels, channels, channels, **more)  # type: ignore[arg-type]


def described(asked: Problem) -> str:
    return load("jit").build(asked, 1).description


SIDES = [
    Axis(size, kernel, stride, dilation, crop, crop)
    for (size, kernel), stride, dilation, crop in product(
        ((7, 3), (16, 7), (33, 5), (50, 2)), (1, 2), (1, 2), (-2, 0, 1)
    )
]


OTHERS = [
    ((), {}),
    ((Axis(9, 3, 1, 2, 1, 2),), {"bias": True, "epilogue": Epilogue(Activation.RELU)}),
    ((Axis(4, 2, 3),), {"dtype": DType.BFLOAT16, "epilogue": Epilogue(Activation.RELU)}),
    ((Axis(3, 3, 2, 1, 1, 1), Axis(8, 5, 1, 1, 2, 2)), {"accumulate": True}),
    ((Axis(5, 4),), {"dtype": DType.FLOAT64, "epilogue": Epilogue(residual=True)}),
]


@needs_masks
@pytest.mark.parametrize(("layout", "channels"), [(DataLayout.NCX, 3), (DataLayout.NXC, 19)])
@pytest.mark.parametrize(("number", "last"), list(enumerate(SIDES)), ids=str)
def test_values(number: int, last: Axis, layout: DataLayout, channels: int) -> None:
    """Each last axis with one of the other axes and epilogues in each layout, in turn."""
    rows, more = OTHERS[(number + channels) % 5]
    asked, engine = problem(*rows, last, channels=channels, layout=layout, **more), load("jit")
    masked = host().vector_bytes == 64 or asked.dtype.itemsize >= 4
    assert described(asked).startswith("planes") is masked
    testing.check(engine, asked)
    given = testing.operands(asked)
    found = testing.compute(engine, asked, given, threads=1)
    for threads in (2, 5):
        assert testing.compute(engine, asked, given, threads).tobytes() == found.tobytes(), threads


@needs_masks
def test_what_it_leaves_to_others() -> None:
    wide, few = Axis(40, 3, 1, 1, 1, 1), host().lanes(4) // 3
    assert described(problem(wide)).startswith("planes")
    for other in (
        problem(Axis(few, 3, 1, 1, 1, 1)),  # a third of a vector
        problem(Axis(40, 3, 3)),  # every third position
        problem(Axis(400, 3, 1, 60)),  # shifts far apart
        problem(wide, channels=1),
        problem(wide, channels=few, layout=DataLayout.NXC),
    ):
        assert not described(other).startswith("planes"), other


@needs_masks
def test_nothing_comes_from_beside_a_row() -> None:
    x = np.zeros((1, 2, 9, 20), np.float32)
    x[:, 1] = np.nan
    x[0, 0, 4, 19] = np.inf
    asked = problem(*(Axis(n, 3, 1, 1, 1, 1) for n in (9, 20)), channels=2)
    primitive = load("jit").build(asked.replace(batch=1), 1)
    out = np.empty_like(x)
    primitive.run(out, x, primitive.pack(np.ones((2, 1, 3, 3), np.float32)))
    assert np.isnan(out[:, 1]).all()
    reached = np.zeros((9, 20), bool)
    reached[3:6, 18:] = True
    assert (np.isinf(out[0, 0]) == reached).all()
    assert not np.isnan(out[0, 0]).any()
