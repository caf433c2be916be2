"""Typical MXNet decoders: symbols with random parameters, and Gluon blocks."""

import numpy as np

import upconv.mxnet as mx
from upconv.mxnet.gluon import HybridBlock, nn
from upconv.mxnet.model import Model


def drawn(graph, **shapes):
    """Return the graph as a model with random parameters, for inputs of these shapes."""
    draw = np.random.default_rng(7)
    arguments, _, states = graph.infer_shape(**shapes)
    names = [*graph.list_arguments(), *graph.list_auxiliary_states()]
    arrays = {}
    for name, shape in zip(names, [*arguments, *states], strict=True):
        if name.endswith(("var", "gamma")):
            arrays[name] = draw.uniform(0.5, 1.5, shape).astype(np.float32)
        elif name not in shapes and not name.endswith("label"):
            fan = max(1, np.prod(shape[1:]))
            arrays[name] = (draw.standard_normal(shape) / fan**0.5).astype(np.float32)
    return Model(graph, arrays)


def plain(model, **inputs):
    """Return the outputs computed operator by operator."""
    return model.computed(inputs, report=lambda *_: None)


def dcgan(F=mx.sym):
    """Build a generator from noise of (N, 10, 1, 1) to images."""
    x = mx.sym.var("data")
    for i, channels in enumerate((24, 12)):
        window = {"stride": (2, 2), "pad": (1, 1)} if i else {}
        x = F.Deconvolution(x, kernel=(4, 4), num_filter=channels, name=f"up{i}", **window)
        x = F.BatchNorm(x, fix_gamma=i == 1, name=f"norm{i}")
        x = F.Activation(x, act_type="relu", name=f"act{i}")
    x = F.Deconvolution(x, kernel=(4, 4), stride=(2, 2), pad=(1, 1), num_filter=3, name="rgb")
    return F.tanh(x)


def unet(F=mx.sym):
    """Build an encoder and a decoder joined by concatenations."""
    x, skips = mx.sym.var("data"), []
    for i, channels in enumerate((6, 10)):
        x = F.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=channels, name=f"down{i}")
        x = F.LeakyReLU(F.BatchNorm(x, name=f"n{i}"), slope=0.1)
        skips.append(x)
        x = F.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max" if i else "avg")
    x = F.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=14, name="deep")
    for i, skip in enumerate(reversed(skips)):
        window = {"kernel": (2, 2), "stride": (2, 2), "num_filter": 8}
        up = F.Deconvolution(x, **window, name=f"up{i}")
        x = F.Convolution(F.Concat(up, skip), kernel=(3, 3), num_filter=8, pad=(1, 1),
                          name=f"mix{i}")  # fmt: skip
        x = F.relu(x + up)
    return F.sigmoid(F.Convolution(x, kernel=(1, 1), num_filter=2, name="mask"))


def fcn(F=mx.sym):
    """Build scores enlarged by grouped deconvolutions and cropped to the image, and a loss."""
    data = mx.sym.var("data")
    x = F.Convolution(data, kernel=(3, 3), pad=(5, 5), num_filter=8, name="c1")
    x = F.Pooling(F.relu(x), kernel=(2, 2), stride=(2, 2), pooling_convention="full")
    low = F.Pooling(F.relu(x), kernel=(3, 3), stride=(2, 2), pooling_convention="full",
                    pool_type="avg")  # fmt: skip
    score = F.Convolution(F.Dropout(low), kernel=(1, 1), num_filter=4, name="score")
    up = F.Deconvolution(score, kernel=(4, 4), stride=(2, 2), num_filter=4, num_group=4,
                         no_bias=True, name="up2")  # fmt: skip
    skip = F.Convolution(x, kernel=(1, 1), num_filter=4, name="score2")
    total = F.Crop(up, skip, num_args=2, center_crop=True) + skip
    up = F.Deconvolution(total, kernel=(4, 4), stride=(2, 2), num_filter=4, num_group=4,
                         no_bias=True, name="up1")  # fmt: skip
    up = F.Crop(up, data, num_args=2, offset=(3, 3))
    return F.SoftmaxOutput(up, multi_output=True, name="softmax")


def poses(F=mx.sym):
    """Build heat maps: residual blocks, then 4 x 4 deconvolutions with normalization."""
    x = F.Convolution(mx.sym.var("data"), kernel=(7, 7), stride=(2, 2), pad=(3, 3), num_filter=8,
                      name="stem")  # fmt: skip
    x = F.Pooling(F.relu(x), kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max")
    for i in range(2):
        y = F.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=8, no_bias=True, name=f"r{i}")
        y = F.BatchNorm(y, fix_gamma=False, name=f"b{i}")
        x = F.relu(F.broadcast_add(x, y))
    for i in range(2):
        x = F.Deconvolution(x, kernel=(4, 4), stride=(2, 2), pad=(1, 1), num_filter=12,
                            name=f"up{i}")  # fmt: skip
        x = F.relu(F.BatchNorm(x, name=f"d{i}"))
    return F.Convolution(x, kernel=(1, 1), num_filter=5, name="maps")


DECODERS = {
    "dcgan": (dcgan, (2, 10, 1, 1), (3, 10, 2, 3)),
    "unet": (unet, (1, 3, 12, 16), (2, 3, 8, 20)),
    "fcn": (fcn, (1, 3, 17, 15), (2, 3, 20, 23)),
    "poses": (poses, (1, 3, 32, 24), (2, 3, 40, 48)),
}
"""A graph, and two shapes of its data."""


class Residual(HybridBlock):
    """Two convolutions with a shortcut, in MXNet 1's style."""

    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2D(channels, 3, padding=1, activation="relu")
        self.second = nn.Conv2D(channels, 3, padding=1)
        self.norm = nn.BatchNorm()

    def hybrid_forward(self, F, x):
        return F.relu(x + self.norm(self.second(self.first(x))))


def generator():
    """Build a hybridizable generator of 3-channel images."""
    net = nn.HybridSequential()
    net.add(nn.Conv2DTranspose(8, 4, use_bias=False), nn.BatchNorm(), nn.LeakyReLU(0.2))
    net.add(Residual(8), nn.Conv2DTranspose(6, 4, strides=2, padding=1), nn.PReLU())
    net.add(nn.InstanceNorm(scale=True), nn.Swish(), nn.Conv2D(3, 3, padding=1), nn.GELU())
    net.initialize(mx.init.Xavier())
    return net
