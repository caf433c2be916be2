"""Empty inputs: sessions, optimised and rewritten models answer as ONNX Runtime does."""

import numpy as np
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="models run in it")

import onnx

from tests.support.onnx_sessions import plain, same, weight
from tests.support.onnx_texts import parsed
from upconv.onnx import PASSES, Session, optimize, rewrite, to_proto
from upconv.onnx.session import choosing

LAYERS = {
    "one axis": ("N, 2, L", (4,), "strides = [2], pads = [1, 0]"),
    "equal strides": ("N, 2, H, W", (3, 4), "strides = [2, 2], pads = [0, 1, 0, 0]"),
    "other strides": ("N, 2, H, W", (3, 4), "strides = [1, 2], output_padding = [0, 1]"),
}


def layer(name: str) -> onnx.ModelProto:
    """A transposed convolution with ReLU around it, all sizes open."""
    sizes, kernel, attributes = LAYERS[name]
    outputs = ", ".join(f"out{i}" for i in range(len(kernel)))
    text = f"""g (float[{sizes}] x) => (float[M, 3, {outputs}] y)
    {{ r = Relu(x) c = ConvTranspose <{attributes}> (r, w, b) y = Relu(c) }}"""
    return parsed(text, w=weight(2, 3, *kernel), b=weight(3))


def empties(name: str) -> list[np.ndarray]:
    """Inputs without an element: no images, or images without a position along an axis."""
    rank = len(LAYERS[name][1])
    shapes = [(0, 2, *(4,) * rank), (0, 2, *(0,) * rank)]
    shapes += [(2, 2, *(0 if i == axis else 5 for i in range(rank))) for axis in range(rank)]
    return [np.zeros(shape, np.float32) for shape in shapes]


@pytest.mark.parametrize("name", LAYERS)
def test_sessions(name: str) -> None:
    source = layer(name)
    chosen = [row.name for row in Session(source, measure=False).report().rows if row.upconv]
    sessions = [Session(source, layers=names) for names in (chosen, [])]
    answered = 0
    for x in empties(name):
        try:
            expected = plain(source, {"x": x})
        except Exception:  # ONNX Runtime refuses an axis without a position for some layers
            continue
        answered += 1
        for session in sessions:
            same(session.run(None, {"x": x}), expected)
    assert answered >= 2


def test_a_measured_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_SECONDS", 0.05)
    source, x = layer("one axis"), np.zeros((0, 2, 4), np.float32)
    session = Session(source, feeds={"x": x})
    same(session.run(None, {"x": x}), plain(source, {"x": x}))


def test_an_optimised_model() -> None:
    source, x = layer("one axis"), np.zeros((0, 2, 4), np.float32)
    result = optimize(source, input_shapes={"x": x.shape}, seconds=0.01)
    same(plain(result.proto, {"x": x}), plain(source, {"x": x}))


def test_a_layer_without_input_or_output_channels_stays_with_onnx_runtime() -> None:
    for channels, outputs in ((0, 3), (2, 0)):
        text = f"""g (float[1, {channels}, L] x) => (float[1, {outputs}, M] y)
        {{ y = ConvTranspose <strides = [2]> (x, w) }}"""
        w, x = np.zeros((channels, outputs, 2), np.float32), np.zeros((1, channels, 3), np.float32)
        source = parsed(text, w=w)
        session = Session(source)
        same(session.run(None, {"x": x}), plain(source, {"x": x}))
        assert not any(row.upconv for row in session.report().rows)


@pytest.mark.parametrize("name", LAYERS)
def test_rewritten_models(name: str) -> None:
    """Each pass that rewrites the layer, with a batch that is open."""
    source, fired = layer(name), 0
    cases = [empties(name)[0], np.ones((2, 2, *(4,) * len(LAYERS[name][1])), np.float32)]
    expected = [plain(source, {"x": x}) for x in cases]
    for each in PASSES:
        rewritten = rewrite(source, [each])
        if not any(step.fired for step in rewritten.steps):
            continue
        fired += 1
        after = to_proto(rewritten.model)
        for x, values in zip(cases, expected, strict=True):
            same(plain(after, {"x": x}), values)
    assert fired >= 5
