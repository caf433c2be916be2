"""Write every plot of the gallery, for light and dark pages: `python docs/gallery/make.py folder`.

Needs matplotlib and upconv.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
sys.path.append(str(Path(__file__).parents[1] / "pictures"))  # the reader of docs/benchmarks.md

import matplotlib.pyplot as plt
import overlap
import padding
import phases
import receptive_field
import speed
import style

PLOTS = (overlap, phases, padding, receptive_field, speed)


def main(folder: Path) -> None:
    """Write two files for each plot."""
    folder.mkdir(parents=True, exist_ok=True)
    for scheme in style.SCHEMES:
        with mpl.rc_context(style.settings(scheme)):
            for plot in PLOTS:
                figure = plot.draw()
                name = folder / f"{plot.__name__}-{scheme}.svg"
                figure.savefig(name, metadata={"Date": None})
                plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
