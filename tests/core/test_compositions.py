"""Axes put together, against the products that each of them makes."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.one_axis import axes, contributions
from upconv.geometry import Axis
from upconv.subpixel import behind, cropped


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
