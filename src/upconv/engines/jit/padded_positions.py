"""A correlation's positions laid out in cells: what is one long row for the positions kernel.

Of an axis there are enough for inputs, outputs, and the zeros that shifts reach between one row and
the next: max(I + e_max, J - e_min).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from ...geometry import Phase
from .correlation import Correlation, Line


def cells_of(line: Line) -> int:
    """The cells of an axis: enough for operand and result, and for the zeros between rows."""
    return max(line.size + max(line.high, 0), line.phases[0].length - min(line.low, 0), 1)


@dataclass(frozen=True, slots=True)
class Cells:
    """All positions of a batch as lanes of one long row.

    `each` are the cells of each axis. A row has `pitch` lanes, an image `rows` rows; `steps` are
    the rows from one cell of each outer axis to the next. Position q reads lanes q - high ...
    q - low. `total` lanes hold all outputs.
    """

    lines: tuple[Line, ...]
    each: tuple[int, ...]
    pitch: int
    rows: int
    steps: tuple[int, ...]
    low: int
    high: int
    total: int

    @classmethod
    def of(cls, correlation: Correlation) -> Cells:
        """The cells of a correlation that has outputs."""
        lines = correlation.lines
        *outer, last = lines
        cells = tuple(map(cells_of, lines))
        steps = tuple(prod(cells[i + 1 : -1]) for i in range(len(outer)))
        rows, pitch = prod(cells[:-1]), cells[-1]
        pairs = list(zip(outer, steps, strict=True))
        end = sum((o.phases[0].length - 1) * step for o, step in pairs)
        return cls(
            lines,
            cells,
            pitch,
            rows,
            steps,
            low=sum(o.low * step for o, step in pairs) * pitch + last.low,
            high=sum(o.high * step for o, step in pairs) * pitch + last.high,
            total=((correlation.batch - 1) * rows + end) * pitch + last.phases[0].length,
        )

    @property
    def last(self) -> Line:
        """The axis that vectors run along."""
        return self.lines[-1]

    @property
    def outer(self) -> tuple[Line, ...]:
        """The other axes."""
        return self.lines[:-1]

    def combos(self) -> Iterator[tuple[Phase, ...]]:
        """The combinations of phases of the outer axes."""
        return product(*(each.phases for each in self.outer))
