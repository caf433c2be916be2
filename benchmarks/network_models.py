"""Decoders, U-Nets and backbones written with `upconv.network`, with random weights.

Each represents a kind of deployed model. `benchmarks/networks.py` compares them with peers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from network_layers import Layers

from upconv.network import Network, Value


def hifigan() -> Network:
    """Build HiFi-GAN V1: rates 8, 8, 2, 2 from 512 channels; 64 frames."""
    layers = Layers(x=(1, 80, 64))
    network = layers.network

    def leaky(x: Value, slope: float = 0.1) -> Value:
        return network.activation(x, ("leaky_relu", slope))

    x = layers.conv(layers.inputs[0], 512, 7, padding=3)
    for channels, kernel, stride in ((256, 16, 8), (128, 16, 8), (64, 4, 2), (32, 4, 2)):
        x = layers.up(leaky(x), channels, kernel, stride=stride, padding=(kernel - stride) // 2)
        branches = []
        for taps in (3, 7, 11):
            y = x
            for dilation in (1, 3, 5):
                padding = dilation * (taps - 1) // 2
                z = layers.conv(leaky(y), channels, taps, dilation=dilation, padding=padding)
                y = y + layers.conv(leaky(z), channels, taps, padding=(taps - 1) // 2)
            branches.append(y)
        x = (branches[0] + branches[1] + branches[2]) * (1 / 3)
    x = layers.conv(leaky(x, 0.01), 1, 7, padding=3)
    network.output(network.activation(x, "tanh"))
    return network


def unet(rank: int, size: int, widths: tuple[int, ...]) -> Network:
    """Build MONAI's UNet with residual units: instance norm, then a leaky ReLU of slope 0.25."""
    layers = Layers(x=(1, 1, *(size,) * rank))
    network = layers.network

    def normed(x: Value) -> Value:
        return network.activation(network.instance_norm(x), ("leaky_relu", 0.25))

    def unit(x: Value, channels: int, stride: int) -> Value:
        """Add two convolutions, and a parallel one that makes the shapes equal."""
        y = normed(layers.conv(x, channels, 3, stride=stride, padding=1))
        y = normed(layers.conv(y, channels, 3, padding=1))
        taps = 3 if stride > 1 else 1
        beside = layers.conv(x, channels, taps, stride=stride, padding=taps // 2)
        return y + beside

    def block(x: Value, level: int, out: int) -> Value:
        """Add a level and all below it: `widths[level]` channels inside, `out` at the end."""
        down = unit(x, widths[level], 2)
        if level + 2 < len(widths):
            inner = block(down, level + 1, widths[level])
        else:
            inner = unit(down, widths[level + 1], 1)
        joined = network.concat(down, inner)
        y = layers.up(joined, out, 3, stride=2, padding=1, output_padding=1)
        if level == 0:
            return y + layers.conv(y, out, 3, padding=1)
        y = normed(y)
        return y + normed(layers.conv(y, out, 3, padding=1))

    network.output(block(layers.inputs[0], 0, 2))
    return network


def pix2pix() -> Network:
    """Build pix2pix's U-Net: 256 x 256, six levels, batch norm, skips by concatenation."""
    layers = Layers(x=(1, 3, 256, 256))
    network, x, skips = layers.network, layers.inputs[0], []
    widths = (64, 128, 256, 512, 512, 512)
    for channels in widths:
        x = network.activation(x, ("leaky_relu", 0.2))
        x = layers.batch_norm(layers.conv(x, channels, 4, stride=2, padding=1))
        skips.append(x)
    skips.pop()
    for channels in (*widths[-2::-1], 3):
        x = layers.up(network.activation(x, "relu"), channels, 4, stride=2, padding=1)
        if skips:
            x = network.concat(layers.batch_norm(x), skips.pop())
    network.output(network.activation(x, "tanh"))
    return network


def fsrcnn() -> Network:
    """Build FSRCNN, scale 3: 56 and 12 channels, a PReLU after each convolution."""
    layers = Layers(x=(1, 1, 180, 240))
    x = layers.prelu(layers.conv(layers.inputs[0], 56, 5, padding=2))
    x = layers.prelu(layers.conv(x, 12, 1))
    for _ in range(4):
        x = layers.prelu(layers.conv(x, 12, 3, padding=1))
    x = layers.prelu(layers.conv(x, 56, 1))
    layers.network.output(layers.up(x, 1, 9, stride=3, padding=4, output_padding=2))
    return layers.network


def dcgan() -> Network:
    """Build DCGAN's generator of 64 x 64 images, 16 at a time."""
    layers = Layers(x=(16, 100, 1, 1))
    x = layers.up(layers.inputs[0], 512, 4)
    for channels in (256, 128, 64):
        x = layers.network.activation(layers.batch_norm(x), "relu")
        x = layers.up(x, channels, 4, stride=2, padding=1)
    x = layers.network.activation(layers.batch_norm(x), "relu")
    x = layers.up(x, 3, 4, stride=2, padding=1)
    layers.network.output(layers.network.activation(x, "tanh"))
    return layers.network


def unet_of_pairs(size: int, widths: tuple[int, ...]) -> Network:
    """Build MONAI's 3-D BasicUNet: pairs of convolutions, max pooling, transposed convolutions."""
    layers = Layers(x=(1, 1, size, size, size))
    network = layers.network

    def pair(x: Value, channels: int) -> Value:
        for _ in range(2):
            x = network.instance_norm(layers.conv(x, channels, 3, padding=1))
            x = network.activation(x, ("leaky_relu", 0.1))
        return x

    *down, last = widths
    x, skips = pair(layers.inputs[0], down[0]), []
    for channels in down[1:]:
        skips.append(x)
        x = pair(network.max_pool(x, 2), channels)
    for channels, skip in zip((*down[-2:0:-1], last), reversed(skips), strict=True):
        up = layers.up(x, max(1, x.channels // 2) if channels != last else x.channels, 2, stride=2)
        x = pair(network.concat(skip, up), channels)
    network.output(layers.conv(x, 2, 1))
    return network


def unetr() -> Network:
    """Build UNETR's decoder: four feature maps of a transformer become a volume of 64."""
    volume, hidden = (64, 64, 64), (1, 384, 4, 4, 4)
    layers = Layers(image=(1, 1, *volume), h1=hidden, h2=hidden, h3=hidden, h4=hidden)
    network = layers.network
    image, *maps = layers.inputs

    def residual(x: Value, channels: int) -> Value:
        y = network.instance_norm(layers.conv(x, channels, 3, padding=1))
        y = network.activation(y, ("leaky_relu", 0.01))
        y = network.instance_norm(layers.conv(y, channels, 3, padding=1))
        if x.channels != channels:
            x = network.instance_norm(layers.conv(x, channels, 1))
        return network.activation(y + x, ("leaky_relu", 0.01))

    skips = [residual(image, 16)]
    for number, x in enumerate(maps[:3]):
        channels = 16 << (number + 1)
        x = layers.up(x, channels, 2, stride=2)
        for _ in range(2 - number):
            x = residual(layers.up(x, channels, 2, stride=2), channels)
        skips.append(x)
    x = maps[3]
    for skip in reversed(skips):
        x = network.concat(layers.up(x, skip.channels, 2, stride=2), skip)
        x = residual(x, skip.channels)
    network.output(layers.conv(x, 2, 1))
    return network


def pillars() -> Network:
    """Build PointPillars' neck: three levels, upsampled by 1, 2 and 4 and concatenated."""
    layers = Layers(x=(1, 64, 124, 108))
    network, x, results = layers.network, layers.inputs[0], []

    def normed(x: Value) -> Value:
        return network.activation(layers.batch_norm(x), "relu")

    for channels, stride, factor in ((64, 1, 1), (128, 2, 2), (256, 2, 4)):
        x = normed(layers.conv(x, channels, 3, stride=stride, padding=1))
        x = normed(layers.conv(x, channels, 3, padding=1))
        results.append(normed(layers.up(x, 128, factor, stride=factor)))
    network.output(network.concat(*results))
    return network


def encodec() -> Network:
    """Build EnCodec's decoder without LSTM: ELU, reflected borders, rates 8, 5, 4, 2."""
    layers = Layers(x=(1, 128, 75))
    network = layers.network

    def conv(x: Value, channels: int, kernel: int) -> Value:
        x = network.pad(x, ((kernel - 1, 0),), "reflect") if kernel > 1 else x
        return layers.conv(x, channels, kernel)

    x = conv(layers.inputs[0], 512, 7)
    for rate in (8, 5, 4, 2):
        x = layers.up(network.activation(x, ("elu", 1.0)), x.channels // 2, 2 * rate, stride=rate)
        x = network.crop(x, ((0, rate),))
        y = conv(network.activation(x, ("elu", 1.0)), x.channels // 2, 3)
        x = conv(x, x.channels, 1) + conv(network.activation(y, ("elu", 1.0)), x.channels, 1)
    network.output(conv(network.activation(x, ("elu", 1.0)), 1, 7))
    return network


def dac() -> Network:
    """Build DAC's decoder: snake, dilations 1, 3, 9; rates 8, 8, 4, 2 from 768 channels."""
    layers = Layers(x=(1, 256, 24))
    network = layers.network

    def snake(x: Value) -> Value:
        return network.activation(x, ("snake", np.linspace(0.5, 1.5, x.channels)))

    x = layers.conv(layers.inputs[0], 768, 7, padding=3)
    for rate in (8, 8, 4, 2):
        x = layers.up(snake(x), x.channels // 2, 2 * rate, stride=rate, padding=rate // 2)
        for dilation in (1, 3, 9):
            y = layers.conv(snake(x), x.channels, 7, dilation=dilation, padding=3 * dilation)
            x = x * 0.7 + layers.conv(snake(y), x.channels, 1) * 0.1
    network.output(network.activation(layers.conv(snake(x), 1, 7, padding=3), "tanh"))
    return network


def pose() -> Network:
    """Build a ResNet-50 for poses: bottlenecks, then three transposed convolutions; 192 x 256."""
    layers = Layers(x=(1, 3, 256, 192))
    network = layers.network

    def normed(x: Value, act: str | None = "relu") -> Value:
        x = layers.batch_norm(x)
        return network.activation(x, act) if act else x

    x = normed(layers.conv(layers.inputs[0], 64, 7, stride=2, padding=3))
    x = network.max_pool(x, 3, 2, 1)
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            step = stride if number == 0 else 1
            y = normed(layers.conv(x, width, 1))
            y = normed(layers.conv(y, width, 3, stride=step, padding=1))
            y = normed(layers.conv(y, 4 * width, 1), None)
            x = normed(layers.conv(x, 4 * width, 1, stride=step), None) if number == 0 else x
            x = network.activation(y * 0.3 + x, "relu")
    for _ in range(3):
        x = normed(layers.up(x, 256, 4, stride=2, padding=1))
    network.output(layers.conv(x, 17, 1))
    return network


def edsr() -> Network:
    """Build EDSR, scale 2: 8 residual blocks of 64 channels, pixel shuffle."""
    layers = Layers(x=(1, 3, 128, 128))
    x = head = layers.conv(layers.inputs[0], 64, 3, padding=1)
    for _ in range(8):
        y = layers.conv(x, 64, 3, padding=1, activation="relu")
        x = x + layers.conv(y, 64, 3, padding=1) * 0.1
    x = head + layers.conv(x, 64, 3, padding=1)
    x = layers.network.pixel_shuffle(layers.conv(x, 256, 3, padding=1), 2)
    layers.network.output(layers.conv(x, 3, 3, padding=1))
    return layers.network


def esrgan() -> Network:
    """Build ESRGAN, scale 4: 2 of its 23 dense blocks, nearest upsampling."""
    layers = Layers(x=(1, 3, 64, 64))
    network = layers.network

    def leaky(x: Value) -> Value:
        return network.activation(x, ("leaky_relu", 0.2))

    def dense(x: Value) -> Value:
        values = [x]
        for _ in range(4):
            values.append(leaky(layers.conv(network.concat(*values), 32, 3, padding=1)))
        return x + layers.conv(network.concat(*values), 64, 3, padding=1) * 0.2

    x = head = layers.conv(layers.inputs[0], 64, 3, padding=1)
    for _ in range(2):
        x = x + dense(dense(dense(x))) * 0.2
    x = head + layers.conv(x, 64, 3, padding=1)
    for _ in range(2):
        x = leaky(layers.conv(network.upsample(x, 2), 64, 3, padding=1))
    network.output(layers.conv(leaky(layers.conv(x, 64, 3, padding=1)), 3, 3, padding=1))
    return network


def segment() -> Network:
    """Build a segmentation decoder on ResNet-34's features: nearest upsampling, skips."""
    sizes = {"s1": (64, 128), "s2": (64, 64), "s3": (128, 32), "s4": (256, 16), "s5": (512, 8)}
    layers = Layers(**{name: (1, c, size, size) for name, (c, size) in sizes.items()})
    network = layers.network

    def normed(x: Value, channels: int) -> Value:
        x = layers.batch_norm(layers.conv(x, channels, 3, padding=1))
        return network.activation(x, "relu")

    *skips, x = layers.inputs
    for channels, skip in zip((256, 128, 64, 32, 16), [*reversed(skips), None], strict=True):
        x = network.upsample(x, 2)
        x = x if skip is None else network.concat(x, skip)
        x = normed(normed(x, channels), channels)
    network.output(layers.conv(x, 4, 3, padding=1))
    return network


def yolo() -> Network:
    """Build a detector's neck: SiLU, split bottlenecks, nearest upsampling, pooling at the top."""
    layers = Layers(p3=(1, 64, 80, 80), p4=(1, 128, 40, 40), p5=(1, 256, 20, 20))
    network = layers.network
    p3, p4, p5 = layers.inputs

    def conv(x: Value, channels: int, kernel: int = 1, stride: int = 1) -> Value:
        y = layers.conv(x, channels, kernel, stride=stride, padding=kernel // 2)
        return network.activation(y, "silu")

    def stage(x: Value, channels: int) -> Value:
        y = conv(x, channels)
        half = network.slice(y, channels // 2, channels)
        inner = conv(conv(half, channels // 2, 3), channels // 2, 3)
        return conv(network.concat(y, inner), channels)

    y = conv(p5, 128)
    pooled = [y]
    for _ in range(3):
        pooled.append(network.max_pool(pooled[-1], 5, 1, 2))
    p5 = conv(network.concat(*pooled), 256)
    p4 = stage(network.concat(network.upsample(p5, 2), p4), 128)
    p3 = stage(network.concat(network.upsample(p4, 2), p3), 64)
    p4 = stage(network.concat(conv(p3, 64, 3, 2), p4), 128)
    p5 = stage(network.concat(conv(p4, 128, 3, 2), p5), 256)
    network.output(p3, p4, p5)
    return network


def mobile() -> Network:
    """Build a mobile encoder and decoder: inverted residuals, depthwise layers, hard swish."""
    layers = Layers(x=(1, 3, 224, 224))
    network = layers.network

    def normed(x: Value, act: str | None = "hard_swish") -> Value:
        x = layers.batch_norm(x)
        return network.activation(x, act) if act else x

    def inverted(x: Value, channels: int, stride: int) -> Value:
        y = normed(layers.conv(x, 4 * x.channels, 1))
        y = normed(layers.depthwise(y, 3, stride=stride, padding=1))
        y = normed(layers.conv(y, channels, 1), None)
        return x + y if stride == 1 and x.channels == channels else y

    x = normed(layers.conv(layers.inputs[0], 16, 3, stride=2, padding=1))
    skips = []
    for channels in (24, 40, 80, 160):
        skips.append(x)
        x = inverted(inverted(x, channels, 2), channels, 1)
    for skip in reversed(skips):
        x = normed(layers.conv(network.upsample(x, 2), skip.channels, 1))
        x = normed(layers.depthwise(x + skip, 3, padding=1))
    network.output(layers.conv(x, 2, 1))
    return network


MODELS: dict[str, Callable[[], Network]] = {
    "hifigan": hifigan,
    "unet2d": lambda: unet(2, 256, (16, 32, 64, 128, 256)),
    "unet3d": lambda: unet(3, 64, (16, 32, 64, 128)),
    "pix2pix": pix2pix,
    "fsrcnn": fsrcnn,
    "dcgan": dcgan,
    "pillars": pillars,
    "basicunet3d": lambda: unet_of_pairs(64, (16, 16, 32, 64, 128, 16)),
    "unetr": unetr,
    "encodec": encodec,
    "dac": dac,
    "pose": pose,
    "edsr": edsr,
    "esrgan": esrgan,
    "segment": segment,
    "yolo": yolo,
    "mobile": mobile,
}
