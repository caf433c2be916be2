"""Layers with random weights, for the benchmark's networks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from upconv.network import Network, Value


class Layers:
    """Layers with random weights, on one network."""

    def __init__(self, **inputs: tuple[int, ...]) -> None:
        self.network = Network(inputs)
        self.inputs = list(self.network.inputs.values())
        self._random = np.random.default_rng(0)

    def _weight(self, *shape: int, fan: int) -> np.ndarray:
        return self._random.standard_normal(shape, np.float32) * np.float32((2 / fan) ** 0.5)

    def conv(self, x: Value, channels: int, kernel: int, **keywords: Any) -> Value:
        """Add a convolution with a bias."""
        shape = (channels, x.channels, *(kernel,) * (len(x.shape) - 2))
        weight = self._weight(*shape, fan=math.prod(shape[1:]))
        return self.network.conv(x, weight, self._weight(channels, fan=200), **keywords)

    def depthwise(self, x: Value, kernel: int, **keywords: Any) -> Value:
        """Add a depthwise convolution with a bias."""
        weight = self._weight(x.channels, 1, *(kernel,) * (len(x.shape) - 2), fan=kernel**2)
        bias = self._weight(x.channels, fan=200)
        return self.network.conv(x, weight, bias, groups=x.channels, **keywords)

    def up(self, x: Value, channels: int, kernel: int, **keywords: Any) -> Value:
        """Add a transposed convolution with a bias."""
        rank = len(x.shape) - 2
        fan = x.channels * max(1, kernel // keywords.get("stride", 1)) ** rank
        weight = self._weight(x.channels, channels, *(kernel,) * rank, fan=fan)
        return self.network.conv_transpose(x, weight, self._weight(channels, fan=200), **keywords)

    def batch_norm(self, x: Value) -> Value:
        """Add batch norm with random statistics."""
        scale, variance = self._random.uniform(0.5, 1.5, (2, x.channels))
        offset, mean = self._random.normal(0, 0.1, (2, x.channels))
        return self.network.batch_norm(x, scale, offset, mean, variance)

    def prelu(self, x: Value) -> Value:
        """Add PReLU with a slope per channel."""
        return self.network.activation(x, ("prelu", self._random.uniform(0.1, 0.4, x.channels)))
