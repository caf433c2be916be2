"""The tile of a weight gradient: what it is, what a position of it takes, and its code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import ceil

from ..compile import compiled
from ..costs import Costs, costs_of
from ..cpu import Cpu
from ..emit import Function, Module, signature
from ..values import BYTES, I64, Value, vector

TILE = signature(
    "segments* count"  # pairs of byte offsets into the panels
    " rows* lanes* positions"  # the latter of each segment
    " row_step lane_step"  # bytes from one position to the next
    " start* start_row start_tap"  # sums so far
    " out* out_row out_tap"
)


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
    rows: int
    vectors: int
    depthwise: bool = False
    step: int = 0

    @property
    def sums(self) -> int:
        """As many of each as eight registers or more are busy with."""
        return ceil(8 / (self.taps * self.rows * self.vectors))

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
        return replace(self, taps=1, step=0)

    @property
    def costs(self) -> Costs:
        """The figures of the processors it is for."""
        return costs_of(self.lanes * BYTES[self.element])

    @property
    def cycles(self) -> float:
        """Cycles of one position: multiply-adds, loads, or bytes from the second-level cache."""
        sums = self.taps * self.rows * self.vectors
        loads = self.vectors + (sums if self.depthwise else self.taps * self.rows)
        nbytes = BYTES[self.element] * (self.rows + self.width)
        costs = self.costs
        waiting = costs.latency / self.sums
        work = max(sums / costs.adds, loads / costs.loads, waiting, nbytes / costs.stream)
        return work + costs.step


@compiled("tile", kept=64)
def tile_code(module: Module, tile: Tile, cpu: Cpu) -> None:
    """`tile` of one class."""
    with module.function("tile", TILE) as f:
        _emit_tile(f, tile)


def _emit_tile(f: Function, tile: Tile) -> None:
    kind, size = vector(tile.element, tile.lanes), BYTES[tile.element]
    numbers = list(product(range(tile.taps), range(tile.rows), range(tile.vectors)))

    def address(name: str, tap: int, row: int, line: int) -> Value:
        offset = f[f"{name}_tap"] * tap + f[f"{name}_row"] * row
        return f[name] + offset + line * tile.lanes * size

    def products(row: Value, lane: Value, sums: list[Value]) -> list[Value]:
        lines = [f.load(kind, lane + v * tile.lanes * size) for v in range(tile.vectors)]
        totals = []
        for (tap, r, v), total in zip(numbers, sums, strict=True):
            if tile.depthwise:
                factor = f.load(kind, row + (tap * tile.step + v * tile.lanes * size))
            elif v == 0:
                number = f.load(tile.element, row + (tap * tile.step + r * size))
                factor = f.broadcast(number, tile.lanes)
            totals.append(f.multiply_add(factor, lines[v], total))
        return totals

    each, n = tile.sums, len(numbers)
    starts = [f.load(kind, address("start", *number)) for number in numbers]
    starts += [f.constant(kind, 0.0)] * (n * (each - 1))
    full = f["positions"] // each * each
    with f.loop(0, f["count"], carried=starts) as segment:
        offsets = f.at(f["segments"], segment.index * 2, I64)
        row, lane = (f[s] + f.word(offsets, i) for i, s in enumerate(("rows", "lanes")))
        with f.loop(0, full, each, [*segment.carried, row, lane]) as position:
            *sums, row, lane = position.carried
            totals: list[Value] = []
            for i in range(each):
                totals += products(row, lane, sums[i * n : (i + 1) * n])
                row, lane = row + f["row_step"], lane + f["lane_step"]
            position.next([*totals, row, lane])
        *sums, row, lane = position.results
        if each > 1:
            with f.loop(full, f["positions"], 1, [*sums[:n], row, lane]) as position:
                *first, row, lane = position.carried
                first = products(row, lane, first)
                position.next([*first, row + f["row_step"], lane + f["lane_step"]])
            sums[:n] = position.results[:n]
        segment.next(sums)
    for i, number in enumerate(numbers):
        total = segment.results[i]
        for more in range(1, each):
            total = total + segment.results[more * n + i]
        f.store(total, address("out", *number))
