"""TensorFlow's rule for output_shape: conv2d_transpose is the gradient of an ordinary convolution.

TensorFlow itself is not needed: JAX's ordinary convolution pads as TensorFlow's does.
"""

from itertools import product

import numpy as np
import pytest

from upconv import conv_transpose
from upconv.dialects import from_keras
from upconv.errors import ShapeError

pytestmark = pytest.mark.filterwarnings("ignore")  # JAX's own deprecations


@pytest.fixture(scope="module")
def jax():
    return pytest.importorskip("jax", reason="jax is not installed")


def convolution(jax, s: int, padding: str):
    """The ordinary convolution whose gradient TensorFlow's conv2d_transpose is, on one axis."""

    def forward(y, w):
        return jax.lax.conv_general_dilated(
            y, w, (s,), padding, dimension_numbers=("NWC", "WIO", "NWC")
        )

    return forward


def test_tensorflow_takes_the_sizes_that_a_convolution_maps_back(jax):
    for size, k, s, padding in product((1, 2, 5), (1, 2, 3, 4), (1, 2, 3), ("SAME", "VALID")):
        for out in range(k, s * size + k + 2):
            y, w = np.zeros((1, out, 1), np.float32), np.zeros((k, 1, 1), np.float32)
            mapped = jax.eval_shape(convolution(jax, s, padding), y, w).shape[1]
            words = {"strides": s, "padding": padding, "output_shape": out}
            if mapped == size:
                assert from_keras(size, k, **words).output_size == (out,)
            else:
                with pytest.raises(ShapeError):
                    from_keras(size, k, **words)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("k", "s", "out"), [(3, 2, 9), (3, 2, 10), (4, 2, 10), (2, 3, 14)])
def test_tensorflow_values_are_a_convolution_s_gradient(jax, k, s, out, padding):
    w = np.arange(1.0, k + 1, dtype=np.float32)[:, None, None]
    y = np.zeros((1, out if padding == "SAME" else out + 2, 1), np.float32)
    mapped, gradient = jax.vjp(lambda y: convolution(jax, s, padding)(y, w), y)
    x = np.arange(1.0, mapped.shape[1] + 1, dtype=np.float32)[None, :, None]
    words = {"strides": s, "padding": padding, "output_shape": y.shape[1]}
    layer = from_keras(x.shape[1], k, **words)
    ours = conv_transpose(x, layer.weight(w), **layer.keywords(), engine="reference")
    np.testing.assert_allclose(ours, np.asarray(gradient(x)[0]), atol=1e-4)
