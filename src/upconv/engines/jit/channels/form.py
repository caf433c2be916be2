"""A correlation's form, which many sizes share, and its data's memory order.

Bytes refer to channels-last data: the caller's arrays, or transposed channels-first data in scratch
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ....problem import DataLayout
from ..correlation import Correlation, WeightForm
from ..cpu import Cpu
from ..packing import Numbers
from ..rows import Finish
from ..values import BFLOAT, BYTES, STORED
from .schedule import Cut, merged_taps

_MAX_CAST = 1 << 28  # bytes of a cast input: larger ones are read in place, with the same bits


@dataclass(frozen=True, slots=True)
class Form:
    """Channels, types, and the cut into grids.

    `points` has the points of each block's tile, which comparing blocks ignores. `merges` says for
    each grid whether some block merges taps. `transposed` data is transposed before the passes and
    back after them; `finish` comes last. `groups` are computed one by one. `read` is the type of
    the tiles' inputs. `element` and `y_bytes` are the bytes of a sum and of an output.
    """

    weight: WeightForm
    cut: Cut
    cpu: Cpu
    finish: Finish
    points: tuple[int, ...]
    merges: tuple[bool, ...]
    transposed: bool
    groups: int
    element: int
    read: str
    y_bytes: int

    @classmethod
    def of(cls, correlation: Correlation, cut: Cut, cpu: Cpu) -> Form:
        """Return a correlation's form."""
        weight, lanes = correlation.weight, cut.lanes
        element, stored = BYTES[weight.element], weight.dtype.itemsize
        transposed = correlation.layout is DataLayout.NCX
        finish = Finish.of(correlation, correlation.layout)
        points = [block.points for block in cut.blocks]
        merges = [any(merged_taps(lanes, block) > 1 for block in g.blocks) for g in cut.grids]
        return cls(
            weight, cut, cpu, finish,
            tuple(points), tuple(merges), transposed, 1 if lanes.depthwise else weight.groups,
            element,
            read_type(correlation, cut, cpu),
            element if transposed else stored,
        )  # fmt: skip

    @property
    def x_bytes(self) -> int:
        """Bytes of a number in the tiles' input."""
        return BYTES[self.read]


def read_type(correlation: Correlation, cut: Cut, cpu: Cpu) -> str:
    """Return the type in which tiles read inputs; channels-last data of another type is cast first.

    Each read of a 16-bit input widens it, which takes longer than one cast for all reads.
    """
    lanes, stored = cut.lanes, STORED[correlation.dtype]
    if lanes.dots:
        return BFLOAT
    reads = sum(
        prod(len(phase.taps) for phase in grid.outer) * len(block.shifts) / grid.phase_group.unroll
        for grid in cut.grids
        for block in grid.blocks
    )
    few = reads <= cpu.costs.channels.reads * prod(line.step for line in correlation.lines)
    few |= prod(correlation.operand_shape) * BYTES[correlation.element] > _MAX_CAST
    in_place = correlation.layout is DataLayout.NXC and (few or lanes.depthwise)
    return stored if in_place else correlation.element


class ChannelsLast:
    """The channels-last memory order of a correlation's data, or of a spatial block's.

    `x_steps` and `y_steps` are the bytes from one image, and from one position on each axis, to the
    next. `counts` are each grid's points along each axis. `missing` counts each grid's lanes that
    do not exist at a row's last point.
    """

    def __init__(self, correlation: Correlation, form: Form) -> None:
        self.correlation, self.form, cut = correlation, form, form.cut
        self.x_steps = steps_of(correlation.operand_size, correlation.reduced * form.x_bytes)
        self.y_steps = steps_of(correlation.result_size, correlation.made * form.y_bytes)
        self.counts = cut.counts(correlation.result_size)
        ends = self.counts[:, -1] * cut.steps[-1] + cut.offsets[:, -1] - correlation.lines[-1].out
        phases = np.array([len(grid.phase_group.taps) for grid in cut.grids]) - cut.steps[-1]
        self.missing = np.maximum(0, ends + phases) * cut.lanes.channels


def steps_of(size: tuple[int, ...], position: int) -> Numbers:
    """Return the bytes from one image, and from one position on each axis, to the next in
    channels-last data with `position` bytes per position."""
    return np.array([position * prod(size[i:]) for i in range(len(size) + 1)], np.int64)
