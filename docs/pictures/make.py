"""Write every drawing of the documentation: `python docs/pictures/make.py [folder]`.

By default the folder is this one. The scripts write the same bytes each time, and a test compares
these with the files in this folder. upconv must be importable.
"""

from __future__ import annotations

import sys
from pathlib import Path

import axes
import inside
import jit
import network
import overlap
import overview
import pool
import speed
import whole_models
import winograd

FAMILIES = (overview, axes, inside, jit, network, overlap, pool, speed, whole_models, winograd)


def main(folder: Path) -> None:
    """Write one file for each drawing of every family."""
    for family in FAMILIES:
        for name, draw in family.DRAWINGS.items():
            (folder / name).write_text(draw().svg(), encoding="utf-8", newline="\n")
            print(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
