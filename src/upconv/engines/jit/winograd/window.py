"""A correlation's axis in tiles of Winograd's algorithm, and the transforms for it.

Results have numbers o = stride * q + base + g, operands i = step * p + start + h. All *phases* g of
a q read the same window of r positions p, whatever the crops. The operands' phases h are reduced
like channels. A dilated kernel's positions are d apart. Then q, q + d, q + 2d and so on form a
separate sequence for each of d *residues*. A *tile* is m values of q, d apart. A *group* has the
tiles of all residues, whose results are neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import ceil, gcd

from ....geometry import Tap
from ..correlation import Correlation, Line
from .transforms import Transform

_MAX_OF_AXIS = 36  # points, which are registers or stack slots in the transforms


@dataclass(frozen=True, slots=True)
class Window:
    """An axis's window: q reads r positions, `apart` from each other, from q + low on. `taps` are
    (phase g, phase h, number of the position, kernel index)."""

    step: int
    stride: int
    base: int
    start: int
    low: int
    apart: int
    r: int
    taps: tuple[tuple[int, int, int, int], ...]

    @classmethod
    def of(cls, line: Line) -> Window:
        """Return the line's window, with the numbering that makes it shortest."""
        phases = tuple((phase.offset, phase.taps) for phase in line.phases)
        return _shortest(line.step, line.stride, phases, line.high, line.out % line.stride)

    def steps(self, line: Line) -> int:
        """Return a line's number of values of q."""
        return (line.out - 1 - self.base) // self.stride + 1

    def groups(self, transform: Transform, line: Line) -> int:
        """Return a line's number of groups of tiles."""
        return -(-self.steps(line) // (self.apart * transform.m))


Phases = tuple[tuple[int, tuple[Tap, ...]], ...]
"""Each phase's offset and taps."""


@lru_cache(maxsize=256)
def _shortest(step: int, stride: int, phases: Phases, high: int, rest: int) -> Window:
    """Return the shortest window; of equally short ones, the one with the fewest values of q.

    The result's size matters only by its `rest` modulo the stride.

    Result phases may begin where shifts change, operand phases with the first operand read.
    """
    bases, starts = {0}, {0, -(high % step)}
    for (_, before), (offset, taps) in pairwise(phases):
        if {tap.shift for tap in before} != {tap.shift for tap in taps}:
            bases.add(offset - stride)
    options = (_numbered(step, stride, phases, *origin) for origin in product(bases, starts))
    return min(
        options, key=lambda option: (option.r, (rest - 1 - option.base) // stride, option.base)
    )


def _numbered(step: int, stride: int, phases: Phases, base: int, start: int) -> Window:
    reads = []
    for offset, taps in phases:
        lead = int(offset >= base + stride)  # q - j
        for tap in taps:
            position, h = divmod(-tap.shift - start, step)
            reads.append((offset - base - lead * stride, h, position - lead, tap.index))
    positions = [position for _, _, position, _ in reads]
    low, high = min(positions, default=0), max(positions, default=0)
    apart = gcd(*(position - low for position in positions)) or 1
    numbered = tuple((g, h, (position - low) // apart, index) for g, h, position, index in reads)
    return Window(step, stride, base, start, low, apart, (high - low) // apart + 1, numbered)


@lru_cache(maxsize=64)
def transforms_of(r: int) -> tuple[Transform, ...]:
    """Return the transforms worth trying for r taps.

    No other transform is as exact, with as few products and points per output, and as few outputs.
    """
    halves = Transform.of(2, 2)
    quarters = halves.around(halves)
    inner = (Transform.of(1, 1), halves, quarters, halves.around(quarters), Transform.of(3, 3))
    options: dict[tuple[float, ...], Transform] = {}
    for block in inner:
        blocks = ceil(r / block.r)
        sizes = {1: ((1, 1),), 2: ((2, 2), (3, 2), (4, 2)), 3: ((2, 3), (4, 3))}.get(blocks, ())
        nested = [
            outer.around(block).of_taps(r)
            for outer in (Transform.of(*size) for size in sizes)
            if outer.points * block.points <= _MAX_OF_AXIS
            and outer.r * block.r <= 2 * r
            and (outer.exact or block.exact)
        ]
        for transform in (*nested, *([block.in_pieces(blocks)] if blocks > 1 else [])):
            options.setdefault(_needs(transform, r), transform)
    return tuple(
        transform
        for needs, transform in options.items()
        if not any(_beats(other, needs) for other in options if other != needs)
    )


def _needs(transform: Transform, r: int) -> tuple[float, ...]:
    """Return products and points per output, whether the transform is inexact, and its outputs."""
    products = sum(transform.pieces_of(r)) / transform.m
    return products, transform.points / transform.m, float(not transform.exact), transform.m


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


@lru_cache(maxsize=64)
def windows_of(correlation: Correlation) -> tuple[Window, ...]:
    """Return each axis's window."""
    return tuple(map(Window.of, correlation.lines))
