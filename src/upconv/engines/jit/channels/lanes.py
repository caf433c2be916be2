"""What tiles of the channel-vectorised kernel are chosen by: its lanes, and which taps reach
inputs.

A tap that is outside the input for all points of a tile is skipped. How many that are depends on
how many points a tile has, so it is counted, where points are few enough for it to matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, reduce
from math import prod
from typing import Any

import numpy as np

from ....geometry import Tap
from ....problem import DType
from ..correlation import Correlation, WeightForm
from ..costs import Costs
from ..cpu import Cpu
from ..values import BYTES


@dataclass(frozen=True, slots=True)
class Lanes:
    """What the choice of phase groups depends on beside sizes: taps of the last axis by phase,
    lanes, and the processor.

    `ungrouped` says that no other group's channels lie between those of two positions. `reduction`
    is the input channels of a group; `sums` are registers for sums, by the vectors of a tile, as
    far as there is one for each; `dots` is the processor's, or 0 where they are multiplied as
    float32.
    """

    step: int
    stride: int
    taps: tuple[tuple[Tap, ...], ...]
    channels: int
    width: int
    sums: tuple[int, ...]
    costs: Costs
    depthwise: bool
    ungrouped: bool
    reduction: int
    dots: float
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        # What is cached by it is asked for often, and hashing hundreds of taps takes long.
        object.__setattr__(self, "_hash", hash((self.taps, self.channels, self.reduction)))

    def __hash__(self) -> int:
        return self._hash


def is_depthwise(weight: WeightForm, cpu: Cpu) -> bool:
    """Whether lanes run over the channels of all groups, each with weights of its own."""
    own_in = weight.reduced // weight.groups
    multiplier = weight.made // weight.groups
    width = cpu.lanes(BYTES[weight.element])
    return own_in == 1 and weight.groups > 1 and width % multiplier == 0 and width > multiplier


def can_dot(correlation: Correlation, cpu: Cpu) -> bool:
    """Whether there are dot-product instructions for a correlation, and pairs to give them."""
    paired = correlation.dtype is DType.BFLOAT16 and correlation.reduced >= 2 * correlation.groups
    return cpu.dots > 0 and paired


def lanes_of(correlation: Correlation, cpu: Cpu, dots: bool | None = None) -> Lanes:
    """What a correlation's lanes are made of: with `dots` or without, or as is faster on `cpu`."""
    dots = can_dot(correlation, cpu) and (cpu.dots > 1 if dots is None else dots)
    last = correlation.lines[-1]
    taps = tuple(phase.taps for phase in last.phases)
    return _lanes(correlation.weight, last.step, last.stride, taps, cpu, dots)


@lru_cache(maxsize=256)
def _lanes(
    weight: WeightForm,
    step: int,
    stride: int,
    taps: tuple[tuple[Tap, ...], ...],
    cpu: Cpu,
    dots: bool,
) -> Lanes:
    own = is_depthwise(weight, cpu)
    return Lanes(
        step, stride, taps,
        weight.made // (1 if own else weight.groups),
        cpu.lanes(BYTES[weight.element]),
        tuple(cpu.sums(n) for n in range(9) if cpu.sums(n) >= n), cpu.costs, own,
        weight.groups == 1, 1 if own else weight.reduced // weight.groups,
        cpu.dots if dots else 0.0,
    )  # fmt: skip


# Taps that reach inputs ---------------------------------------------------------------------------


POINTS = (1, 2, 3, 4, 6, 8, 12)  # points of tiles: few, so that little is compiled
STEP = 24  # a multiple of all of these
_PARENTS = {2: 1, 3: 1, 4: 2, 6: 3, 8: 4, 12: 6}  # of whose tiles those of a size are made
_SMALL = 1 << 17  # points times taps up to which taps that are skipped are counted
_MANY = 960  # points from which on their number does not matter to the choice of tiles
_WORD = 8  # bytes

Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Along:
    """One axis of a grid: inputs, points, inputs from one point to the next, shifts of the taps."""

    size: int
    count: int
    step: int
    shifts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """How many points a grid has, and the part of the taps that tiles of each size in POINTS cannot
    skip."""

    points: int
    taps: int
    parts: tuple[float, ...]


@lru_cache(maxsize=1024)
def reach(axes: tuple[Along, ...], images: int, inside: bool) -> Reach:
    """Of a grid's points, for `images` images, which are the innermost dim if `inside`."""
    taps = prod(len(axis.shifts) for axis in axes)
    points = images * prod(axis.count for axis in axes)
    if not 0 < points * taps <= _SMALL:
        return Reach(min(points, _MANY), taps, (1.0,) * len(POINTS))
    if len(axes) == 1 and (inside or images == 1):
        return Reach(points, taps, _parts_of_axis(axes[0], images))
    whole = np.ones((1, 1), bool)
    for axis in axes:
        each = _valid(axis)
        both = whole[:, None, :, None] & each[None, :, None, :]
        whole = both.reshape(len(whole) * len(each), -1)
    whole = np.repeat(whole, images, axis=0) if inside else np.tile(whole, (images, 1))
    return Reach(points, taps, _parts(whole))


def _parts_of_axis(axis: Along, images: int) -> tuple[float, ...]:
    """`_parts` of one axis, of whose points each is one of every image: a tap's are a run."""
    runs = [
        (max(0, -(-shift // axis.step)), min(axis.count, -(-(axis.size + shift) // axis.step)))
        for shift in axis.shifts
    ]
    runs = [(start * images, stop * images) for start, stop in runs if start < stop]
    parts = []
    for size in POINTS:
        tiles = sum((stop - 1) // size - start // size + 1 for start, stop in runs)
        number = -(-axis.count * images // size)
        parts.append(round(tiles / (number * len(axis.shifts)), 3))
    return tuple(parts)


def _valid(axis: Along) -> Flags:
    """Which taps read an input that exists, for each point along an axis, as (points, taps)."""
    inputs = np.arange(axis.count)[:, None] * axis.step - np.array(axis.shifts, np.int64)
    found: Flags = (inputs >= 0) & (inputs < axis.size)
    return found


def _parts(whole: Flags) -> tuple[float, ...]:
    """The part of the taps that some point of a tile needs, for each size of tiles."""
    points, taps = whole.shape
    padded = np.zeros((-(-points // STEP) * STEP, -(-taps // _WORD) * _WORD), bool)
    padded[:points, :taps] = whole
    tiles = {1: padded.view(np.uint64)}  # eight taps at a time
    for size, parent in _PARENTS.items():
        count = size // parent
        tiles[size] = reduce(np.bitwise_or, (tiles[parent][i::count] for i in range(count)))
    counts = ((int(np.count_nonzero(tiles[n].view(bool))), -(-points // n)) for n in POINTS)
    return tuple(round(count / (number * taps), 3) for count, number in counts)
