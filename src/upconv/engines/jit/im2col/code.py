"""The im2col kernel's code, which multiplies by a weight in place.

A row of the weight has all numbers that one result channel uses. For each position, `gather` copies
the inputs in the same order (im2col). A *panel* has several positions' first inputs, then their
second inputs, and so on. A register tile loads a panel's vectors, and broadcasts numbers from
several rows of the weight. Sums begin with the bias and follow the weight's order.
"""

from __future__ import annotations

from typing import NamedTuple

from .. import walk
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module, signature
from ..kernel_arguments import ArgumentLayout, Arguments, Record, record
from ..packing_code import report_nonfinite
from ..values import BYTES, I64, LINE, PTR, Value, vector

ARGUMENTS = ArgumentLayout(
    walk.NUMBERS + "x* y* w* bias* panels* positions*"
    " x_image x_channel y_image y_channel"
    " channels taps"  # in a row of a group's weight: reduced channels, and taps of all axes
    " chunk"  # numbers that are multiplied before the next rows
    " group_bytes panel_bytes w_row",  # bytes of panels, and from one row of the weight to the next
    counters=walk.COUNTERS + "bad",
)
PANEL, ROWS = record("panel first count dense"), record("group first last count")
"""Jobs: a panel of `count` positions, from number `first` on, whose results are adjacent if it is
`dense`; some tiles of weight rows, from row `first` on. The last tile begins at row `last`, so that
it is full, and may compute some rows again."""
POSITION = record("image y reads")
"""A position: its image, its result's byte offset there, and the address of a table with its
inputs' byte offsets, one per tap; -1 if a tap reads no input."""


class Tile(NamedTuple):
    """A register tile: weight rows by vectors of positions."""

    element: str
    lanes: int
    rows: int
    vectors: int

    @property
    def width(self) -> int:
        """Number of positions in a panel."""
        return self.lanes * self.vectors


@compiled("gather", kept=16, opt=1)
def gather_code(module: Module, element: str, width: int, channels_last: bool, cpu: Cpu) -> None:
    """Emit the job `gather`, for a group's panel. Inputs that are adjacent in memory are read in
    turn: those of a channel's taps, or with `channels_last` those of some channels of a tap."""
    together = LINE // BYTES[element] if channels_last else 1
    with module.function("gather", walk.JOB) as f:
        a, panel = ARGUMENTS.reader(f), Record(f, f["inner"], PANEL)
        group, row = f.convert("ptrtoint", f["outer"], I64), width * BYTES[element]
        dst = a["panels"] + (group * a["group_bytes"] + panel["panel"] * a["panel_bytes"])
        x, by_channel = a["x"] + group * a["channels"] * a["x_channel"], a["taps"] * row
        images, tables, zero = f.scratch(8 * width), f.scratch(8 * width), f.scratch(LINE)
        f.store(f.constant(element, 0), zero)
        with f.loop(0, width) as lane:
            position = Record.of(f, a["positions"], panel["first"] + lane.index, POSITION)
            f.store(x + position["image"] * a["x_image"], f.at(images, lane.index, I64))
            f.store(position["reads"], f.at(tables, lane.index, I64))

        def copy(tap: Value, to: Value) -> None:
            read = f.word(reads, tap)
            exists = read >= 0
            source = f.select(exists, here + read, zero)
            if not channels_last:
                f.store(f.load(element, source), to)
                return
            step = f.select(exists, a["x_channel"], f.integer(0))
            with f.loop(0, count, carried=[source, to]) as part:
                source, target = part.carried
                f.store(f.load(element, source), target)
                part.next([source + step, target + by_channel])

        with f.loop(0, a["channels"], together) as channel, f.loop(0, width) as lane:
            count = f.min(a["channels"] - channel.index, together)
            here = f.load(PTR, f.at(images, lane.index, I64)) + channel.index * a["x_channel"]
            reads = f.load(PTR, f.at(tables, lane.index, I64))
            to, whole = f.at(dst + channel.index * by_channel, lane.index, element), a["taps"] & -4
            with f.loop(0, whole, 4, carried=[to]) as tap:
                for i in range(4):
                    copy(tap.index + i, tap.carried[0] + row * i)
                tap.next([tap.carried[0] + row * 4])
            with f.loop(whole, a["taps"], carried=tap.results) as tap:
                copy(tap.index, tap.carried[0])
                tap.next([tap.carried[0] + row])


_TILE = signature("w* w_row panel* sums* count")


@compiled("products", kept=32)
def products_code(module: Module, tile: Tile, cpu: Cpu) -> None:
    """Emit the job `products`: the results of some tiles of rows at a panel's positions."""
    for vectors in range(1, tile.vectors + 1):
        with module.function(f"tile{vectors}", _TILE, exported=False) as f:
            emit_tile(f, tile, vectors)
    item = BYTES[tile.element]
    with module.function("products", walk.JOB) as f:
        a, panel, job = (
            ARGUMENTS.reader(f), Record(f, f["inner"], PANEL), Record(f, f["outer"], ROWS)
        )  # fmt: skip
        sums, depth, first = f["mine"] + LINE, a["channels"] * a["taps"], job["first"]
        x = a["panels"] + (job["group"] * a["group_bytes"] + panel["panel"] * a["panel_bytes"])
        size = tile.rows * tile.width * item
        count, last = job["count"], job["last"]

        def row(number: Value) -> Value:
            return f.min(first + number * tile.rows, last)

        with f.loop(0, count) as number:
            _emit_biases(f, a, tile, row(number.index), sums + number.index * size)
        with f.loop(0, depth, a["chunk"]) as chunk:
            length = f.min(depth - chunk.index, a["chunk"])
            part = x + chunk.index * (tile.width * item)
            with f.loop(0, count) as number:
                w = a["w"] + (row(number.index) * a["w_row"] + chunk.index * item)
                to = sums + number.index * size
                for i in range(tile.vectors):
                    least, most = i * tile.lanes, (i + 1) * tile.lanes
                    with f.when((panel["count"] > least) & (panel["count"] <= most)):
                        f.call(f"tile{i + 1}", w, a["w_row"], part, to, length)
        with f.loop(0, count) as number:
            here = sums + number.index * size
            _emit_results(f, a, tile, panel, row(number.index), here)


def _emit_biases(f: Function, a: Arguments, tile: Tile, first: Value, sums: Value) -> None:
    """Set a tile's sums to its channels' biases."""
    with f.loop(0, tile.rows) as row:
        bias = f.load(tile.element, f.at(a["bias"], first + row.index, tile.element))
        for v in range(tile.vectors):
            to = f.at(sums, row.index * tile.width + v * tile.lanes, tile.element)
            f.store(f.broadcast(bias, tile.lanes), to)


def emit_tile(f: Function, tile: Tile, vectors: int) -> None:
    """Emit a tile, which adds the products for `count` numbers of each row to its sums. The last
    panel may fill fewer `vectors`."""
    kind, item = vector(tile.element, tile.lanes), BYTES[tile.element]
    addresses = [
        f.at(f["sums"], row * tile.width + v * tile.lanes, tile.element)
        for row in range(tile.rows)
        for v in range(vectors)
    ]
    # Three rows share a pointer, since there are too few registers for separate ones.
    pointers = [f["w"] + f["w_row"] * row for row in range(0, tile.rows, 3)]
    start = [f["panel"], *pointers, *(f.load(kind, address) for address in addresses)]
    with f.loop(0, f["count"], carried=start) as loop:
        x, *rest = loop.carried
        ws, sums = rest[: len(pointers)], rest[len(pointers) :]
        inputs = [f.load(kind, f.at(x, v * tile.lanes, tile.element)) for v in range(vectors)]
        for row in range(tile.rows):
            w = ws[row // 3] + f["w_row"] * (row % 3) if row % 3 else ws[row // 3]
            weight = f.broadcast(f.load(tile.element, w), tile.lanes)
            for v, value in enumerate(inputs):
                i = row * vectors + v
                sums[i] = f.multiply_add(value, weight, sums[i])
        loop.next([x + tile.width * item, *(w + item for w in ws), *sums])
    for value, address in zip(loop.results[1 + len(pointers) :], addresses, strict=True):
        f.store(value, address)


def _emit_results(
    f: Function, a: Arguments, tile: Tile, panel: Record, first: Value, sums: Value
) -> None:
    """Store a tile's results, and set `bad` if one is not finite."""
    positions = a["positions"] + panel["first"] * POSITION.itemsize
    y, count, width = a["y"] + first * a["y_channel"], panel["count"], tile.width
    kind, is_dense = vector(tile.element, tile.lanes), panel["dense"] > 0
    position = Record.of(f, positions, f.integer(0), POSITION)
    start = position["image"] * a["y_image"] + position["y"]
    with f.loop(0, tile.rows, carried=[y, sums, f.constant(kind, 0)]) as row:
        to, here, probe = row.carried
        dense = to + start
        for v in range(0, width, tile.lanes):
            value = f.load(kind, f.at(here, v, tile.element))
            probe = probe + (value - value)
            with f.when(is_dense):
                f.store_below(value, f.at(dense, v, tile.element), count - v)
        with f.unless(is_dense), f.loop(0, count) as lane:
            position = Record.of(f, positions, lane.index, POSITION)
            value = f.load(tile.element, f.at(here, lane.index, tile.element))
            f.store(value, to + (position["image"] * a["y_image"] + position["y"]))
        row.next([to + a["y_channel"], here + width * BYTES[tile.element], probe])
    *_, probe = row.results
    report_nonfinite(f, probe, a.address("bad"))
