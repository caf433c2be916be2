"""The unfolded operand: the inputs of all taps of a position side by side (unfolding.py).

Positions of a row are copied by *windows*: taps that read neighbouring inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from ....problem import DataLayout
from .. import walk
from ..compile import compiled
from ..correlation import Correlation
from ..cpu import Cpu
from ..emit import Function, Module
from ..kernel_arguments import Record, Table, filled, record
from ..packing import Numbers
from ..transpose import as_bits
from ..values import BFLOAT, I16, Value, vector
from .driver import ARGUMENTS
from .operations import PAIRS, ROW_BYTES, ROWS
from .placement import Operand
from .unfolding import runs_of, taps_of

LINE = record("dst first count sources")
"""Neighbouring positions of a row: offset of the first, its number along the axis, how many, and
the first of the rows that they read."""
IMAGE = record("image channel dst")
"""One group of an image: its first channel, and the offset of its positions."""
WINDOW = record("source shift lane length")
"""Taps that read neighbouring inputs: which of a line's rows, the first one's shift, its place
among the inputs of a position, and how many they are."""
LINES = record("first last")
"""Lines that are unfolded together, by number."""
_LINE_POSITIONS, _JOB_POSITIONS = 256, 512


@dataclass(frozen=True, slots=True)
class Window:
    """The class of code that unfolds: type of the operand, channels that lie side by side, and
    inputs of the longest window along the axis."""

    stored: str
    channels: int
    length: int

    @classmethod
    def of(cls, correlation: Correlation, stored: str) -> Window:
        """The class of a correlation."""
        length = max(map(len, runs_of(correlation.lines[-1])), default=1)
        first = correlation.layout is DataLayout.NCX
        return cls(stored, 1 if first else correlation.reduced // correlation.groups, length)


class Unfolded(Operand):
    """The unfolded operand: [group][image][positions of each axis][inputs of all taps]; `before` as
    in channels/blocks.py."""

    def __init__(self, correlation: Correlation, before: int) -> None:
        self.correlation, lines = correlation, correlation.lines
        self.taps = taps_of(correlation)
        self.counts = tuple(line.out for line in lines)
        inputs = correlation.reduced // correlation.groups * self.taps
        position = -(-inputs // PAIRS) * ROW_BYTES
        inner = [position * prod(self.counts[i:]) for i in range(len(lines) + 1)]
        self.steps = np.array(inner, np.int64)
        self.block_bytes = ROW_BYTES
        self.group_bytes = correlation.batch * inner[0] + ROWS * position
        self.nbytes = correlation.groups * self.group_bytes
        self._before = (before, *[0] * (len(lines) - 1))

    def _row_starts(self, rows: Numbers) -> Numbers:
        return np.arange(rows.shape[1]) * self.counts[-1]

    def tables(self) -> dict[str, Table]:
        """Lines of one image, the rows that they read, and windows."""
        *outer, last = self.correlation.lines
        sources = np.zeros((1, 1), np.int64)
        for line, before, size in zip(
            outer, self._before, self.correlation.operand_size, strict=False
        ):
            taps = np.array([tap.shift for tap in line.phases[0].taps], np.int64)
            i = line.step * np.arange(line.out)[:, None] + before - taps
            i[(i < 0) | (i >= size)] = -1
            both = sources[:, None, :, None], i[None, :, None, :]
            joined = np.where((both[0] < 0) | (both[1] < 0), -1, both[0] * size + both[1])
            sources = joined.reshape(joined.shape[0] * joined.shape[1], -1)
        starts = np.arange(0, last.out, _LINE_POSITIONS)
        row, first = (each.ravel() for each in np.indices((len(sources), len(starts))))
        first = starts[first]
        lines = filled(
            LINE, len(row), dst=row * self.steps[-2] + first * self.steps[-1], first=first,
            count=np.minimum(_LINE_POSITIONS, last.out - first), sources=row * sources.shape[1],
        )  # fmt: skip
        listed = np.append(np.where(sources < 0, -1, sources * last.size), -1)
        windows = np.array(list(self._windows()), WINDOW)
        return {"lines": lines, "sources": listed, "windows": windows}

    def jobs(self) -> Table:
        """Lines that are unfolded together: as many as have some 500 positions."""
        length = min(_LINE_POSITIONS, self.counts[-1])
        count = prod(self.counts[:-1]) * -(-self.counts[-1] // _LINE_POSITIONS)
        step = max(1, _JOB_POSITIONS // max(1, length))
        first = np.arange(0, count, step)
        return filled(LINES, len(first), first=first, last=np.minimum(first + step, count))

    def images(self) -> Table:
        """The groups of all images."""
        correlation = self.correlation
        image, group = np.indices((correlation.batch, correlation.groups))
        channels = correlation.reduced // correlation.groups
        return filled(
            IMAGE, image.shape, image=image, channel=group * channels,
            dst=group * self.group_bytes + image * self.steps[0],
        ).ravel()  # fmt: skip

    def _windows(self) -> Iterator[tuple[int, int, int, int]]:
        *outer, last = self.correlation.lines
        by_tap = self.correlation.weight_strides[3:]
        shift = self._before[-1]
        for number, taps in enumerate(product(*(line.phases[0].taps for line in outer))):
            lane = sum(tap.index * step for tap, step in zip(taps, by_tap, strict=False))
            for run in runs_of(last):
                yield number, run[0].shift - shift, lane + run[0].index, len(run)


@compiled("pack", kept=16)
def unfold_code(module: Module, window: Window, cpu: Cpu) -> None:
    """A job `pack`: the inputs of all taps for the positions of some lines."""
    with module.function("pack", walk.JOB) as f:
        a, lines, image = ARGUMENTS.reader(f), Record(f, f["inner"], LINES), f["outer"]
        with f.loop(lines["first"], lines["last"]) as number:
            line = Record.of(f, a["lines"], number.index, LINE)
            _unfold(f, window, line, Record(f, image, IMAGE))


def _unfold(f: Function, window: Window, line: Record, image: Record) -> None:
    """Unfold the positions of a line."""
    a = ARGUMENTS.reader(f)
    dst = a["x"] + (image["dst"] + line["dst"])
    src = a["first_x"] + (image["image"] * a["in_image"] + image["channel"] * a["in_channel"])
    zero = f.constant(vector(I16, PAIRS), 0)
    with f.loop(0, line["count"] * a["x_row"], ROW_BYTES) as loop:
        f.store(zero, dst + loop.index)
    with f.loop(0, a["window_count"]) as loop:
        each = Record.of(f, a["windows"], loop.index, WINDOW)
        row = f.word(a["sources"], line["sources"] + each["source"])
        size = f.select(row >= 0, a["in_size"], 0)
        place = src + f.max(row, 0) * a["in_position"]
        first = line["first"] * a["in_step"] - each["shift"]
        with f.loop(0, a["window_channels"]) as channel:
            to = dst + (each["lane"] + channel.index * a["taps_count"]) * 2
            start = place + channel.index * a["in_channel"]
            with f.loop(0, line["count"]) as position:
                _copy(
                    f, window, to + position.index * a["x_row"], start,
                    first + position.index * a["in_step"], size, each["length"],
                )  # fmt: skip


def _copy(
    f: Function, window: Window, to: Value, start: Value, first: Value, size: Value, length: Value
) -> None:
    """Copy inputs [first, first + length), zeros where they are not in [0, size)."""
    a, channels = ARGUMENTS.reader(f), window.channels
    lanes = _lanes(window.length * channels)
    low, high = f.max(f.integer(0) - first, 0), f.min(length, size - first)
    low = f.min(low, length)
    high = f.max(high, low)
    mask = f.lanes_below(high * channels, lanes) ^ f.lanes_below(low * channels, lanes)
    place = start + f.select(high > low, first * a["in_position"], 0)
    value = as_bits(f, f.load_lanes(vector(window.stored, lanes), place, mask), BFLOAT)
    made = _lanes(window.length)
    every = f.lanes_below(length, made)
    for channel in range(channels):
        part = value
        if channels > 1:
            order = [min(i * channels + channel, lanes - 1) for i in range(made)]
            part = f.shuffle(value, None, order)
        f.store_lanes(part, to + a["taps_count"] * (2 * channel), every)


def _lanes(count: int) -> int:
    return max(4, 1 << (count - 1).bit_length())
