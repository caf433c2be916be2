"""The table of shapes: what inference tells, and sizes that would end the process."""

from __future__ import annotations

import onnx_ir as ir
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")

from onnx_texts import normal, parsed
from upconv.onnx.models import from_model
from upconv.onnx.shapes import inferred

NEGATIVE = """g (float[1, 1, 3] x) => (float[1, 1, M] y)
    <float[1, 1, 4] w = {1, 2, 3, 4}, int64[1] s = {-3}, int64[1] e = {2}, int64[1] a = {2}>
    { c = ConvTranspose<pads = [5, 3]>(x, w) y = Slice(c, s, e, a) }"""


def test_sizes_follow_from_those_of_the_inputs() -> None:
    text = "g (float[N, 2, L] x) => (float[N, 2, M] y) { a = Relu(x) y = ConvTranspose(a, w) }"
    model = from_model(parsed(text, w=normal(0, 2, 2, 4)))
    table = inferred(model, {"x": (1, 2, 7)})
    assert (table["a"].sizes, table["y"].sizes, table["w"].sizes) == (
        (1, 2, 7),
        (1, 2, 10),
        (2, 2, 4),
    )
    opened = inferred(model)
    assert opened["a"].shape == ("N", 2, "L")
    assert opened["a"].sizes is None
    assert str(model.graph.inputs[0].shape) == "[N,2,L]"


def test_a_negative_size_before_a_slice_ends_a_process_that_is_not_ours() -> None:
    """onnx's own inference asserts here; what is declared must do."""
    table = inferred(from_model(parsed(NEGATIVE)))
    assert table["x"].sizes == (1, 1, 3)
    assert "c" not in table


def test_shapes_that_are_cut_are_followed() -> None:
    """A Slice of a computed shape is what many exporters write."""
    text = """g (float[2, 3, 4] x, float[24] v) => (float[A, B] y)
        <int64[1] s = {0}, int64[1] e = {1}, int64[1] m = {12}>
        { a = Shape(x) b = Slice(a, s, e) d = Concat<axis = 0>(b, m) y = Reshape(v, d) }"""
    assert inferred(from_model(parsed(text)), {"v": (24,)})["y"].sizes == (2, 12)


def test_a_name_of_two_values_is_not_told() -> None:
    text = """g (float[3] x, bool c) => (float[N] y) { y = If (c) <
        then_branch = t () => (float[P] u) { v = Neg(x) u = Relu(v) },
        else_branch = e () => (float[Q] u) { v = Concat<axis = 0>(x, x) u = Relu(v) }> }"""
    table = inferred(from_model(parsed(text)))
    assert "v" not in table
    assert table["x"].sizes == (3,)


def test_where_inference_fails_what_is_declared_must_do() -> None:
    model = ir.from_proto(parsed("g (float[3] x) => (float[N] y) { y = Neg(x) }"))
    model.graph[0].attributes["own"] = ir.AttrString("own", None)  # type: ignore[arg-type]
    assert inferred(model)["x"].sizes == (3,)
