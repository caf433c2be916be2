"""Times of each layer of docs/benchmarks.md as multiples of upconv's."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from style import HUES

from benchmarks import NAMES, layers


def draw() -> Figure:
    """Draw a row for each layer, with a mark for each library."""
    figure, plot = plt.subplots(figsize=(9, 6))
    rows = layers()
    for number, (column, name) in enumerate(NAMES.items()):
        done = [at for at, row in enumerate(rows) if row[column] != "-"]
        times = [float(rows[at][column]) / float(rows[at]["jit"]) for at in done]
        plot.scatter(times, done, color=HUES[number], marker="osD^"[number], label=name)
    plot.axvline(1, color=plt.rcParams["text.color"], linewidth=1)
    plot.set_xscale("log", base=2)
    plot.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    plot.xaxis.set_minor_formatter(NullFormatter())
    plot.set_yticks(range(len(rows)), [f"{row['layer']}  {row['input']}" for row in rows])
    plot.invert_yaxis()
    plot.grid(axis="both", alpha=0.5)
    plot.set_axisbelow(True)
    plot.set_xlabel("time as a multiple of the JIT engine's; upconv is faster to the right of 1")
    figure.legend(loc="outside upper center", ncols=4)
    return figure
