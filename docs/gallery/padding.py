"""The positions that each framework's padding keeps, for five inputs, kernel 3 and stride 2."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from style import HUES

from upconv.dialects import Layer, from_jax, from_keras, from_mxnet, from_onnx, from_torch

SIZE, KERNEL, STRIDE = 5, 3, 2


def layers() -> dict[str, Layer]:
    """Return the layer for each spelling."""
    onnx = {"kernel_shape": [KERNEL], "strides": [STRIDE]}
    keras = {"kernel_size": KERNEL, "strides": STRIDE}
    jax = {"kernel": (KERNEL,), "strides": (STRIDE,)}
    mxnet = {"kernel": KERNEL, "stride": STRIDE}
    return {
        "PyTorch: padding=1": from_torch(SIZE, KERNEL, stride=STRIDE, padding=1),
        "PyTorch: padding=1, output_padding=1": from_torch(
            SIZE, KERNEL, stride=STRIDE, padding=1, output_padding=1
        ),
        "ONNX: auto_pad=SAME_UPPER": from_onnx((SIZE,), auto_pad="SAME_UPPER", **onnx),
        "ONNX: auto_pad=SAME_LOWER": from_onnx((SIZE,), auto_pad="SAME_LOWER", **onnx),
        'Keras: padding="same"': from_keras(SIZE, padding="same", **keras),
        'Keras: "same", output_padding=0': from_keras(
            SIZE, padding="same", output_padding=0, **keras
        ),
        'JAX: padding="VALID"': from_jax((SIZE,), padding="VALID", **jax),
        "JAX: padding=((1, 2),)": from_jax((SIZE,), padding=((1, 2),), **jax),
        "MXNet: pad=1, adj=1": from_mxnet(SIZE, pad=1, adj=1, **mxnet),
        "MXNet: target_shape=10": from_mxnet(SIZE, target_shape=10, **mxnet),
    }


def draw() -> Figure:
    """Draw a bar of kept positions for each spelling; positions are those of the full result."""
    figure, plot = plt.subplots(figsize=(9, 4))
    found = layers()
    for row, layer in enumerate(found.values()):
        axis = layer.axes[0]
        begin, out = axis.crop_begin, axis.out
        plot.barh(row, axis.full, left=-0.5, height=0.66, fill=False, edgecolor=HUES[0], ls=":")
        plot.barh(row, out, left=begin - 0.5, height=0.66, color=HUES[0])
        for o in range(out):
            plot.text(o + begin, row, o, ha="center", va="center", color="#111418", fontsize=9)
        plot.text(
            axis.full + 0.2, row, f"{out} outputs, crops ({begin}, {axis.crop_end})", va="center"
        )
    plot.set_yticks(range(len(found)), found)
    plot.invert_yaxis()
    plot.set_xlim(-0.7, 15.2)
    plot.set_xticks(range(axis.full))
    plot.set_xlabel("position in the full result; numbers in the bars are outputs")
    return figure
