"""The rewriting of one axis into a convolution, against the definition of a transposed one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.one_axis import transposed
from upconv.errors import ShapeError
from upconv.geometry import Axis
from upconv.subpixel import SubPixel, folded, thriftiest, waste


def convolved(x: np.ndarray, w: np.ndarray, taps: tuple[int, ...], form: SubPixel) -> np.ndarray:
    """One phase: the correlation of x, with the form's zeros around it, and the chosen taps."""
    kernel = np.append(w, 0.0)[list(taps)]  # NO_TAP is -1: the zero at the end
    begin, end = form.zeros
    x = np.pad(x, (max(begin, 0), max(end, 0)))[max(-begin, 0) :]
    x = x[: len(x) - max(-end, 0)]
    length = len(x) - form.dilation * (len(kernel) - 1)
    return np.array(
        [
            sum(x[j + u * form.dilation] * kernel[u] for u in range(len(kernel)))
            for j in range(length)
        ]
    )


@st.composite
def axes(draw: st.DrawFn) -> Axis:
    numbers = st.integers(1, 6)
    size, kernel, stride, dilation = (draw(numbers) for _ in range(4))
    try:
        axis = Axis(
            size + 3, kernel, stride, dilation, draw(st.integers(-4, 6)), draw(st.integers(-4, 6))
        )
    except ShapeError:
        assume(False)
    assume(axis.out > 0)
    return axis


@given(axes(), st.integers(0, 2**32 - 1))
def test_one_convolution_and_a_shuffle_are_the_transposed_convolution(
    axis: Axis, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(axis.size), rng.standard_normal(axis.kernel)
    for form in (folded(axis), thriftiest(axis)):
        assume(form.fits(axis.size))
        rows = [convolved(x, w, taps, form) for taps in form.taps]
        shuffled = np.stack(rows, axis=1).ravel()
        y = shuffled[form.cut[0] : len(shuffled) - form.cut[1]]
        np.testing.assert_allclose(y, transposed(x, w, axis), atol=1e-12)


@given(axes(), st.integers(0, 2**32 - 1))
def test_one_convolution_per_phase_is_the_transposed_convolution(axis: Axis, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(axis.size), rng.standard_normal(axis.kernel)
    rows = []
    for r in range(axis.stride):
        form = SubPixel.of_phase(axis, r)
        assume(form.fits(axis.size))
        rows.append(convolved(x, w, form.taps[0], form))
    y = np.stack(rows, axis=1).ravel()[: axis.out]
    np.testing.assert_allclose(y, transposed(x, w, axis), atol=1e-12)


@given(axes())
def test_the_thriftiest_form_never_wastes_more_than_the_folded_one(axis: Axis) -> None:
    assert waste([axis], [thriftiest(axis)]) <= waste([axis], [folded(axis)])
    assert waste([axis], [thriftiest(axis)]) >= 1 or axis.dilation > 1


@pytest.mark.parametrize(
    ("k", "s", "p", "fewest", "without_a_cut"),
    [
        (2, 2, 0, 1, 1), (3, 2, 1, 2, 2), (4, 2, 1, 2, 3), (5, 2, 2, 3, 3), (6, 2, 2, 3, 3),
        (9, 2, 4, 5, 5), (8, 4, 2, 2, 3), (16, 8, 4, 2, 3), (5, 3, 1, 2, 3),
    ],
)  # fmt: skip
def test_kernels_are_as_long_as_the_published_identities_say(
    k: int, s: int, p: int, fewest: int, without_a_cut: int
) -> None:
    axis = Axis(7, k, s, 1, p, p)
    assert (thriftiest(axis).kernel, folded(axis).kernel) == (fewest, without_a_cut)


def test_stride_1_is_the_reversed_kernel() -> None:
    form = folded(Axis(size=9, kernel=3, stride=1, dilation=2, crop_begin=1, crop_end=3))
    assert form == SubPixel(taps=((2, 1, 0),), dilation=2, zeros=(3, 1), cut=(0, 0))


def test_of_all_cuts_the_thriftiest_is_the_shortest() -> None:
    for k in range(1, 8):
        for s in (1, 2, 3, 5, 20):
            for p in range(-5, 9):
                axis = Axis(9, k, s, 1, p, 0)
                every = [SubPixel.of(axis, cut) for cut in range(s)]
                shortest = min((form.kernel, form.cut) for form in every)
                found = thriftiest(axis)
                assert (found.kernel, found.cut) == shortest, axis
