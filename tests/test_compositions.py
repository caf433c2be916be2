"""Axes put together, against the products that each of them makes."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from one_axis import axes, contributions, transposed
from upconv.compositions import Raised, behind, cropped, shuffled, without_taps
from upconv.geometry import Axis


@given(axes(), st.integers(-3, 3), st.integers(-3, 3))
def test_behind_zeros_or_a_cut_an_axis_makes_the_same_products(
    axis: Axis, begin: int, end: int
) -> None:
    assume(axis.size - max(begin, 0) - max(end, 0) >= 0)
    kept = range(max(begin, 0), axis.size - max(end, 0))  # zeros add nothing
    wanted = {(o, i - begin, t) for o, i, t in contributions(axis) if i in kept}
    found = behind(axis, begin, end)
    if found is None:
        assert begin < 0 or end < 0
        return
    assert found.out == axis.out
    assert contributions(found) == wanted


def test_behind_takes_a_cut_that_no_output_reads() -> None:
    """A kernel as long as its stride: what is cut of the input may as well be cut of the output."""
    assert behind(Axis(3, 2, 2), -1, -1) == Axis(5, 2, 2, 1, 2, 2)
    assert behind(Axis(3, 3, 2), -1, 0) is None
    assert behind(Axis(3, 3, 2, 1, 1), -1, 0) == Axis(4, 3, 2, 1, 3)


@given(axes(), st.integers(-4, 4), st.integers(-4, 4))
def test_cropping_moves_the_outputs_alone(axis: Axis, begin: int, end: int) -> None:
    assume(axis.out >= begin + end)
    moved_axis = cropped(axis, begin, end)
    assert moved_axis.out == axis.out - begin - end
    both = range(max(begin, 0), axis.out - max(end, 0))
    moved = {(o + begin, i, t) for o, i, t in contributions(moved_axis) if o + begin in both}
    assert moved == {entry for entry in contributions(axis) if entry[0] in both}


def convolved(z: np.ndarray, v: np.ndarray, dilation: int, begin: int, end: int) -> np.ndarray:
    z = np.pad(z, (begin, end))
    length = len(z) - dilation * (len(v) - 1)
    return sum(z[u * dilation :][:length] * v[u] for u in range(len(v)))


SMALL = st.integers(1, 4)


@given(SMALL, SMALL, SMALL, SMALL, st.integers(0, 6), st.integers(0, 6), st.booleans())
def test_raised_and_convolved_is_transposed(
    size: int, s: int, k: int, d: int, begin: int, end: int, repeats: bool
) -> None:
    rng = np.random.default_rng(size)
    x, v = rng.standard_normal(size), rng.standard_normal(k)
    z = np.repeat(x, s)
    raised = Raised.repeated(size, s)
    w = np.zeros(s + d * (k - 1))
    if repeats and s > 1:
        for r in range(s):
            w[r : r + d * (k - 1) + 1 : d] += v[::-1]
    else:
        z = np.where(np.arange(s * size) % s, 0, z)[: s * size - (s - 1)]
        raised, w = Raised.filled(size, s, 0, s - 1), v[::-1]
    assume(len(z) + begin + end > d * (k - 1))
    axis = raised.convolved(k, d, begin, end)
    assert raised.whole
    np.testing.assert_allclose(transposed(x, w, axis), convolved(z, v, d, begin, end), atol=1e-12)


def test_what_is_cut_off_is_not_whole() -> None:
    assert not Raised.filled(3, 2, 1, 0).whole
    assert not Raised.filled(3, 2, 0, 2).whole
    assert Raised.spread(Axis(3, 2, 2, 1, 0, 1), 0).whole
    assert not Raised.spread(Axis(3, 2, 2, 1, 1, 0), 0).whole
    assert Raised.spread(Axis(3, 2, 2, 1, 1, 0), 1).whole


@given(SMALL, SMALL, SMALL, SMALL, st.integers(0, 4), st.integers(0, 4))
def test_convolved_and_shuffled_is_transposed(
    size: int, s: int, k: int, d: int, begin: int, end: int
) -> None:
    assume(size + begin + end > d * (k - 1))
    rng = np.random.default_rng(size)
    x, v = rng.standard_normal(size), rng.standard_normal((s, k))
    rows = np.stack([convolved(x, v[r], d, begin, end) for r in range(s)])
    axis = shuffled(size, s, k, d, begin, end)
    w = np.zeros(axis.kernel)
    for r in range(s):
        w[r :: s * d] = v[r, ::-1]
    np.testing.assert_allclose(transposed(x, w, axis), rows.T.reshape(-1), atol=1e-12)


@given(axes(), st.integers(0, 3), st.integers(0, 3))
def test_taps_of_zero_may_go(axis: Axis, first: int, last: int) -> None:
    kept = range(first, axis.kernel - last)
    assume(kept)
    fewer = without_taps(axis, kept)
    found = {(o, i, t + first) for o, i, t in contributions(fewer)}
    assert found == {entry for entry in contributions(axis) if entry[2] in kept}
    assert fewer.out == axis.out
