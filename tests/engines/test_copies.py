"""Arrays in the order of their axes, however they lay before."""

import ml_dtypes
import numpy as np
import pytest

from upconv.engines.copies import contiguous

SHAPES = [
    (1, 64, 12, 20), (2, 40, 5, 7, 9), (3, 130, 100), (2, 3, 150, 50), (1, 256, 33),
    (5, 40, 1, 70), (1, 1, 1, 9000), (40, 300),
]  # fmt: skip
WAYS = {
    "channels last": lambda made: np.moveaxis(made(1, -1), -1, 1),
    "turned": lambda made: made(0, 1, turned=True).T,
    "a part": lambda made: np.moveaxis(made(1, -1, wide=3), -1, 1)[..., 2:],
    "every other": lambda made: np.moveaxis(made(1, -1, wide=2), -1, 1)[:, ::2],
    "backwards": lambda made: np.moveaxis(made(1, -1), -1, 1)[..., ::-1, ::-1],
    "contiguous": lambda made: made(0, 0),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_copy_has_the_same_elements_in_order(shape, way, dtype) -> None:
    def made(axis: int, end: int, turned: bool = False, wide: int = 1) -> np.ndarray:
        sizes = list(shape[::-1] if turned else shape)
        if not turned:
            sizes.insert(end % len(sizes), sizes.pop(axis))
        sizes[-1] *= wide
        sizes[1] += 2 * (wide == 3)
        return (np.arange(np.prod(sizes)) % 1009).reshape(sizes).astype(dtype)

    array = WAYS[way](made)
    got = contiguous(array)
    assert got.flags.c_contiguous
    assert (got is array) is array.flags.c_contiguous
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert np.array_equal(got, np.array(array, order="C"))


def test_what_is_spread_and_what_is_empty() -> None:
    spread = np.broadcast_to(np.arange(9000.0), (3, 9000)).T
    assert np.array_equal(contiguous(spread), spread)
    for shape in ((0, 4, 5), (4, 0), (1, 1)):
        assert contiguous(np.zeros(shape)[..., ::-1]).shape == shape
