"""The tile of a weight gradient, which side of it is which, and the model that chooses both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil, prod

from ....problem import DataLayout, Problem
from ..correlation import weight_strides
from ..cpu import Cpu, costs_of
from ..values import BYTES, computed

_PACK = 0.6  # cycles that packing a number takes
_SEGMENT = 15  # cycles that each segment takes beside its positions


@dataclass(frozen=True, slots=True)
class Tile:
    """`rows` channels of one side by `vectors` of the other's, for `taps` neighbouring taps of the
    last axis, whose numbers of g lie `step` bytes apart. There are `sums` of each, to which
    positions are dealt out in turn: one alone would wait for itself.

    A *depthwise* tile is of layers with a group for each channel: lanes meet lanes.
    """

    element: str
    lanes: int
    taps: int
    step: int
    rows: int
    vectors: int
    sums: int
    depthwise: bool = False

    @classmethod
    def of(
        cls, element: str, lanes: int, taps: int, rows: int, vectors: int, *, depthwise: bool
    ) -> Tile:
        """With as many sums as there should be; where taps lie is not known yet."""
        return cls(
            element, lanes, taps, 0, rows, vectors,
            ceil(8 / (taps * rows * vectors)), depthwise,
        )  # fmt: skip

    @property
    def width(self) -> int:
        """Channels along the lanes."""
        return self.lanes * self.vectors

    @property
    def accumulators(self) -> int:
        """Registers that hold its sums."""
        return self.taps * self.rows * self.vectors * self.sums

    @property
    def single(self) -> Tile:
        """The tile of one tap."""
        return Tile.of(
            self.element, self.lanes, 1, self.rows, self.vectors, depthwise=self.depthwise
        )

    @property
    def cycles(self) -> float:
        """Of one position: multiply-adds, or loads, or what comes from the second-level cache."""
        sums = self.taps * self.rows * self.vectors
        loads = self.vectors + (sums if self.depthwise else self.taps * self.rows)
        nbytes = BYTES[self.element] * (self.rows + self.width)
        costs = costs_of(self.lanes * BYTES[self.element])
        waiting = costs.latency / self.sums
        return max(sums / costs.adds, loads / costs.loads, waiting, nbytes / costs.stream) + 0.5


@dataclass(frozen=True, slots=True)
class Sides:
    """Which side runs along the lanes, how blocks of dw lie in it, and the tile."""

    lanes_of_g: bool
    tile: Tile
    cycles: float
    groups: int
    rows: int  # channels of a group
    lanes: int
    by_row: int  # elements of dw from one channel to the next
    by_lane: int
    by_tap: int

    @property
    def row_blocks(self) -> int:
        """Blocks of a group's rows."""
        return ceil(self.rows / self.tile.rows)

    @property
    def lane_blocks(self) -> int:
        """Blocks of a group's lanes."""
        return ceil(self.lanes / self.tile.width)

    @property
    def widths(self) -> tuple[int, int]:
        """Channels of a panel of x, and of one of g."""
        rows, lanes = self.tile.width if self.tile.depthwise else self.tile.rows, self.tile.width
        return (rows, lanes) if self.lanes_of_g else (lanes, rows)

    def in_place(self, problem: Problem) -> tuple[bool, bool]:
        """Whether x, and g, are read where they lie: channels-last data of whole blocks."""
        last = problem.layout is DataLayout.NXC
        same = problem.dtype.itemsize == BYTES[self.tile.element]
        both = (problem.in_channels, problem.out_channels)
        x, g = (
            same and (last or n == 1) and n // self.groups % width == 0
            for n, width in zip(both, self.widths, strict=True)
        )
        return x, g

    @property
    def transposed(self) -> bool:
        """Whether lanes do not lie side by side in dw."""
        return self.by_lane != 1 and self.lanes > 1

    @property
    def taps_inside(self) -> bool:
        """Whether a row's taps lie side by side in dw, or else a tap's rows."""
        return self.by_tap == 1

    def __str__(self) -> str:
        tile, side = self.tile, "output" if self.lanes_of_g else "input"
        taps = f"{tile.taps} taps x " if tile.taps > 1 else ""
        rows = "" if tile.depthwise else f"{tile.rows} channels x "
        return f"tiles of {taps}{rows}{tile.vectors} vectors of {side} channels"


@lru_cache(maxsize=64)
def sides_of(problem: Problem, cpu: Cpu) -> Sides:
    """The cheaper side for the lanes, and the cheapest tile."""
    element, last = computed(problem.dtype), problem.axes[-1]
    width, taps = cpu.lanes(BYTES[element]), prod(axis.kernel for axis in problem.axes)
    x, g = problem.in_channels // problem.groups, problem.out_channels // problem.groups
    positions = problem.multiply_adds / max(1, problem.groups * x * g * taps)
    inputs, outputs = prod(problem.x_shape), prod(problem.y_shape)
    own = x == g == 1 and problem.groups > 1
    by_group, by_x, by_g, *by_taps = weight_strides(problem, forward=True)
    lanes_of_either = (
        [(False, 1, problem.groups, 0, by_group)]
        if own
        else [(True, x, g, by_x, by_g), (False, g, x, by_g, by_x)]
    )
    groups = 1 if own else problem.groups
    options = []
    for lanes_of_g, rows, lanes, by_row, by_lane in lanes_of_either:
        together = [n for n in range(1, 17) if last.kernel % n == 0 and (n == 1 or not lanes_of_g)]
        for many, vectors, count in product(together, range(1, 9), range(1, min(14, rows) + 1)):
            tile = Tile.of(element, width, many, count, vectors, depthwise=own)
            if tile.accumulators > cpu.sums(vectors) or (vectors - 1) * width >= lanes:
                continue
            sides = Sides(lanes_of_g, tile, 0.0, groups, rows, lanes, by_row, by_lane, by_taps[-1])
            edge = min(1.0, (many - 1) * last.dilation / last.stride / max(1, last.size))
            each = (1 - edge) * tile.cycles / many + edge * tile.single.cycles
            each += _SEGMENT / max(1, last.size) * (1 if many == 1 else 1 / many + 2)
            left = (1.5 if sides.transposed else 0.1) * count * tile.width
            blocks = groups * sides.row_blocks * sides.lane_blocks
            x_in_place, g_in_place = sides.in_place(problem)
            packed = (0 if x_in_place else inputs) + (0 if g_in_place else outputs)
            cycles = blocks * taps * (positions * each + left) + _PACK * packed
            options.append(replace(sides, cycles=cycles))
    return min(options, key=lambda option: option.cycles)
