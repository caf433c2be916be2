"""Five kinds of models with transposed convolutions, quantized by ONNX Runtime's own tools.

The tests build small ones, `benchmarks/onnx_quantised.py` realistic ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.support.onnx_texts import made


class Network:
    """A model written layer by layer; random weights keep values near 1."""

    def __init__(self, *shape: int, seed: int = 0) -> None:
        self.shape, self.channels, self.y = shape, shape[1], "x"
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self._numbers = np.random.default_rng(seed)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> Network:
        """Add a node that reads the latest value, and others by name."""
        name = f"{kind.lower()}{len(self.nodes)}"
        node = helper.make_node(kind, [self.y, *inputs], [f"{name}_y"], name, **attributes)
        self.nodes.append(node)
        self.y = node.output[0]
        return self

    def _layer(self, kind: str, shape: tuple[int, ...], terms: int, outs: int, **said: Any) -> None:
        names = [f"w{len(self.nodes)}", f"b{len(self.nodes)}"]
        w = self._numbers.standard_normal(shape) * (1.4 / np.sqrt(terms))
        arrays = w, self._numbers.standard_normal(outs) * 0.1
        self.weights |= zip(names, (array.astype(np.float32) for array in arrays), strict=True)
        self.op(kind, *names, **said)
        self.channels = outs

    def conv(self, outs: int, kernel: int, dilation: int = 1) -> Network:
        """Add a convolution that keeps the size."""
        rank = len(self.shape) - 2
        pads = [dilation * (kernel // 2)] * 2 * rank
        shape = (outs, self.channels, *[kernel] * rank)
        terms = self.channels * kernel**rank
        self._layer("Conv", shape, terms, outs, pads=pads, dilations=[dilation] * rank)
        return self

    def up(self, outs: int, kernel: int, stride: int, groups: int = 1, **said: Any) -> Network:
        """Add a transposed convolution."""
        rank = len(self.shape) - 2
        shape = (self.channels, outs // groups, *[kernel] * rank)
        terms = max(1, self.channels // groups * kernel**rank // stride**rank)
        self._layer(
            "ConvTranspose", shape, terms, outs, strides=[stride] * rank, group=groups, **said
        )
        return self

    def slice_end(self, count: int) -> Network:
        """Remove `count` positions at the end of the last axis."""
        names = [f"{what}{len(self.nodes)}" for what in ("start", "end", "axis")]
        entries = np.array([[0], [-count], [len(self.shape) - 1]])
        self.weights |= zip(names, entries, strict=True)
        return self.op("Slice", *names)

    def model(self, opset: int = 17) -> onnx.ModelProto:
        """Return the model in float32."""
        whole = made(self.nodes, self.weights, self.shape, [self.y], opset)
        return onnx.shape_inference.infer_shapes(whole)


def fsrcnn(size: int = 16, width: int = 8, shrunk: int = 4) -> Network:
    """Build super-resolution by 3."""
    net = Network(1, 1, size, size).conv(width, 5).op("Relu").conv(shrunk, 1).op("Relu")
    for _ in range(2):
        net.conv(shrunk, 3).op("Relu")
    net.conv(width, 1).op("Relu")
    return net.up(1, 9, 3, pads=[4] * 4, output_padding=[2, 2])


def unet(size: int = 16, width: int = 4, levels: int = 2) -> Network:
    """Build a segmentation network that halves and doubles the size, with skips."""
    net, skips = Network(1, 3, size, size), []
    for level in range(levels):
        net.conv(width << level, 3).op("Relu").conv(width << level, 3).op("Relu")
        skips.append((net.y, net.channels))
        net.op("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    net.conv(width << levels, 3).op("Relu")
    for skip, channels in reversed(skips):
        net.up(channels, 2, 2).op("Concat", skip, axis=1)
        net.channels += channels
        net.conv(channels, 3).op("Relu")
    return net.conv(2, 1)


def dcgan(width: int = 8, batch: int = 2, layers: int = 3) -> Network:
    """Build a generator of images."""
    net = Network(batch, 100, 1, 1).up(width << layers, 4, 1).op("Relu")
    for layer in range(layers - 1, -1, -1):
        net.up(width << layer, 4, 2, pads=[1] * 4).op("Relu")
    return net.up(3, 4, 2, pads=[1] * 4).op("Tanh")


def encodec(size: int = 6, width: int = 32, strides: tuple[int, ...] = (4, 2)) -> Network:
    """Build an audio decoder; the end is cut off so that it is causal, as in exported models."""
    net = Network(1, 16, size).conv(width, 7)
    for stride in strides:
        net.op("Elu").up(net.channels // 2, 2 * stride, stride).slice_end(stride)
        skip, channels = net.y, net.channels
        net.op("Elu").conv(channels // 2, 3).op("Elu").conv(channels, 1).op("Add", skip)
    return net.op("Elu").conv(1, 7)


def depthwise(size: int = 12, width: int = 8) -> Network:
    """Build depthwise upsampling between 1x1 convolutions."""
    net = Network(1, 3, size, size).conv(width, 3).op("Relu")
    for _ in range(2):
        net.up(net.channels, 4, 2, net.channels, pads=[1] * 4).conv(width, 1).op("Relu")
    return net.conv(3, 3)


KINDS: dict[str, Callable[..., Network]] = {
    "FSRCNN": fsrcnn, "U-Net": unet, "DCGAN": dcgan, "EnCodec": encodec, "depthwise": depthwise,
}  # fmt: skip


def quantised(
    net: Network, *, per_channel: bool = False, activations: str = "QUInt8", weights: str = "QInt8"
) -> onnx.ModelProto:
    """Return the network in QDQ form, calibrated with random inputs.

    Weights have 7 bits. Without VNNI instructions, ONNX Runtime's products of unsigned and signed
    8-bit numbers saturate at 16 bits, and its convolutions are off by tens of steps.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Calibration(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.feeds: Iterator[dict[str, np.ndarray]] = iter([feed(net, i) for i in range(4)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.feeds, None)

    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        onnx.save(net.model(), paths[0])
        quantize_static(
            *paths,
            Calibration(),
            per_channel=per_channel,
            reduce_range=True,
            activation_type=QuantType[activations],
            weight_type=QuantType[weights],
        )
        return onnx.load(paths[1])


def feed(net: Network, seed: int) -> dict[str, np.ndarray]:
    """Return a random input."""
    x = np.random.default_rng(1000 + seed).standard_normal(net.shape)
    return {"x": x.astype(np.float32)}
