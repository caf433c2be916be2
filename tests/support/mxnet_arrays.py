"""Arrays of the MXNet front end in tests: random, with gradients, compared."""

import numpy as np

import upconv.mxnet as mx

RNG = np.random.default_rng(31)


def drawn(*shape):
    """Return an array of normal numbers."""
    return mx.nd.array(RNG.standard_normal(shape))


def learned(values):
    """Return an array with a gradient attached."""
    array = mx.nd.array(values)
    array.attach_grad()
    return array


def equal(found, expected, dtype=None):
    """Assert that an array has these values, this shape, and this type."""
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-6)
    assert dtype is None or np.dtype(found.dtype) == np.dtype(dtype)


def close(found, expected):
    """Assert that an array has these values up to rounding."""
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-4, atol=1e-5)
