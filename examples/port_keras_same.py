"""A Keras "same" layer, ported to PyTorch without a shift.

Keras cuts the odd position of "same" from the end. PyTorch has one padding for both ends and can
add positions back only at the end, so with kernel 3 and stride 2 none of its arguments fit. The
usual port, padding 1 and output padding 1, has the right shape but is shifted by one position.

Claims: `translate` says so; the nearest PyTorch layer, cropped as `translate` says, is exact; the
usual port is not; with kernel 4 the translation is exact.
"""

from __future__ import annotations

import numpy as np

import upconv
from upconv import dialects

SIZE = (6, 7)
KERAS = {"kernel_size": (3, 3), "strides": 2, "padding": "same", "input_size": SIZE}


def as_torch(x: np.ndarray, weight: np.ndarray, **config: object) -> np.ndarray:
    """Compute PyTorch's layer with these arguments, on NCX data and with IOX weights."""
    layer = dialects.from_torch(SIZE, **config)
    return upconv.conv_transpose(x, layer.weight(weight), **layer.keywords())


def main() -> None:
    """Compute a layer as Keras defines it, then port it."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, *SIZE, 8))  # channels last
    weight = rng.standard_normal((3, 3, 5, 8))  # (*kernel, out, in)
    layer = dialects.from_keras(SIZE, (3, 3), strides=2, padding="same")
    y = upconv.conv_transpose(x, layer.weight(weight), **layer.keywords())
    print(f"Keras layer: {layer}")

    translation = dialects.translate(KERAS, "keras", "torch")
    print(f"to PyTorch:  {translation}")
    assert translation.verdict.value == "impossible"

    # Transpose the data to PyTorch's order, and the weight as the translation says.
    data = np.moveaxis(x, -1, 1)
    kernel = weight.transpose(translation.weight_permutation)
    expected = np.moveaxis(y, -1, 1)

    nearest = as_torch(data, kernel, **translation.nearest)
    cropped = nearest[:, :, : expected.shape[2], : expected.shape[3]]
    equal = np.allclose(cropped, expected)
    print(f"nearest {nearest.shape}, cropped {cropped.shape}: equal {equal}")
    assert equal

    usual = as_torch(data, kernel, kernel_size=3, stride=2, padding=1, output_padding=1)
    equal = np.allclose(usual, expected)
    shifted = np.allclose(usual[:, :, :-1, :-1], expected[:, :, 1:, 1:])
    print(f"usual port {usual.shape}: equal {equal}, shifted by one {shifted}")
    assert usual.shape == expected.shape
    assert not equal
    assert shifted

    even = dialects.translate({**KERAS, "kernel_size": (4, 4)}, "keras", "torch")
    print(f"with kernel 4: {even}")
    assert even.verdict.value == "exact"


if __name__ == "__main__":
    main()
