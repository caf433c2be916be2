"""A problem's positions laid out in cells: what is one long row for the positions kernel.

Along an axis with size I, input i lies in cell i and output position j of every phase in cell j;
there are `cells` of them, enough for both and for the zeros that shifts reach between one row and
the next: max(I + e_max, J - e_min). Rows follow each other without gaps, so one shift of an outer
axis is a constant number of lanes away, across rows, planes and images alike.

What lives here: cells, rows, lanes. What never does: tiles, windows, arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from ...geometry import Axis, Phase
from ...problem import Problem


@dataclass(frozen=True, slots=True)
class Line:
    """One axis in cells; `low` and `high` are the least and the greatest shift of its taps."""

    size: int
    stride: int
    out: int
    phases: tuple[Phase, ...]
    cells: int
    low: int
    high: int

    @classmethod
    @lru_cache(maxsize=256)  # both kernels are scheduled to be compared
    def of(cls, axis: Axis) -> Line:
        """An axis in cells, with only the taps that reach an output."""
        phases = tuple(
            Phase(
                phase.offset,
                phase.length,
                tuple(t for t in phase.taps if -axis.size < t.shift < phase.length),
            )
            for phase in axis.phases()
        )
        shifts = [tap.shift for phase in phases for tap in phase.taps]
        low, high = min(shifts, default=0), max(shifts, default=0)
        longest = phases[0].length
        cells = max(axis.size + max(high, 0), longest - min(low, 0), 1)
        return cls(axis.size, axis.stride, axis.out, phases, cells, low, high)


@dataclass(frozen=True, slots=True)
class Cells:
    """All positions of a batch as lanes of one long row.

    A row has `pitch` lanes, an image `rows` rows; `steps` are the rows from one cell of each outer
    axis to the next. Position q reads lanes q - high ... q - low. `total` lanes hold all outputs.
    """

    lines: tuple[Line, ...]
    pitch: int
    rows: int
    steps: tuple[int, ...]
    low: int
    high: int
    total: int

    @classmethod
    def of(cls, problem: Problem) -> Cells:
        """The cells of a problem that has outputs."""
        lines = tuple(map(Line.of, problem.axes))
        *outer, last = lines
        steps = tuple(prod(o.cells for o in outer[i + 1 :]) for i in range(len(outer)))
        rows, pitch = prod(o.cells for o in outer), last.cells
        pairs = list(zip(outer, steps, strict=True))
        end = sum((o.phases[0].length - 1) * step for o, step in pairs)
        return cls(
            lines,
            pitch,
            rows,
            steps,
            low=sum(o.low * step for o, step in pairs) * pitch + last.low,
            high=sum(o.high * step for o, step in pairs) * pitch + last.high,
            total=((problem.batch - 1) * rows + end) * pitch + last.phases[0].length,
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
