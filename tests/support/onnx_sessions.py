"""A model for the tests of sessions, ONNX Runtime's results, and comparisons."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.support.onnx_texts import parsed
from upconv import measuring
from upconv.onnx import Session
from upconv.timing import Rounds

RNG = np.random.default_rng(7)

BODY = """decoder (float[N, 16, H, W] x) => (float[N, 4, U, V] y, float[N, 8, A, B] skip)
<float[4, 1, 1] slopes = {0.0, 0.5, 1.5, -0.25}, float[1] slope = {0.2}>
{
  a = Conv <pads = [1, 1, 1, 1]> (x, w0)
  skip = PRelu(a, slope)
  b = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (skip, w1, b1)
  c = LeakyRelu <alpha = 0.1> (b)
  d = Softsign(c)
  e = ConvTranspose <group = 2, strides = [2, 2], auto_pad = "SAME_UPPER"> (d, w2)
  f = PRelu(e, slopes)
  g = BatchNormalization(f, one, one, one, one)
  h = ConvTranspose <group = 2, strides = [1, 2]> (g, w3)
  y = Tanh(h)
}"""


def weight(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def decoder() -> onnx.ModelProto:
    shapes = {"w0": (8, 16, 3, 3), "w1": (8, 6, 4, 4), "w2": (6, 2, 5, 3), "w3": (4, 2, 3, 2)}
    weights = {name: weight(*shape) for name, shape in shapes.items()}
    return parsed(BODY, **weights, b1=weight(6), one=np.ones(4, np.float32))


def plain(source: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(source.SerializeToString(), options).run(None, feeds)


def same(found: list[Any], wanted: list[Any], tolerance: float = 2e-5) -> None:
    for y, z in zip(found, wanted, strict=True):
        assert y.shape == z.shape
        assert y.dtype == z.dtype
        np.testing.assert_allclose(y, z, 0, tolerance * max(1.0, float(np.abs(z).max(initial=0))))


def by_upconv(source: onnx.ModelProto, *inputs: dict[str, Any]) -> Session:
    """Return a session in which upconv computes all parts, after comparing it on the inputs."""
    session = Session(source, measure=False)
    for feeds in inputs:
        same(session.run(None, feeds), plain(source, feeds))
    return session


def image(n: int = 1, height: int = 5, width: int = 7) -> dict[str, np.ndarray]:
    return {"x": RNG.standard_normal((n, 16, height, width), np.float32)}


def measure_once(monkeypatch: pytest.MonkeyPatch, gain: float = 2.0) -> None:
    """Make up times: a session with upconv is `gain` times as fast, later sets slightly more."""

    def once(calls: Any, _: Any, begins: Any, *__: Any) -> Rounds:
        begins(1)
        seconds = [1.0, *(1 / (gain + i / 100) for i in range(1, len(calls)))]
        return Rounds(tuple([each] * 5 for each in seconds), [1.0] * 5)

    monkeypatch.setattr(measuring, "sampled", once)
