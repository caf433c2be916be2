"""The small kernels that make up a strided kernel, one for each phase of the output."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from style import HUES

from upconv.geometry import Axis


def draw() -> Figure:
    """Draw a kernel of 7 taps with stride 3, and each phase's taps at the inputs that they read."""
    kernel, stride = 7, 3
    weight = np.bartlett(kernel + 2)[1:-1]
    phases = Axis(6, kernel, stride).phases()
    figure = plt.figure(figsize=(9, 2.9))
    whole, *parts = figure.subplots(1, 1 + stride, sharey=True, width_ratios=[2, 1, 1, 1])
    whole.set_title(f"kernel of {kernel} taps, stride {stride}")
    whole.set_xlabel("tap")
    whole.set_ylabel("weight")
    for number, (phase, plot) in enumerate(zip(phases, parts, strict=True)):
        taps = [tap.index for tap in phase.taps]
        shifts = [-tap.shift for tap in phase.taps]
        whole.bar(taps, weight[taps], color=HUES[number], width=0.7)
        plot.bar(shifts, weight[taps], color=HUES[number], width=0.7)
        total = weight[taps].sum()
        plot.set_title(f"phase {phase.offset}: sum {total:.2f}")
        plot.set_xticks(shifts, [f"x[j{shift:+d}]" if shift else "x[j]" for shift in shifts])
    return figure
