"""A U-Net up-block, forward and backward: upsample, join the skip connection, convolve.

    up = relu(conv_transpose(x, w_up, b_up))         kernel 2, stride 2
    y  = conv(concat(up, skip), w_mix, b_mix)        kernel 3, same size

Claims: a small change of any input or parameter changes <g, y> by its inner product with the
gradient; each linear layer is the adjoint of its input gradient.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

import numpy as np

import upconv

UP = {"stride": 2}
MIX = {"padding": "same_upper"}


@dataclass
class Block:
    """The block's inputs and parameters; also holds their gradients, and directions."""

    x: np.ndarray
    skip: np.ndarray
    w_up: np.ndarray
    b_up: np.ndarray
    w_mix: np.ndarray
    b_mix: np.ndarray


def forward(block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Return the result, and the concatenated activations that the backward pass needs."""
    up = upconv.conv_transpose(block.x, block.w_up, block.b_up, activation="relu", **UP)
    joined = np.concatenate([up, block.skip], axis=1)
    return upconv.conv(joined, block.w_mix, block.b_mix, **MIX), joined


def backward(block: Block, joined: np.ndarray, g: np.ndarray) -> Block:
    """Return the gradients of <g, y>, computed from the last layer to the first."""
    mix = upconv.conv_backward(g, joined, block.w_mix, **MIX)
    channels = block.w_up.shape[1]
    of_up, of_skip = mix.x[:, :channels], mix.x[:, channels:]
    of_up = of_up * (joined[:, :channels] > 0)  # relu
    up = upconv.conv_transpose_backward(of_up, block.x, block.w_up, **UP)
    return Block(up.x, of_skip, up.weight, up.bias, mix.weight, mix.bias)


def random_block(rng: np.random.Generator) -> Block:
    """Return a block for 2 images: 24 channels of 6x7 become 12 channels of 12x14."""
    shapes = [(2, 24, 6, 7), (2, 12, 12, 14), (24, 12, 2, 2), (12,), (12, 24, 3, 3), (12,)]
    return Block(*(rng.standard_normal(shape) for shape in shapes))


def main() -> None:
    """Run a random block, and compare its gradients with finite differences."""
    rng = np.random.default_rng(1)
    block = random_block(rng)
    y, joined = forward(block)
    g = rng.standard_normal(y.shape)
    gradients = backward(block, joined, g)
    print(f"x {block.x.shape} and skip {block.skip.shape} -> y {y.shape}")

    # The slope of <g, y(block + h*direction)> in h is <gradient, direction>.
    h = 1e-6
    for field in fields(Block):
        gradient = getattr(gradients, field.name)
        direction = rng.standard_normal(gradient.shape)
        plus, minus = Block(*astuple(block)), Block(*astuple(block))
        setattr(plus, field.name, getattr(block, field.name) + h * direction)
        setattr(minus, field.name, getattr(block, field.name) - h * direction)
        slope = np.vdot(g, forward(plus)[0] - forward(minus)[0]) / (2 * h)
        predicted = np.vdot(gradient, direction)
        print(f"  {field.name:6} slope {slope:12.5f}   by the gradient {predicted:12.5f}")
        assert abs(slope - predicted) < 1e-4 * max(1.0, abs(slope))

    # Without bias and relu the layer is linear, and its input gradient is its adjoint.
    g = rng.standard_normal((2, 12, 12, 14))
    back = upconv.conv_transpose_backward(g, block.x, block.w_up, needs="x", **UP)
    one = np.vdot(upconv.conv_transpose(block.x, block.w_up, **UP), g)
    other = np.vdot(block.x, back.x)
    print(f"adjoint identity: {one:.9f} = {other:.9f}")
    assert abs(one - other) < 1e-9 * max(1.0, abs(one))


if __name__ == "__main__":
    main()
