"""Number of inputs that a decoder's output depends on, by its position between two inputs."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from style import HUES

from upconv.geometry import Axis, padded

# (kernel, stride, padding) of each transposed convolution, in order.
STACKS = {
    "U-Net: kernel 2, stride 2, four times": [(2, 2, 0)] * 4,
    "DCGAN: kernel 4, stride 2, padding 1, four times": [(4, 2, 1)] * 4,
    "HiFi-GAN V1: kernels 16, 16, 4, 4, strides 8, 8, 2, 2": [
        (16, 8, 4), (16, 8, 4), (4, 2, 1), (4, 2, 1),
    ],
}  # fmt: skip
SIZE = 15


def axes(stack: list[tuple[int, int, int]]) -> list[Axis]:
    """Return the axis of every layer."""
    made: list[Axis] = []
    for kernel, stride, padding in stack:
        size = made[-1].out if made else SIZE
        made.append(padded(size, kernel, stride, 1, padding, padding, 0))
    return made


def depends_on(chain: list[Axis], o: int) -> range:
    """Return the inputs of the first layer that output `o` of the last layer depends on."""
    inputs = range(o, o + 1)
    for axis in reversed(chain):
        inputs = axis.reads(inputs.start, inputs.stop)
    return inputs


def draw() -> Figure:
    """Draw the number of inputs for all outputs between two inputs in the middle of the data."""
    figure, plot = plt.subplots(figsize=(9, 2.8))
    for number, (name, stack) in enumerate(STACKS.items()):
        chain = axes(stack)
        step = chain[-1].out // SIZE
        first = (SIZE // 2) * step
        counts = [len(depends_on(chain, first + o)) for o in range(step)]
        edges = [o / step for o in range(step + 1)]
        plot.stairs(counts, edges, color=HUES[number], label=name, linewidth=2.5, baseline=None)
    plot.set_xlabel("position of the output between two neighbouring inputs")
    plot.set_ylabel("number of inputs")
    plot.set_yticks(range(5))
    plot.set_ylim(0, 4.6)
    plot.legend(loc="upper center", fontsize=9, ncols=1)
    return figure
