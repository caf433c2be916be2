"""What is told of arrays, for those who call native code with them."""

import ml_dtypes
import numpy as np
import pytest

from upconv.engines.addresses import address_of


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3), np.float32), np.zeros((4, 6), np.float16)[1:3, ::2],
        np.zeros((4, 6))[::-1], np.zeros(5, ml_dtypes.bfloat16), np.zeros((0, 3)), np.zeros(()),
        read_only(np.zeros(4)), np.broadcast_to(np.float32(1), (3, 3)),
    ],
)  # fmt: skip
def test_the_address_of_any_array_is_that_of_its_first_element(array: np.ndarray) -> None:
    assert address_of(array) == array.__array_interface__["data"][0]
