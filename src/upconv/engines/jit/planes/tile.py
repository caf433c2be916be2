"""The planes kernel's code, which computes depthwise layers without packing the input.

A tile is several rows of an output plane by one or more vectors of positions. It loads each input
line once, cuts the shifts from adjacent vectors in registers, and adds them to all rows that use
the line. Masks leave out positions outside a row, so nothing is copied or padded. Lines above and
below a plane are zeros.

In channels-last data a plane is a row of positions by their channels. The lines are positions, and
vectors run along channels, which have no shifts but separate weights and biases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .. import walk
from ..activation import ActivationEpilogue, activated, second_of
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module
from ..kernel_arguments import ArgumentLayout, Arguments, Record, record
from ..processor_costs import Planes, costs_of
from ..rows import converted
from ..values import BYTES, I1, LINE, Value, vector

ARGUMENTS = ArgumentLayout(
    walk.NUMBERS + "x* y* w* bias* residual* finish* bands* taps*"
    " x_image x_channel x_row y_image y_channel y_row w_channel w_tap"
    " multiplier"  # result channels per input channel
    " x_rows x_width y_width"
    " slopes second",  # bytes from a bias to its slope, and from y to the second result
    counters=walk.COUNTERS,
)
BAND = record("y top bottom taps tap_count")
"""Rows [top, bottom) of a plane at `y` bytes; the outer axes' taps that read inputs there."""
TAP = record("x w")
"""Byte offsets of an outer tap's input plane, and of its weights."""
BANDS, CHANNELS = record("first count"), record("image first count")
"""A job: some bands of some channels in an image."""


class PlaneTile(NamedTuple):
    """A tile's class: everything on which its code depends.

    `steps` and `shifts` have one entry for rows and one for positions in a row. `staged` results
    pass through `finish` after `epilogue`. `last` says that vectors run along channels.
    """

    element: str
    stored: str
    lanes: int
    rows: int
    vectors: int
    steps: tuple[int, int]
    shifts: tuple[tuple[int, ...], tuple[int, ...]]
    epilogue: ActivationEpilogue
    staged: bool
    last: bool = False

    @property
    def kept(self) -> bool:
        """Whether an outer tap's weights stay in registers."""
        count = len(self.shifts[0]) * len(self.shifts[1])
        if self.last:
            return (self.rows + count + 1) * self.vectors <= self.registers - _OTHERS
        return count <= _KEPT[self.registers]

    @property
    def registers(self) -> int:
        """Number of registers on the processors that run it."""
        return 32 if self.lanes * BYTES[self.element] == LINE else 16

    @property
    def width(self) -> int:
        """Number of positions in a row."""
        return self.lanes * self.vectors

    @property
    def lines(self) -> dict[int, list[tuple[int, int]]]:
        """The (row, row tap) pairs that use each input line, numbered from the first row's.

        The lines are in the order in which each row adds its taps. The other kernels add outer axes
        by tap and the last axis by falling shift. The same order here gives a layer the same bits
        in all kernels.
        """
        users: dict[int, list[tuple[int, int]]] = {}
        for row in range(self.rows):
            for tap, shift in enumerate(self.shifts[0]):
                users.setdefault(self.steps[0] * row - shift, []).append((row, tap))
        rising = self.shifts[0][0] < self.shifts[0][-1]
        return dict(sorted(users.items(), reverse=rising and not self.last))

    @property
    def across(self) -> list[tuple[int, int, int]]:
        """A row's taps by falling shift, as (tap, shift, entry of `back`)."""
        taps = enumerate(zip(self.shifts[1], self.back, strict=True))
        return sorted(((tap, *shift) for tap, shift in taps), key=lambda entry: -entry[1])

    @property
    def back(self) -> tuple[int, ...]:
        """The results before a tile's first one that each of a row's shifts reads."""
        return tuple(-(-shift // self.steps[1]) for shift in self.shifts[1])

    @property
    def loads(self) -> int:
        """Number of vectors in a line."""
        return self.steps[1] * (self.vectors - (min(self.back) - max(self.back)) // self.lanes)

    @property
    def costs(self) -> Planes:
        """The cost figures for the processors that run it."""
        return costs_of(self.lanes * BYTES[self.element]).planes

    @property
    def cycles(self) -> float:
        """Cycles per outer tap, for products, loads and cuts."""
        products: float = self.rows * self.vectors * len(self.shifts[0]) * len(self.shifts[1])
        costs = self.costs
        line = costs.load * self.loads + costs.cut * self.vectors * len(self.shifts[1])
        if self.last:
            # Each line needs a separate address, and each weight that is not kept is a load.
            line, products = line + costs.line, products * (1 if self.kept else costs.weight)
        results = costs.result * self.rows * self.vectors
        return products + line * len(self.lines) + results + costs.tile


_KEPT, _OTHERS = {32: 9, 16: 0}, 4
"""Maximum weights in registers, by number of registers, and how many hold other values."""


@compiled("planes", kept=256, opt=1)
def plane_code(module: Module, tile: PlaneTile, cpu: Cpu) -> None:
    """Emit the function `planes`, which the walk calls for a job."""
    with module.function("planes", walk.JOB) as f:
        a, bands, channels = (
            ARGUMENTS.reader(f), Record(f, f["inner"], BANDS), Record(f, f["outer"], CHANNELS)
        )  # fmt: skip
        line = vector(_bits(tile.stored), tile.lanes * tile.loads)
        zeros = f.scratch(tile.loads * tile.lanes * BYTES[tile.stored])
        f.store(Value(line, "zeroinitializer"), zeros)
        stage = f.scratch(tile.rows * tile.width * BYTES[tile.element] if tile.staged else 1)
        tiles = _Tiles(f, a, tile, zeros, stage)
        start, first = channels["first"], bands["first"]
        stop, last = start + channels["count"], first + bands["count"]
        with f.loop(start, stop) as channel, f.loop(first, last) as number:
            band = Record.of(f, a["bands"], number.index, BAND)
            tiles.emit_band(channels["image"], channel.index, band)


class _Tiles(NamedTuple):
    """An emitter of the tiles in bands of rows. `zeros` is a line of zeros, `stage` holds results
    for `finish`."""

    f: Function
    a: Arguments
    tile: PlaneTile
    zeros: Value
    stage: Value

    def emit_band(self, image: Value, channel: Value, band: Record) -> None:
        """Emit all tiles in one channel's band."""
        f, a, tile = self.f, self.a, self.tile
        x = image * a["x_image"] + channel // a["multiplier"] * a["x_channel"]
        y = image * a["y_image"] + channel * a["y_channel"] + band["y"]
        x, w = a["x"] + x, a["w"] + channel * a["w_channel"]
        bias = f.at(a["bias"], channel, tile.element)
        first, bottom = band["taps"], band["bottom"]
        last = first + band["tap_count"]
        with (
            f.loop(band["top"], bottom, tile.rows) as row,
            f.loop(0, a["y_width"], tile.width) as column,
        ):
            start = (column.index - max(tile.back)) * tile.steps[1]
            masks = self.masks(start)
            lane = column.index if tile.last else 0
            here = f.at(bias, lane, tile.element)
            sums = self.lane_values(here) * tile.rows
            with f.loop(first, last, carried=sums) as number:
                tap = Record.of(f, a["taps"], number.index, TAP)
                source = x + (tap["x"] + start * BYTES[tile.stored])
                self.prefetch_next(source, row.index * tile.steps[0])
                weights = f.at(w + tap["w"], lane, tile.element)
                lines = self.lines(source, row.index * tile.steps[0])
                number.next(self.products(lines, masks, weights, list(number.carried)))
            active, left = bottom - row.index, a["y_width"] - column.index
            offset = row.index * a["y_row"] + column.index * BYTES[tile.stored]
            self.store(number.results, y + offset, here + a["slopes"], active, left)

    def masks(self, start: Value) -> list[Value]:
        """Return masks of the lanes in the row, per vector of a line from position `start` on."""
        masks, lanes, width = [], self.tile.lanes, self.a["x_width"]
        for first in range(0, self.tile.loads * lanes, lanes):
            bits = _below(self.f, width - start - first, lanes)
            if first < max(self.tile.back) * self.tile.steps[1]:
                before = _below(self.f, 0 - start - first, lanes)
                bits = bits & (before ^ -1)
            masks.append(_mask(self.f, bits, lanes))
        return masks

    def lane_values(self, address: Value) -> list[Value]:
        """Load each vector's bias or weight: one number in all lanes, or one per lane."""
        f, tile = self.f, self.tile
        if not tile.last:
            return [f.broadcast(f.load(tile.element, address), tile.lanes)] * tile.vectors
        kind = vector(tile.element, tile.lanes)
        offsets = range(0, tile.width, tile.lanes)
        return [f.load(kind, f.at(address, offset, tile.element)) for offset in offsets]

    def lines(self, x: Value, first: Value) -> Callable[[int], Value]:
        """Return a function from a line's number, counted from a plane's row `first`, to its
        address; lines outside the plane are zeros."""
        rows, row_stride = self.a["x_rows"], self.a["x_row"]

        def line(number: int) -> Value:
            row = first + self.f.integer(number)
            inside = self.f.compare("ult", row, rows)
            return self.f.select(inside, x + row * row_stride, self.zeros)

        return line

    def prefetch_next(self, x: Value, first: Value) -> None:
        """Prefetch the lines of the tile below, or of the next plane.

        If taps rise as shifts fall, lines are read from last to first. Without this, a Zen 3 took 3
        times as long for planes from beyond the second-level cache (2026-11-28).
        """
        f, tile, row_stride = self.f, self.tile, self.a["x_row"]
        count = tile.rows * tile.steps[0]
        if tile.registers == 16 and not tile.last:
            for i in range(count):
                f.prefetch(x + (first + (count + i)) * row_stride)

    def products(
        self, line: Callable[[int], Value], masks: list[Value], w: Value, sums: list[Value]
    ) -> list[Value]:
        """Add one outer tap's products."""
        f, tile, w_tap = self.f, self.tile, self.a["w_tap"]
        across, kind = len(tile.back), vector(tile.element, tile.lanes)

        def weight(number: int) -> list[Value]:
            step = w_tap * number if tile.last else number * BYTES[tile.element]
            return self.lane_values(w + step)

        kept = [weight(i) for i in range(len(tile.shifts[0]) * across)] if tile.kept else []
        for number, uses in tile.lines.items():
            f.order()
            parts = self.parts(line(number), masks)
            for tap, shift, back in tile.across:
                part = parts[back * tile.steps[1] - shift]
                for v in range(tile.vectors):
                    index, lane = divmod(v * tile.lanes + max(tile.back) - back, tile.lanes)
                    cut = part[index]
                    if lane:
                        cut = f.shuffle(cut, part[index + 1], range(lane, lane + tile.lanes))
                    cut = f.convert("bitcast", cut, kind)
                    for row, row_tap in uses:
                        i, n = row * tile.vectors + v, row_tap * across + tap
                        factor = (kept[n] if kept else weight(n))[v]
                        sums[i] = f.multiply_add(cut, factor, sums[i])
        return sums

    def parts(self, line: Value, masks: list[Value]) -> list[list[Value]]:
        """Return a line's vectors, or with step 2, those of its even and of its odd positions.

        They are integers, which LLVM cuts with one instruction; floats would take three.
        """
        f, tile, lanes = self.f, self.tile, self.tile.lanes
        read, vectors = _bits(tile.stored), []
        for i, mask in enumerate(masks):
            numbers = f.load_lanes(vector(read, lanes), f.at(line, i * lanes, read), mask)
            if tile.stored != tile.element:
                numbers = f.convert("bitcast", numbers, vector(tile.stored, lanes))
                numbers = converted(f, numbers, tile.element)
                numbers = f.convert("bitcast", numbers, vector(_bits(tile.element), lanes))
            vectors.append(numbers)
        if tile.steps[1] == 1:
            return [vectors]
        pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
        return [[f.shuffle(*pair, range(i, 2 * lanes, 2)) for pair in pairs] for i in (0, 1)]

    def store(
        self, sums: list[Value], offset: Value, slopes: Value, active: Value, left: Value
    ) -> None:
        """Store the sums of the rows and positions that exist."""
        f, a, tile = self.f, self.a, self.tile
        row_stride, y, epilogue = a["y_row"], a["y"] + offset, tile.epilogue
        factors = self.lane_values(slopes) if epilogue.slopes else [epilogue.slope] * tile.vectors
        sums = [
            activated(f, epilogue.activation, factors[i % tile.vectors], value)
            for i, value in enumerate(sums)
        ]
        if tile.staged:
            for i, value in enumerate(sums):
                f.store(value, f.at(self.stage, i * tile.lanes, tile.element))
            shape = f.min(active, tile.rows), f.min(left, tile.width)
            row, more = tile.width * BYTES[tile.element], a["residual"] + offset
            steps = row, row_stride, slopes, a["second"]
            f.call(a["finish"], self.stage, y, more, 1, 0, 0, *shape, *steps)
            return
        self.store_rows(sums, y, active, left)
        if epilogue.has_second:
            others = [second_of(f, epilogue, value) for value in sums]
            self.store_rows(others, y + a["second"], active, left)

    def store_rows(self, values: list[Value], y: Value, active: Value, left: Value) -> None:
        """Store one result for the rows and positions that exist."""
        f, tile, row_stride = self.f, self.tile, self.a["y_row"]
        places = range(0, tile.width, tile.lanes)
        masks = [_mask(f, _below(f, left - first, tile.lanes), tile.lanes) for first in places]
        for row in range(tile.rows):
            with f.when(active > row):
                to = y + row_stride * row
                for v, mask in enumerate(masks):
                    value = converted(f, values[row * tile.vectors + v], tile.stored)
                    place = f.at(to, v * tile.lanes, tile.stored)
                    f.store_below(value, place, left - v * tile.lanes, mask)


def _below(f: Function, count: Value, lanes: int) -> Value:
    """Return a bit set for each of the first `count` lanes."""
    return (1 << f.max(f.min(count, lanes), 0)) - 1


def _mask(f: Function, bits: Value, lanes: int) -> Value:
    """Turn bits into a mask. Integer units compute the bits while vector units compute sums."""
    return f.convert("bitcast", f.convert("trunc", bits, f"i{lanes}"), vector(I1, lanes))


def _bits(element: str) -> str:
    return f"i{8 * BYTES[element]}"
