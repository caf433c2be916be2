"""The drawing of docs/network.md: the U-Net of the page, as `Network.draw` makes it."""

from __future__ import annotations

import numpy as np

from upconv.network import Network, Value


class Drawn:
    """The text of a drawing, with the same method as other drawings."""

    def __init__(self, text: str) -> None:
        self._text = text

    def svg(self) -> str:
        """Return the text of the file."""
        return self._text


def network() -> Drawn:
    """Draw the network of the page, before anything is fused."""
    net = Network({"image": (1, 1, None, None)})

    def block(x: Value, channels: int, stride: int = 1) -> Value:
        weight = np.ones((channels, x.channels, 3, 3), np.float32)
        y = net.conv(x, weight, stride=stride, padding=1)
        return net.activation(net.instance_norm(y), ("leaky_relu", 0.1))

    high = block(net.inputs["image"], 8)
    low = block(high, 16, stride=2)
    up = net.conv_transpose(low, np.ones((16, 8, 2, 2), np.float32), stride=2)
    net.output(net.conv(block(net.concat(up, high), 8), np.ones((2, 8, 1, 1), np.float32)))
    return Drawn(net.draw())


DRAWINGS = {"network.svg": network}
