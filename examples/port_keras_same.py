"""Porting a Keras "same" layer to PyTorch's words without shifting it.

Keras cuts the odd position of "same" from the end. PyTorch has one padding for both ends and can
only give positions back to the end, so with kernel 3 and stride 2 no arguments of its layer fit.
The usual port, padding 1 and output padding 1, has the right shape and is shifted by one position.

Claims: `translate` says so; the nearest PyTorch layer, cropped as it says, is exact; the usual port
is not; with kernel 4 the translation is exact.
"""

from __future__ import annotations

import numpy as np

import upconv
from upconv import dialects

SIZE = (6, 7)
KERAS = {"kernel_size": (3, 3), "strides": 2, "padding": "same", "input_size": SIZE}


def as_torch(x: np.ndarray, weight: np.ndarray, **config: object) -> np.ndarray:
    """What PyTorch computes for these arguments, on NCX data and IOX weights."""
    layer = dialects.from_torch(SIZE, **config)
    return upconv.conv_transpose(x, layer.weight(weight), **layer.keywords())


def main() -> None:
    """Compute a layer as Keras has it, then port it."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, *SIZE, 8))  # channels last
    weight = rng.standard_normal((3, 3, 5, 8))  # (*kernel, out, in)
    layer = dialects.from_keras(SIZE, (3, 3), strides=2, padding="same")
    y = upconv.conv_transpose(x, layer.weight(weight), **layer.keywords())
    print(f"Keras layer: {layer}")

    found = dialects.translate(KERAS, "keras", "torch")
    print(f"to PyTorch:  {found}")
    assert found.verdict.value == "impossible"

    # The arrays in PyTorch's order; the weight as the translation says.
    data = np.moveaxis(x, -1, 1)
    turned = weight.transpose(found.weight_permutation)
    wanted = np.moveaxis(y, -1, 1)

    nearest = as_torch(data, turned, **found.nearest)
    cropped = nearest[:, :, : wanted.shape[2], : wanted.shape[3]]
    print(f"nearest {nearest.shape}, cropped {cropped.shape}: equal {np.allclose(cropped, wanted)}")
    assert np.allclose(cropped, wanted)

    usual = as_torch(data, turned, kernel_size=3, stride=2, padding=1, output_padding=1)
    shifted = np.allclose(usual[:, :, :-1, :-1], wanted[:, :, 1:, 1:])
    print(f"usual port {usual.shape}: equal {np.allclose(usual, wanted)}, shifted by one {shifted}")
    assert usual.shape == wanted.shape
    assert not np.allclose(usual, wanted)
    assert shifted

    even = dialects.translate({**KERAS, "kernel_size": (4, 4)}, "keras", "torch")
    print(f"with kernel 4: {even}")
    assert even.verdict.value == "exact"


if __name__ == "__main__":
    main()
