"""One axis by the definition: which products contribute to which output, and their sums."""

import numpy as np
from hypothesis import strategies as st

from upconv.geometry import Axis, fitted


@st.composite
def axes(draw: st.DrawFn) -> Axis:
    size, kernel = draw(st.integers(0, 7)), draw(st.integers(1, 7))
    stride, dilation = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    begin, out = draw(st.integers(-9, 30)), draw(st.integers(0, 30))
    return fitted(size, kernel, stride, dilation, begin, out)


def contributions(axis: Axis) -> set[tuple[int, int, int]]:
    """Return every contributing (output, input, tap), by the definition."""
    return {
        (axis.stride * i + axis.dilation * t - axis.crop_begin, i, t)
        for i in range(axis.size)
        for t in range(axis.kernel)
        if 0 <= axis.stride * i + axis.dilation * t - axis.crop_begin < axis.out
    }


def transposed(x: np.ndarray, w: np.ndarray, axis: Axis) -> np.ndarray:
    """Return y by its definition: add every product at its output."""
    y = np.zeros(axis.out)
    for o, i, t in contributions(axis):
        y[o] += x[i] * w[t]
    return y
