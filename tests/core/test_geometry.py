"""Axis and IndexSet against the scatter definition, spelled out as loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.one_axis import axes, contributions
from upconv.engines.im2col import IndexSet
from upconv.errors import ArgumentError, ShapeError
from upconv.geometry import LIMIT, Axis, centred, convolved, fitted, padded, same_padding


@given(axes())
def test_phases_make_every_output_from_exactly_its_products(axis: Axis) -> None:
    met, outputs = set(), []
    for phase in axis.phases():
        for j in range(phase.length):
            o = axis.stride * j + phase.offset
            outputs.append(o)
            met |= {
                (o, j - tap.shift, tap.index)
                for tap in phase.taps
                if 0 <= j - tap.shift < axis.size
            }
    assert sorted(outputs) == list(range(axis.out))
    assert met == contributions(axis)


@given(axes())
def test_products_and_reach_are_those_of_the_uncropped_scatter(axis: Axis) -> None:
    whole = fitted(axis.size, axis.kernel, axis.stride, axis.dilation, 0, max(axis.full, 0))
    scattered = {(o - axis.crop_begin, i, t) for o, i, t in contributions(whole)}
    assert axis.uncropped == range(-axis.crop_begin, axis.full - axis.crop_begin)
    told = [(o, each.input, each.tap) for o in axis.uncropped for each in axis.products(o)]
    assert set(told) == scattered
    assert told == sorted(told), "not in order of input"
    assert axis.products(axis.uncropped.stop) == axis.products(-axis.crop_begin - 1) == ()
    for i in range(axis.size):
        reached = [o for o, by, _ in scattered if by == i]
        assert axis.reach(i) == range(min(reached), max(reached) + 1)


@given(axes(), st.integers(0, 30), st.integers(0, 30))
def test_reads_holds_every_input_that_reaches(axis: Axis, lo: int, hi: int) -> None:
    lo, hi = min(lo, axis.out), min(hi, axis.out)
    reaching = {i for o, i, _ in contributions(axis) if lo <= o < hi}
    reads = axis.reads(lo, hi)
    assert reaching <= set(reads)
    assert set(reads) <= set(range(axis.size))
    if hi - lo >= axis.stride and axis.dilation == 1 and axis.kernel >= axis.stride:
        assert reaching == set(reads), "the interval is not the smallest"


@given(axes(), st.integers(0, 30), st.integers(0, 30))
def test_a_part_is_the_same_outputs_of_fewer_inputs(axis: Axis, lo: int, hi: int) -> None:
    lo, hi = min(lo, axis.out), min(max(lo, hi), axis.out)
    part, inputs = axis.part(lo, hi)
    moved = {(o + lo, i + inputs.start, t) for o, i, t in contributions(part)}
    assert part.out == hi - lo
    assert moved == {(o, i, t) for o, i, t in contributions(axis) if lo <= o < hi}


@given(axes())
def test_used_taps_holds_every_tap_that_reaches(axis: Axis) -> None:
    reaching = {t for _, _, t in contributions(axis)}
    assert reaching <= set(axis.used_taps()) <= set(range(axis.kernel))
    if axis.stride == 1 and axis.size and axis.out:
        assert reaching == set(axis.used_taps()), "the interval is not the smallest"


@given(axes())
def test_trimmed_keeps_every_product(axis: Axis) -> None:
    trimmed = axis.trimmed()
    assert trimmed.axis.out == axis.out
    if trimmed.inputs:
        assert (trimmed.axis.size, trimmed.axis.kernel) == (len(trimmed.inputs), len(trimmed.taps))
    moved = {
        (o, i + trimmed.inputs.start, t + trimmed.taps.start)
        for o, i, t in contributions(trimmed.axis)
    }
    assert moved == contributions(axis)


@given(axes(), st.integers(1, 7))
def test_an_index_set_lays_every_product_on_its_window(axis: Axis, rows: int) -> None:
    index_set = IndexSet.of(axis)
    met: list[tuple[int, int, int]] = []
    for first in range(0, index_set.size, rows):  # in slabs, as engines do
        inputs = range(index_set.size)[first : first + rows]
        for run in index_set.conflict_free(len(inputs)):
            pairs = [(i, t) for i in inputs[run.inputs] for t in range(index_set.kernel)[run.taps]]
            places = [
                index_set.origin + index_set.stride * i + index_set.dilation * t for i, t in pairs
            ]
            assert len(set(places)) == len(places), "two products of one run meet"
            assert all(0 <= place < index_set.length for place in places)
            met += [
                (
                    place - index_set.window.start,
                    i + index_set.inputs.start,
                    t + index_set.taps.start,
                )
                for place, (i, t) in zip(places, pairs, strict=True)
            ]
    assert index_set.window.stop - index_set.window.start == axis.out
    assert index_set.window.stop <= index_set.length
    assert len(set(met)) == len(met) == index_set.size * index_set.kernel
    assert {product for product in met if 0 <= product[0] < axis.out} == contributions(axis)
    if index_set.is_tiled:
        assert len({o for o, _, _ in met}) == index_set.length


def test_the_fewer_conflict_free_sets_are_taken() -> None:
    assert sum(1 for _ in IndexSet.of(Axis(2, 1000)).conflict_free(2)) == 2
    assert sum(1 for _ in IndexSet.of(Axis(1000, 2)).conflict_free(1000)) == 2
    assert sum(1 for _ in IndexSet.of(Axis(10, 1000, stride=250)).conflict_free(10)) == 4
    assert sum(1 for _ in IndexSet.of(Axis(1, 10**9)).conflict_free(1)) == 1


@pytest.mark.parametrize(
    ("axis", "full", "out", "period"),
    [
        (Axis(3, 3, 2), 7, 7, 2),
        (Axis(3, 3, 2, 1, 1, 0), 7, 6, 2),
        (Axis(5, 3, 4, 6, -2, 3), 29, 28, 2),
        (Axis(1, 1, 9), 1, 1, 9),
        (Axis(0, 5, 2), 3, 3, 2),
    ],
)
def test_sizes(axis: Axis, full: int, out: int, period: int) -> None:
    assert (axis.full, axis.out, axis.period) == (full, out, period)


def test_constructors() -> None:
    assert padded(4, 3, 2, 1, 1, 1, 3) == Axis(4, 3, 2, 1, 1, -2)
    assert fitted(4, 3, 2, 1, 1, 12) == Axis(4, 3, 2, 1, 1, -4)
    # An odd total of 1: from the end (upper), or from the begin.
    assert centred(5, 3, 2, 1, 10, upper=True) == Axis(5, 3, 2, 1, 0, 1)
    assert centred(5, 3, 2, 1, 10, upper=False) == Axis(5, 3, 2, 1, 1, 0)
    # A negative total extends the end, whichever the rule.
    assert centred(3, 3, 4, 1, 12, upper=False) == Axis(3, 3, 4, 1, 0, -1)
    # 9 inputs under kernel 3, stride 4: the last two are read by no output.
    assert convolved(9, 3, 4, 1, 0, 0) == Axis(2, 3, 4, 1, 0, -2)
    assert same_padding(5, 3, 2, 1, upper=True) == (1, 1)
    assert same_padding(6, 3, 2, 1, upper=True) == (0, 1)
    assert same_padding(6, 3, 2, 1, upper=False) == (1, 0)
    assert same_padding(6, 1, 4, 1, upper=True) == (0, 0)


@given(axes(), st.integers(0, 40))
def test_a_convolution_reads_what_the_transpose_writes(axis: Axis, length: int) -> None:
    if length + 2 < axis.extent:
        return
    transposed = convolved(length, axis.kernel, axis.stride, axis.dilation, 1, 1)
    assert transposed.out == length
    x, w = np.arange(1.0, length + 1), np.arange(2.0, axis.kernel + 2)
    got = np.zeros(transposed.size)
    for o, i, t in contributions(transposed):
        got[i] += x[o] * w[t]
    zeros = np.concatenate([[0.0], x, [0.0]])
    wanted = [
        sum(zeros[axis.stride * i + axis.dilation * t] * w[t] for t in range(axis.kernel))
        for i in range((length + 2 - axis.extent) // axis.stride + 1)
    ]
    assert got.tolist() == wanted


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ((-1, 3), ArgumentError, "size is -1; expected an integer >= 0."),
        ((3, 0), ArgumentError, "kernel is 0; expected an integer >= 1."),
        ((3, 3, 0), ArgumentError, "stride is 0; expected an integer >= 1."),
        ((3, 3, 1, 0), ArgumentError, "dilation is 0; expected an integer >= 1."),
        ((3, 3, True), ArgumentError, "stride is True (bool); expected an int."),
        ((3, 3.0), ArgumentError, "kernel is 3.0 (float); expected an int."),
        ((LIMIT + 1, 3), ArgumentError, "expected an integer <= 2**48"),
        ((3, 3, 2, 1, 4, 4), ShapeError,
         "the output size is -1 = (3 - 1)*2 + 1*(3 - 1) + 1 - 4 - 4"),
    ],
)  # fmt: skip
def test_refusals(values: tuple, kind: type, message: str) -> None:
    with pytest.raises(kind) as caught:
        Axis(*values)
    assert message in str(caught.value)


def test_a_tap_meets_an_output_or_none() -> None:
    """By going through all inputs, for axes in which some taps jump over every output."""
    seen = set()
    for crop_begin in range(-2, 9):
        for out in range(1, 6):
            axis = fitted(2, 5, 7, 3, crop_begin, out)
            for t in range(axis.kernel):
                lands = {7 * i + 3 * t - crop_begin for i in range(2)}
                assert axis.meets(t) == bool(lands & set(range(out)))
                seen.add(axis.meets(t))
    assert seen == {True, False}


def test_without_margins_the_outputs_are_those_that_products_reach() -> None:
    for crop_begin, crop_end in ((-3, -2), (2, -4), (-1, 3), (1, 1)):
        axis = Axis(4, 3, 2, 1, crop_begin, crop_end)
        inner, place = axis.trimmed().without_margins()
        assert min(inner.crop_begin, inner.crop_end) >= 0
        reached = [o for o in range(axis.out) if 0 <= o + crop_begin < axis.full]
        assert list(range(axis.out))[place] == reached
        assert inner.out == len(reached)
