"""The report's drawings: what they say about an axis is what the scatter definition says."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")
pytest.importorskip("jinja2")

import onnx_reports as cases
from upconv.geometry import Axis, fitted
from upconv.onnx.optimizing.results import AxisFacts
from upconv.onnx.report import as_html, drawings, figures
from upconv.onnx.report.cells import CELL


@st.composite
def axes(draw: st.DrawFn) -> Axis:
    size, kernel = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    full = fitted(size, kernel, stride, dilation, 0, 0).full
    begin, end = draw(st.integers(-2, full // 2)), draw(st.integers(-2, full // 2 - 1))
    return Axis(size, kernel, stride, dilation, begin, min(end, full - begin - 1))


def facts(axis: Axis) -> AxisFacts:
    crops = axis.crop_begin, axis.crop_end
    return AxisFacts(axis.size, axis.kernel, axis.stride, axis.dilation, *crops, axis.out)


@given(axes())
def test_a_drawing_says_which_taps_make_what(axis: Axis) -> None:
    """Against the scatter definition, read back from the drawing's own boxes and words."""
    drawing = drawings.drawn(facts(axis))
    root = ElementTree.fromstring(f"<svg>{drawing.sheet.body}</svg>")
    panels = root.findall("svg")
    if len(panels) > 1:
        return  # the ends of a long axis; what they hold is the same, from other positions
    start = min(0, -axis.crop_begin)
    words = [
        (start + (float(text.get("x")) - CELL / 2) / CELL, float(text.get("y")), text.text)
        for group in panels[0].findall("g")
        if "dim" not in group.get("class").split()
        for text in group
    ]
    heights = sorted({y for _, y, _ in words})
    outputs = {(o, word) for o, y, word in words if y == heights[-1]}
    shown = {(o, word) for o, y, word in words if 30 < y < heights[-1]}
    crowded = {o for o, word in shown if word == "…"}  # more taps than a box has lines for
    taps = {(o, int(word)) for o, word in shown if word != "…"}
    scattered = {
        (axis.stride * i + axis.dilation * t - axis.crop_begin, t)
        for i in range(axis.size)
        for t in range(axis.kernel)
    }
    assert taps <= scattered
    assert {o for o, _ in scattered - taps} == crowded
    phases = axis.phases()
    assert outputs == {
        (o, str(o % axis.stride) if phases[o % axis.stride].taps else "b") for o in range(axis.out)
    }


@given(axes())
def test_a_phase_formula_computes_the_output(axis: Axis) -> None:
    """Formulas of a drawing, evaluated, against sums over the scatter definition."""
    x = {i: 3.0 + i * i for i in range(axis.size)}
    w = [1.0 + 0.5 * t for t in range(axis.kernel)]
    expected = dict.fromkeys(range(axis.out), 0.0)
    for i in range(axis.size):
        for t in range(axis.kernel):
            o = axis.stride * i + axis.dilation * t - axis.crop_begin
            if o in expected:
                expected[o] += x[i] * w[t]
    for phase in drawings.drawn(facts(axis)).phases:
        if "…" in phase.formula:
            continue
        left, right = phase.formula.split(" = ")
        terms = re.findall(r"x\[j([+\u2212]\d+)?\]·w(\d+)", right)
        scale, offset = re.fullmatch(r"y\[(\d*)j(?:\+(\d+))?\]", left).groups()
        for j in range(phase.length):
            o = int(scale or 1) * j + int(offset or 0)
            value = sum(
                x.get(j + int((shift or "0").replace(figures.MINUS, "-")), 0.0) * w[int(tap)]
                for shift, tap in terms
            )
            assert value == pytest.approx(expected[o])


HUGE = 1 << 44


@pytest.mark.parametrize(
    "axis",
    [
        AxisFacts(HUGE, 3, 2, 1, 0, 0, 2 * HUGE + 1),
        AxisFacts(HUGE, HUGE, 1, 1, 0, 0, 2 * HUGE - 1),
        AxisFacts(4, HUGE, HUGE, 1, 0, 0, 4 * HUGE),
        AxisFacts(4, 4, HUGE, HUGE, 0, 0, 6 * HUGE + 1),
        AxisFacts(1, 1, 1, 1, -HUGE, -HUGE, 2 * HUGE + 1),
        AxisFacts(1, 1, 1, 1, -HUGE, HUGE, 1),
        AxisFacts(HUGE, HUGE, HUGE, HUGE, 0, 0, (HUGE - 1) * HUGE * 2 + 1),
    ],
)
def test_a_huge_axis_is_drawn_small(axis: AxisFacts) -> None:
    drawing = drawings.drawn(axis)
    assert drawing.sheet is not None
    assert len(drawing.sheet.body) < 20_000
    assert drawing.sheet.width < 1_300
    numbers = re.findall(r"-?\d+(?:\.\d+)?(?:e\+?\d+)?", re.sub(r">[^<]*<", "", drawing.sheet.body))
    assert all(abs(float(number)) < 5_000 for number in numbers)


@pytest.mark.parametrize(
    ("axis", "says"),
    [
        (AxisFacts(0, 3, 2, 1, 0, 0, 1), "nothing to draw"),
        (AxisFacts(2, 3, 2, 1, 5, 0, 0), "nothing to draw"),
        (AxisFacts(2, 0, 2, 1, 0, 0, 0), "kernel is 0"),
        (AxisFacts(2, 3, 2, 1, 0, 0, 7), "7 outputs were seen, 5 expected"),
        (AxisFacts(-1, 3, 1 << 60, 1, 0, 0, 7), "Not drawn"),
    ],
)
def test_an_axis_that_cannot_be_drawn_says_why(axis: AxisFacts, says: str) -> None:
    drawing = drawings.drawn(axis)
    assert drawing.sheet is None
    assert says in drawing.sentence
    layer = replace(cases.sample().layers[0], axes=(axis,))
    assert says in as_html(replace(cases.sample(), layers=(layer,)))


@given(axes(), st.integers(0, 40), st.integers(1, 40))
def test_any_axis_is_drawn(axis: Axis, size: int, kernel: int) -> None:
    grown = fitted(size, kernel, axis.stride * 5, axis.dilation, axis.crop_begin, axis.out)
    assert len((drawings.drawn(facts(grown)).sheet or drawings.Sheet(0, 0)).body) < 40_000
