"""Random layers with the sizes of real models.

Small problems never exercise the code for large ones: spatial blocks, passes over channels, cache
blocks, several jobs per thread. Layers are therefore drawn from families of real layers. A seed
determines the whole layer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from ..activations import Activation
from ..geometry import Axis
from ..problem import (
    NO_EPILOGUE,
    DataLayout,
    Direction,
    DType,
    Epilogue,
    Problem,
    WeightLayout,
)

_CHANNELS = (1, 3, 8, 16, 21, 24, 32, 48, 64, 96, 100, 128, 192, 256, 320, 512, 768, 1024)
_ELEMENTS = 4_000_000  # of x or y


@dataclass(slots=True)
class _Drawn:
    """The drawn extents of a layer: size, kernel, stride and dilation per axis, and channels."""

    axes: list[tuple[int, int, int, int]]
    in_channels: int
    out_channels: int
    groups: int = 1


def layer(
    seed: int, direction: Direction = Direction.FORWARD, *, multiply_adds: float = 3e7
) -> Problem:
    """Draw a layer of realistic size with at most `multiply_adds` multiply-adds.

    >>> layer(7) == layer(7)
    True
    >>> layer(7, Direction.WEIGHT_GRAD).bias
    False
    """
    rng = random.Random(seed)  # noqa: S311 (not for secrets)
    while True:
        drawn = FAMILIES[rng.choice(tuple(FAMILIES))](rng)
        axes = tuple(_cropped(rng, *extents) for extents in drawn.axes)
        problem = _problem(rng, direction, drawn, axes)
        elements = max(math.prod(problem.x_shape), math.prod(problem.y_shape))
        if elements <= _ELEMENTS and 0 < problem.multiply_adds <= multiply_adds:
            return problem


def _problem(
    rng: random.Random, direction: Direction, drawn: _Drawn, axes: tuple[Axis, ...]
) -> Problem:
    activation = rng.choice((*[Activation.NONE] * 3, Activation.RELU, Activation.LEAKY_RELU))
    slope = 0.2 if activation is Activation.LEAKY_RELU else 0.0
    epilogue = Epilogue(activation, slope, residual=rng.random() < 0.25)
    bare = direction is Direction.WEIGHT_GRAD
    return Problem(
        direction,
        axes,
        rng.choice((1, 1, 1, 2, 3)),
        drawn.in_channels,
        drawn.out_channels,
        drawn.groups,
        rng.choice((*[DType.FLOAT32] * 7, *DType)),
        rng.choice((DataLayout.NCX, *DataLayout)),
        rng.choice((WeightLayout.IOX, *WeightLayout)),
        bias=rng.random() < 0.6 and not bare,
        epilogue=NO_EPILOGUE if bare else epilogue,
        accumulate=rng.random() < 0.1,
    )


def _cropped(rng: random.Random, size: int, kernel: int, stride: int, dilation: int) -> Axis:
    """Return an axis with padding typical of layers, or with random crops of either sign."""
    half = dilation * (kernel - 1) // 2
    crops = (
        (half, half),
        (0, 0),
        ((dilation * (kernel - 1) + 1 - stride) // 2,) * 2,  # out = stride * size
        (half, half - 1),
        (rng.randint(-2, half), rng.randint(-2, half)),
    )
    begin, end = rng.choice(crops)
    full = Axis(size, kernel, stride, dilation).full
    begin = min(begin, full - 1)
    return Axis(size, kernel, stride, dilation, begin, min(end, full - 1 - begin))


def _extent(rng: random.Random, low: float, high: float) -> int:
    """Return a size with a uniformly distributed logarithm."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _scale(rng: random.Random) -> tuple[int, int]:
    """Return a plausible pair of kernel and stride."""
    stride = rng.choice((1, 2, 2, 2, 3, 4, 5, 8))
    kernel = rng.choice((stride, 2 * stride, 2 * stride, 2 * stride + 1, stride - 1, 3, 4, 5, 7))
    return max(1, kernel), stride


def _plain(
    rng: random.Random, rank: int, low: float, high: float, *, dilations: tuple[int, ...] = (1,)
) -> _Drawn:
    """Return the same kernel and stride on all axes or, one time in five, different ones."""
    kernel, stride = _scale(rng)
    dilation, mixed = rng.choice(dilations), rng.random() < 0.2
    axes = []
    for _ in range(rank):
        kernel, stride = _scale(rng) if mixed else (kernel, stride)
        axes.append((_extent(rng, low, high), kernel, stride, dilation))
    return _Drawn(axes, rng.choice(_CHANNELS), rng.choice(_CHANNELS))


def _vocoder(rng: random.Random) -> _Drawn:
    return _plain(rng, 1, 10, 20_000)


def _with_points(rng: random.Random, drawn: _Drawn, points: int) -> _Drawn:
    """Return the same layer in more dimensions: axes of one position before or after the others."""
    at = rng.choice((0, len(drawn.axes)))
    drawn.axes[at:at] = [(1, 1, rng.choice((1, 2)), 1)] * points
    return drawn


def _depthwise(rng: random.Random) -> _Drawn:
    rank = rng.choice((1, 2, 2, 3))
    drawn = _plain(rng, rank, 3, (10_000, 200, 30)[rank - 1])
    drawn.groups = drawn.in_channels
    drawn.out_channels = drawn.in_channels * rng.choice((1, 1, 2, 3))
    return drawn


def _grouped(rng: random.Random) -> _Drawn:
    drawn = _plain(rng, 2, 3, 100)
    drawn.groups = rng.choice((2, 3, 4, 8))
    drawn.in_channels = drawn.groups * max(1, drawn.in_channels // drawn.groups)
    drawn.out_channels = drawn.groups * max(1, drawn.out_channels // drawn.groups)
    return drawn


def _head(rng: random.Random) -> _Drawn:
    drawn = _plain(rng, 2, 10, 250)
    drawn.out_channels = rng.randint(1, 5)
    return drawn


def _inverse_stft(rng: random.Random) -> _Drawn:
    kernel = rng.choice((256, 400, 512, 1024))
    extents = (_extent(rng, 10, 500), kernel, kernel // rng.choice((2, 4, 8)), 1)
    return _Drawn([extents], kernel + 2, 1)


def _long_stride(rng: random.Random) -> _Drawn:
    stride = rng.choice((8, 10, 16, 20, 32))
    kernel = stride * rng.choice((1, 2))
    axes = [(_extent(rng, 2, 60), kernel, stride, 1) for _ in range(rng.choice((1, 2)))]
    return _Drawn(axes, rng.choice(_CHANNELS), min(64, rng.choice(_CHANNELS)))


FAMILIES: dict[str, Callable[[random.Random], _Drawn]] = {
    "vocoder": _vocoder,
    "vocoder in two dimensions": lambda rng: _with_points(rng, _vocoder(rng), 1),
    "vocoder in three dimensions": lambda rng: _with_points(rng, _vocoder(rng), 2),
    "image": lambda rng: _plain(rng, 2, 3, 250),
    "image in three dimensions": lambda rng: _with_points(rng, _plain(rng, 2, 3, 250), 1),
    "volume": lambda rng: _plain(rng, 3, 2, 50),
    "depthwise": _depthwise,
    "grouped": _grouped,
    "head": _head,
    "inverse STFT": _inverse_stft,
    "long stride": _long_stride,
    "few positions": lambda rng: _plain(rng, rng.choice((1, 2, 2, 3)), 1, 6),
    "dilated": lambda rng: _plain(rng, rng.choice((1, 2)), 5, 300, dilations=(2, 3, 4)),
}
"""The families that layers are drawn from."""
