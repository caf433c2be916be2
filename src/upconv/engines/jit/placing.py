"""Tiles side by side, and where their results go: straight into output rows, or to the stage first.

1. The tile lies in a row that is no output: nothing to do.
2. It, or a vector of its positions, lies in one output row: the tile writes there itself.
3. Else it writes to the stage, and the pieces that are outputs are copied from there; likewise
   where there is an epilogue that tiles do not apply, or another element type (`direct` = 0).
"""

from __future__ import annotations

from dataclasses import dataclass

from .emit import Function, Module
from .layout import BLOCK, SLOTS
from .slots import Arguments
from .tile import SPOT
from .values import I1, I64, PTR, Value

SPOT_BYTES = 8 * 8 * len(SPOT)  # a tile has at most eight vectors
NO = Value(I1, "false")

SAME = {
    "args": PTR, "stage": PTR, "block": PTR, "w": PTR, "taps": PTR, "ntaps": I64,
    "group": I64, "combo": I64,
}  # fmt: skip
"""What all tiles of a window are given, for one block and one combination of outer phases."""
TILES = SAME | {
    "tile": PTR, "x": PTR,  # code; input of the first tile
    "first": I64, "last": I64, "width": I64,  # lanes of the first tile, behind the last, of each
    "end": I64,  # lanes from here on are another tile's
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Rows:
    """The output rows of a tile's block: what finding a lane's place takes."""

    offsets: Value  # of this combination of outer phases
    base: Value  # bytes from y to this group and channel
    phase: Value
    phases: Value


def _rows(f: Function, a: Arguments) -> _Rows:
    channel, _, phase, phases = (
        f.load(I64, f.at(f["block"], i, I64)) for i in range(2, len(BLOCK))
    )
    offsets = f.at(a["yrows"], f.mul(f["combo"], a["rows"]), I64)
    base = f.add(f.mul(f["group"], a["y_group"]), f.mul(channel, a["y_channel"]))
    return _Rows(offsets, base, phase, phases)


def emit_tiles(module: Module) -> None:
    """`tiles`: compute tiles side by side and put their results where they belong."""
    with module.function("tiles", TILES, exported=False) as f:
        a = SLOTS.reader(f)
        rows = _rows(f, a)
        spots = f.scratch(SPOT_BYTES)
        with f.loop(f["first"], f["last"], f["width"]) as loop:
            x = f.at(f["x"], f.mul(f.sub(loop.index, f["first"]), a["element"]))
            _place(f, a, rows, _Tile(loop.index, x, spots))


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile: its first lane, what it reads there, and where it is told where its results go."""

    q: Value
    x: Value
    spots: Value


def _place(f: Function, a: Arguments, rows: _Rows, tile: _Tile) -> None:
    """One tile."""
    row = f.div(tile.q, a["pitch"])
    lane = f.sub(tile.q, f.mul(row, a["pitch"]))
    image = f.div(row, a["rows"])
    own = f.sub(row, f.mul(image, a["rows"]))
    live = f.compare("sge", f.load(I64, f.at(rows.offsets, own, I64)), 0)
    single = f.compare("sle", f.add(lane, f["width"]), a["pitch"])
    mine = f.compare("sle", f.add(tile.q, f["width"]), f["end"])
    branch = f.either(f.select(mine, _inside(f, a, rows, _Spot(lane, own, image), f["width"]), NO))
    with branch.so():
        y = _address(f, a, rows, _Spot(lane, own, image))
        step = f.mul(a["stride"], a["y_bytes"])
        size = f.mul(step, a["lanes"])
        with f.loop(0, a["vectors"], carried=[y]) as v:
            spot = f.at(tile.spots, f.mul(v.index, len(SPOT)), I64)
            f.store(v.carried[0], spot)
            f.store(a["y_channel"], f.at(spot, 1, I64))
            f.store(step, f.at(spot, 2, I64))
            v.next([f.at(v.carried[0], size)])
        _compute(f, a, tile)
    with branch.otherwise(), f.when(f.select(single, live, Value(I1, "true"))):
        _place_mixed(f, a, rows, tile, _Spot(lane, own, image))


def _compute(f: Function, a: Arguments, tile: _Tile) -> None:
    first, live = (f.load(I64, f.at(f["block"], i, I64)) for i in (2, 3))
    bias = f.mul(f.add(f.mul(f["group"], a["bias_group"]), first), a["element"])
    operands = [tile.x, f["w"], f["taps"], f["ntaps"], a["channels"], a["buffer_channel"]]
    f.call(f["tile"], *operands, f.at(a["bias"], bias), tile.spots, live)


def _place_mixed(f: Function, a: Arguments, rows: _Rows, tile: _Tile, start: _Spot) -> None:
    """Cases 2 and 3, vector by vector."""
    spots = tile.spots
    lanes, piece = a["lanes"], f.mul(rows.phases, a["element"])
    channel = f.mul(f["width"], piece)
    step = f.mul(a["stride"], a["y_bytes"])
    cursor = [f.scratch(8) for _ in range(3)]
    for slot, value in zip(cursor, (start.lane, start.row, start.image), strict=True):
        f.store(value, slot)
    with f.loop(0, f["width"], lanes) as v:
        here = _Spot(*(f.load(I64, slot) for slot in cursor))
        mine = f.compare("sle", f.add(f.add(tile.q, v.index), lanes), f["end"])
        inside = f.select(mine, _inside(f, a, rows, here, lanes), NO)
        inside = f.select(f.compare("ne", a["mixed"], 0), inside, NO)
        spot = f.at(spots, f.mul(f.div(v.index, lanes), len(SPOT)), I64)
        f.store(f.at(f["stage"], f.mul(v.index, piece)), spot)
        with f.when(inside):
            f.store(_address(f, a, rows, here), spot)
        f.store(f.select(inside, a["y_channel"], channel), f.at(spot, 1, I64))
        f.store(f.select(inside, step, piece), f.at(spot, 2, I64))
        _advance(f, a, cursor)
    _compute(f, a, tile)
    same = [f["args"], f["stage"], f["block"], f["group"], f["combo"], tile.q, channel]
    branch = f.either(f.compare("eq", a["mixed"], 0))
    with branch.so():
        f.call("spread", *same, f.integer(0), f["width"], f["end"])
    with branch.otherwise(), f.loop(0, f["width"], lanes) as v:
        spot = f.at(spots, f.mul(f.div(v.index, lanes), len(SPOT)), I64)
        staged = f.at(f["stage"], f.mul(v.index, piece))
        with f.when(f.compare("eq", f.load(PTR, spot), staged)):
            f.call("spread", *same, v.index, lanes, f["end"])


@dataclass(frozen=True, slots=True)
class _Spot:
    """A position: lane of a row, row of an image, image."""

    lane: Value
    row: Value
    image: Value


def _advance(f: Function, a: Arguments, cursor: list[Value]) -> None:
    """Move a position in memory on by one vector; by steps, as divisions are slow."""
    lane, row, image = cursor
    f.store(f.add(f.load(I64, lane), a["lanes"]), lane)
    with f.forever() as wrapping:
        left = f.sub(f.load(I64, lane), a["pitch"])
        f.leave(wrapping, f.compare("slt", left, 0))
        f.store(left, lane)
        f.store(f.add(f.load(I64, row), 1), row)
        with f.when(f.compare("eq", f.load(I64, row), a["rows"])):
            f.store(f.integer(0), row)
            f.store(f.add(f.load(I64, image), 1), image)


def _inside(f: Function, a: Arguments, rows: _Rows, spot: _Spot, width: Value) -> Value:
    """Whether the results of `width` positions may be stored as they come: all are outputs, and of
    one row."""
    end = f.add(spot.lane, width)
    # The last output: s * (end - 1) + the block's last phase.
    last = f.add(f.add(f.mul(f.sub(end, 1), a["stride"]), rows.phase), rows.phases)
    inside = f.select(f.compare("sle", end, a["pitch"]), f.compare("sle", last, a["limit"]), NO)
    offset = f.load(I64, f.at(rows.offsets, spot.row, I64))
    inside = f.select(inside, f.compare("sge", offset, 0), NO)
    inside = f.select(inside, f.compare("slt", spot.image, a["images"]), NO)
    return f.select(inside, f.compare("ne", a["direct"], 0), NO)


def _address(f: Function, a: Arguments, rows: _Rows, spot: _Spot) -> Value:
    """Where the results of a position go."""
    offset = f.load(I64, f.at(rows.offsets, spot.row, I64))
    first = f.mul(f.add(f.mul(spot.lane, a["stride"]), rows.phase), a["y_bytes"])
    place = f.add(f.add(rows.base, f.mul(spot.image, a["y_image"])), f.add(offset, first))
    return f.at(a["y"], place)


SPREAD = {
    "args": PTR, "stage": PTR, "block": PTR, "group": I64, "combo": I64, "q": I64,
    "channel": I64, "from": I64, "count": I64, "end": I64,
}  # fmt: skip


def emit_spread(module: Module) -> None:
    """`spread`: copy `count` lanes of the stage to where they are outputs, row by row."""
    with module.function("spread", SPREAD, exported=False) as f:
        a = SLOTS.reader(f)
        rows = _rows(f, a)
        first = f.add(f["q"], f["from"])
        last = f.min(f.add(first, f["count"]), f["end"])
        # Nothing of a vector that begins at or after the end is its tile's.
        stop = f.select(
            f.compare("slt", first, last), f.add(f.div(f.sub(last, 1), a["pitch"]), 1), 0
        )
        with f.loop(f.div(first, a["pitch"]), f.min(stop, f.mul(a["rows"], a["images"]))) as row:
            offset = f.load(I64, f.at(rows.offsets, f.rem(row.index, a["rows"]), I64))
            with f.when(f.compare("sge", offset, 0)):
                origin = f.mul(row.index, a["pitch"])
                low = f.sub(f.max(first, origin), origin)
                high = f.sub(f.min(last, f.add(origin, a["pitch"])), origin)
                image = f.mul(f.div(row.index, a["rows"]), a["y_image"])
                place = f.add(rows.base, f.add(image, offset))
                staged = f.sub(f.add(origin, low), f["q"])
                _spread_row(f, a, rows, place, staged, low, high)


def _spread_row(
    f: Function,
    a: Arguments,
    rows: _Rows,
    place: Value,
    staged: Value,
    low: Value,
    high: Value,
) -> None:
    """Copy positions [low, high) of the output row at `place`, the first from lane `staged`."""
    stride, phases = a["stride"], rows.phases
    first = f.add(f.mul(low, stride), rows.phase)
    piece = f.mul(phases, a["element"])
    src = f.at(f["stage"], f.mul(staged, piece))
    place = f.add(place, f.mul(first, a["y_bytes"]))
    left = f.max(f.sub(a["limit"], first), 0)  # outputs from here to the row's end
    branch = f.either(f.compare("eq", phases, stride))
    with branch.so():
        length = f.min(left, f.mul(f.sub(high, low), stride))
        _finish(f, a, src, place, piece, f.integer(1), length)
    with branch.otherwise():
        # Positions that have all their phases, then at most one that the row's end cuts.
        room = f.add(left, f.sub(stride, phases))
        whole = f.min(f.sub(high, low), f.div(room, stride))
        _finish(f, a, src, place, piece, whole, phases)
        with f.when(f.compare("slt", whole, f.sub(high, low))):
            rest = f.max(f.sub(left, f.mul(whole, stride)), 0)
            src = f.at(src, f.mul(whole, piece))
            place = f.add(place, f.mul(f.mul(whole, stride), a["y_bytes"]))
            _finish(f, a, src, place, piece, f.integer(1), rest)


def _finish(
    f: Function, a: Arguments, src: Value, place: Value, piece: Value, runs: Value, length: Value
) -> None:
    y, residual = f.at(a["y"], place), f.at(a["residual"], place)
    live = f.load(I64, f.at(f["block"], 3, I64))
    step = f.mul(a["stride"], a["y_bytes"])
    strides = [f["channel"], a["y_channel"], runs, length, piece, step]
    f.call(a["finish"], src, y, residual, live, *strides)
