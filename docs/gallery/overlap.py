"""How many products each position of an image sums, for four kernels and strides."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

import upconv


def draw() -> Figure:
    """Draw the result of ones with kernels of ones, which counts the products."""
    figure, plots = plt.subplots(1, 4, figsize=(9, 2.6))
    for plot, (kernel, stride) in zip(plots, ((3, 2), (4, 2), (5, 3), (6, 3)), strict=True):
        inputs, weight = np.ones((1, 1, 6, 6)), np.ones((1, 1, kernel, kernel))
        counts = upconv.conv_transpose(inputs, weight, stride=stride)[0, 0]
        image = plot.imshow(counts, vmin=0)
        ticks = np.unique(counts)
        figure.colorbar(image, ax=plot, shrink=0.75, ticks=ticks if len(ticks) < 6 else ticks[::2])
        plot.set_title(f"kernel {kernel}, stride {stride}")
        plot.set_xticks([])
        plot.set_yticks([])
    return figure
