"""Rewriting by profile: obeyed, proven, and told layer by layer; and the memory of forms."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx", reason="the models are ONNX's")
pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")

import onnx

from onnx_cases import random_case
from upconv.onnx import as_text, optimize
from upconv.onnx.optimizing.footprint import peak_bytes
from upconv.onnx.optimizing.results import ORIGINAL

TWO = """<ir_version: 8, opset_import: ["": 17]>
g (float[1, 2, 5] x) => (float[1, 2, 12] y)
<float[2, 1, 2] w = {1, 2, 3, 4}, float[2, 2, 3] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}> {
  a = ConvTranspose <group = 2, strides = [2]> (x, w)
  y = ConvTranspose (a, v)
}"""


@pytest.mark.parametrize("seed", range(12))
def test_every_profile_is_obeyed_and_proven(seed: int) -> None:
    case = random_case(seed)
    for profile in ("npu", "plain"):
        found = optimize(case.model, target="none", profile=profile, inputs={"x": case.x})
        assert found.proven
        if profile == "npu":
            assert "ConvTranspose" not in [node.op_type for node in found.proto.graph.node]
        assert not found.broken, (case, found.broken)


def test_a_profile_that_cannot_be_met_names_the_nodes() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1, 2, 5] x, float[2, 1, 3] w) => (float[1, 1, 7] y) { y = ConvTranspose(x, w) }"""
    found = optimize(onnx.parser.parse_model(text), target="none", profile="npu")
    assert len(found.broken) == 1
    assert "not constant" in found.broken[0]
    assert "1 nodes still break it" in found.verdict
    [layer] = found.layers
    assert (layer.chosen, layer.trials) == (ORIGINAL, ())
    assert "not constant" in layer.why


@pytest.mark.parametrize(
    ("profile", "chosen"),
    [
        ("no-groups", ["split_groups", ORIGINAL]),
        ("no-1d,no-groups", ["to_rank+split_groups", "to_rank"]),
        ("npu", ["normalise+sub_pixel", "normalise+replace_deconv"]),
        ("no-dilation", [ORIGINAL, ORIGINAL]),
    ],
)
def test_what_it_makes_of_each_layer_is_told(profile: str, chosen: list[str]) -> None:
    found = optimize(onnx.parser.parse_model(TWO), target="none", profile=profile)
    assert [layer.chosen for layer in found.layers] == chosen
    for layer in found.layers:
        reason = f"nothing in it breaks {profile}"
        assert layer.why == (f"the profile {profile} asks for it" if layer.rewritten else reason)
        assert [trial.rewriting for trial in layer.trials] == list(
            dict.fromkeys([ORIGINAL, layer.chosen])
        )
        assert all(trial.timing is None and trial.peak_bytes for trial in layer.trials)
    assert len(found.rewritten) == len([name for name in chosen if name != ORIGINAL])
    assert "not tried" not in as_text(found)


# Memory -------------------------------------------------------------------------------------------


def peak(body: str, **sizes: tuple[int, ...]) -> int | None:
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x) => (float[m, k] y) {body}'
    return peak_bytes(onnx.parser.parse_model(text), sizes or {"x": (3, 4)})


@pytest.mark.parametrize(
    ("body", "values"),
    [
        ("{ y = Relu(x) }", 24),
        ("{ a = Relu(x) y = Neg(a) }", 24),
        ("{ a = Relu(x) b = Neg(a) y = Add(x, b) }", 36),  # x waits
        ("{ a = Concat<axis = 0>(x, x) y = Neg(a) }", 48),
        ("<int64[2] s = {4, 3}> { a = Reshape(x, s) y = Neg(a) }", 28),  # a is x; s has 16 bytes
        ("<int64[2] s = {4, 3}> { y = Reshape(x, s) }", 16),
        ("<float[1] w = {1}> { y = Mul(x, w) }", 25),
        ("{ a, b = Split<axis = 1>(x) y = Neg(a) }", 24),  # b is never read
    ],
)
def test_the_peak_counts_what_lives_at_once(body: str, values: int) -> None:
    assert peak(body) == 4 * values


def test_an_unknown_shape_gives_no_peak() -> None:
    assert peak("{ a = NonZero(x) y = Cast<to = 1>(a) }") is None
