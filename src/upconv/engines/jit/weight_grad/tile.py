"""A weight gradient's tile: its class, its cycles per position, and its code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import ceil

from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module, signature
from ..processor_costs import Costs, costs_of
from ..values import BYTES, I32, I64, Value, vector

TILE = signature(
    "segments* count"  # pairs of byte offsets into the panels
    " rows* lanes* positions"  # both panels, and the number of positions in each segment
    " row_step lane_step"  # bytes from one position to the next
    " start* start_row start_tap"  # sums so far
    " out* out_row out_tap"
)


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile's class: `rows` channels of one side by `vectors` vectors of the other, for `taps`
    adjacent taps of the last axis, whose numbers of g are `step` bytes apart. Each result has
    `sums` sums, which take positions in turn: one sum would wait for its previous addition.

    A *depthwise* tile is for layers with one group per channel: it multiplies lanes by lanes.

    With `dots`, as in `Cpu`, panels hold pairs of bfloat16: the numbers of a position and of the
    next one. Pairs overlap, so a run may begin anywhere; it reads every second pair.
    """

    element: str
    lanes: int
    taps: int
    rows: int
    vectors: int
    depthwise: bool = False
    step: int = 0
    dots: float = 0.0

    @property
    def at_once(self) -> int:
        """Number of positions that one instruction sums."""
        return 2 if self.dots else 1

    @property
    def sums(self) -> int:
        """Number of sums per result, so that at least eight registers are busy."""
        return ceil(8 / (self.taps * self.rows * self.vectors))

    @property
    def width(self) -> int:
        """Number of channels along the lanes."""
        return self.lanes * self.vectors

    @property
    def accumulators(self) -> int:
        """Number of registers that hold sums."""
        return self.taps * self.rows * self.vectors * self.sums

    @property
    def single(self) -> Tile:
        """The same tile for a single tap."""
        return replace(self, taps=1, step=0)

    @property
    def costs(self) -> Costs:
        """The cost figures for processors with vectors of this width."""
        return costs_of(self.lanes * BYTES[self.element])

    @property
    def cycles(self) -> float:
        """Cycles per position: the maximum for multiply-adds, loads, latency and L2 bandwidth."""
        sums = self.taps * self.rows * self.vectors
        loads = self.vectors + (sums if self.depthwise else self.taps * self.rows)
        nbytes = BYTES[self.element] * (self.rows + self.width)
        costs = self.costs
        adds, latency = sums / costs.adds, costs.latency / self.sums
        if self.dots:
            adds, latency = sums * 2 / self.dots, costs.channels.dot_latency / self.sums
        work = max(adds, loads / costs.loads, latency, nbytes / costs.stream)
        return (work + costs.step) / self.at_once


@compiled("tile", kept=64)
def tile_code(module: Module, tile: Tile, cpu: Cpu) -> None:
    """Emit the function `tile` for a class."""
    with module.function("tile", TILE) as f:
        _emit_tile(f, tile)


def _emit_tile(f: Function, tile: Tile) -> None:
    kind, size = vector(tile.element, tile.lanes), BYTES[tile.element]
    numbers = _numbers(tile)

    def address(name: str, tap: int, row: int, line: int) -> Value:
        offset = f[f"{name}_tap"] * tap + f[f"{name}_row"] * row
        return f[name] + offset + line * tile.lanes * size

    parts, n = tile.sums, len(numbers)
    starts = [f.load(kind, address("start", *number)) for number in numbers]
    starts += [f.constant(kind, 0.0)] * (n * (parts - 1))
    at_once = tile.at_once
    together = parts * at_once
    full = f["positions"] // together * together
    with f.loop(0, f["count"], carried=starts) as segment:
        offsets = f.at(f["segments"], segment.index * 2, I64)
        row, lane = (f[s] + f.word(offsets, i) for i, s in enumerate(("rows", "lanes")))
        steps = f["row_step"] * at_once, f["lane_step"] * at_once
        with f.loop(0, full, together, [*segment.carried, row, lane]) as position:
            *sums, row, lane = position.carried
            totals: list[Value] = []
            for i in range(parts):
                totals += _products(f, tile, row, lane, sums[i * n : (i + 1) * n])
                row, lane = row + steps[0], lane + steps[1]
            position.next([*totals, row, lane])
        *sums, row, lane = position.results
        if together > 1:
            with f.loop(full, f["positions"], at_once, [*sums[:n], row, lane]) as position:
                *first, row, lane = position.carried
                mask = _lower_half(f, tile, position.index) if tile.dots else None
                first = _products(f, tile, row, lane, first, mask)
                position.next([*first, row + steps[0], lane + steps[1]])
            sums[:n] = position.results[:n]
        segment.next(sums)
    for i, number in enumerate(numbers):
        total = segment.results[i]
        for part in range(1, parts):
            total = total + segment.results[part * n + i]
        f.store(total, address("out", *number))


def _numbers(tile: Tile) -> list[tuple[int, int, int]]:
    """Return each sum's tap, row and vector."""
    return list(product(range(tile.taps), range(tile.rows), range(tile.vectors)))


def _products(
    f: Function, tile: Tile, row: Value, lane: Value, sums: list[Value], mask: Value | None = None
) -> list[Value]:
    """Add a position's products, or those of a pair of positions under a `mask`."""
    size, read = BYTES[tile.element], I32 if tile.dots else tile.element

    def load(address: Value, kind: str) -> Value:
        value = f.load(kind, address)
        value = f.broadcast(value, tile.lanes) if kind == read else value
        return value if mask is None else value & mask

    line = vector(read, tile.lanes)
    lines = [load(lane + v * tile.lanes * size, line) for v in range(tile.vectors)]
    totals = []
    for (tap, r, v), total in zip(_numbers(tile), sums, strict=True):
        if tile.depthwise:
            factor = load(row + (tap * tile.step + v * tile.lanes * size), line)
        elif v == 0:
            factor = load(row + (tap * tile.step + r * size), read)
        add = f.dots(total, factor, lines[v]) if tile.dots else None
        totals.append(add or f.multiply_add(factor, lines[v], total))
    return totals


def _lower_half(f: Function, tile: Tile, index: Value) -> Value:
    """Return a mask for pairs that keeps only the first number if `index` is the last position."""
    is_last = f.compare("eq", index + 1, f["positions"])
    bits = f.select(is_last, Value(I32, "65535"), Value(I32, "-1"))
    return f.broadcast(bits, tile.lanes)
