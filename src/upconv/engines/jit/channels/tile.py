"""The register tile of the channel-vectorised kernel: vectors run along lanes, and inputs are
broadcast.

Lanes are outputs that lie side by side in channels-last memory: the channels of one position or of
a few neighbours. A tile computes V vectors of lanes for R *points*, any R output positions with the
same taps. For each tap and each input channel:

    V loads of weights
    for each point: broadcast its input, V multiply-adds into acc[point]

Where neighbouring taps of the last axis read neighbouring positions, the channels of their window
lie side by side, and so do their weights. `merged` taps are then summed as one tap of so many times
the channels, in the same order. That saves finding the inputs of each tap, which is most of the
work with few channels. Only tiles whose windows cross neither end of a row do so.

A tap that is outside for all R points is skipped. A *masked* tile touches, for each tap, only the
lanes that use it: no input meets an output that it does not reach. (Infinity in the weights does
meet the zeros that are read outside.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..emit import Function, Module, signature
from ..kernel_arguments import Record
from ..rows import converted
from ..values import I1, I64, LINE, PTR, Value, split, vector
from .driver import ARGUMENTS, PASS, ROW, RUN

PARAMETERS = signature(
    "args* run* row* pass*"  # the records of driver.py
    " points* stride"  # a table of numbers of points, bytes from one array of numbers to the next
    " tiles"  # tiles to compute, R points each
    " out* outs*"  # R byte offsets from `out` for each tile
    " is_stage"  # where results are stored as they are computed
)
ARRAYS = "xs", "outs", "edges", "coordinates"
"""Numbers of a point: the address of its input before any shift, the offset of its output, where
taps read outside, and which input that is along each axis."""

INSIDE, OUTER, CROSSING = 0, 1, 1 << 16
"""The edges of a point: 0 where no tap reads outside, `OUTER` for each outer axis along which some
does, and `CROSSING` where some does along the last axis."""


@dataclass(frozen=True, slots=True)
class ChannelTile:
    """The class of a tile: all that its code depends on.

    `stored` is the type of the inputs, `element` of all else. A *depthwise* tile has one input
    channel per output channel (or per `multiplier` neighbouring ones): lanes of input meet lanes of
    weights. With `dots` the weights of two input channels lie together, as bfloat16.
    A tile with a `result` casts what it stores beside the stage to this type.
    """

    stored: str
    element: str
    lanes: int
    points: int
    vectors: int
    masked: bool = False
    depthwise: bool = False
    multiplier: int = 1
    dots: bool = False
    result: str = ""

    @property
    def width(self) -> int:
        """Lanes of one point."""
        return self.lanes * self.vectors

    @property
    def numbers(self) -> int:
        """Numbers of points that are read at a time, a power of two: other masks take long where no
        register is one. Tables go on behind the last point."""
        return 1 << (self.points - 1).bit_length()

    @property
    def masks(self) -> int:
        """Masks in the record of a tap."""
        return self.vectors if self.masked and not self.depthwise else 0


Values = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Operands of one tap: its record, the address of each point's input, that of the next tile's
    first point, weights, weights to prefetch, the number of channels, and all `operands`."""

    record: Value
    points: list[Value]
    following: Value
    w: Value
    ahead: Value
    channels: Value
    operands: Values


Products = Callable[[Function, ChannelTile, Inputs, list[Value]], list[Value]]


def emit_channel_tile(module: Module, name: str, tile: ChannelTile, products: Products) -> None:
    """A function of `PARAMETERS` that computes tiles, `products` being those of one tap."""
    with module.function(name, PARAMETERS) as f:
        operands = _operands(f)
        operands["pointers"] = f.scratch(8 * tile.numbers)
        with f.loop(0, f["tiles"]) as loop:
            here, first = dict(operands), loop.index * tile.points
            here |= {name: f.at(here[name], first, I64) for name in ARRAYS}
            edges = _numbers(f, tile, here["edges"])
            here["edge_axes"] = f.select(
                _any(f, tile, f.compare("ne", edges, INSIDE)), here["axes"], 0
            )
            crosses = _any(f, tile, f.compare("uge", edges, CROSSING))
            here["merged"] = f.select(crosses, 1, here["merged"])
            here |= _ahead(f, tile, here, loop.index)
            here["channels"] *= here["merged"]
            sums = _starts(f, tile, here)
            _leave(f, tile, here, _products(f, tile, products, here, sums))


def _ahead(f: Function, tile: ChannelTile, here: Values, number: Value) -> Values:
    """Return the address of the weights that a tile of this `number` prefetches, a cache line per
    channel, and the bytes to the next channel and tap.

    The first tiles of a call prefetch one vector each of the next pass's weights. Later tiles have
    nothing left to prefetch, so they prefetch their own weights, which are in the cache already.
    """
    line = f.integer(LINE // 2 if tile.dots else LINE)  # pairs are two channels
    step = f.select(number < tile.vectors, line, 0)
    tap = here["channels"] * step
    begin = f.select(step > 0, here["ahead"] + number * here["ntaps"] * tap, 0)
    return {"ahead": here["w"] + begin, "ahead_tap": tap, "ahead_channel": step}


def _operands(f: Function) -> Values:
    """The numbers of a pass, and where its operands lie."""
    a, p = ARGUMENTS.reader(f), Record(f, f["pass"], PASS)
    run, row = Record(f, f["run"], RUN), Record(f, f["row"], ROW)
    names = ["ntaps", "record", "merged", "channels", "w_tap", "ahead", "resumed", "active"]
    points, w = f["points"], a["w"] + (row["w"] + p["w"])
    x = a["x"] + (run["x"] + row["x"] + p["x"])
    return {name: p[name] for name in names} | {
        "x": f.convert("ptrtoint", x, I64), "xs": points, "out": f["out"], "outs": f["outs"],
        "edges": points + f["stride"] * 2, "coordinates": points + f["stride"] * 3,
        "sizes": a["sizes"] + run["sizes"], "axes": a["axes"], "taps": a["taps"] + p["taps"],
        "zeros": f.convert("ptrtoint", a["zeros"], I64), "w": w,
        "bias": a["bias"] + (row["bias"] + p["bias"]),
    }  # fmt: skip


def _products(
    f: Function, tile: ChannelTile, products: Products, here: Values, sums: list[Value]
) -> list[Value]:
    """Add the products of all taps."""
    with f.loop(0, here["ntaps"], here["merged"], carried=sums) as taps:
        record = here["taps"] + taps.index * here["record"]
        reached = _point(f, tile, here, record)
        points = [f.load(PTR, f.at(here["pointers"], r, I64)) for r in range(tile.points)]
        w = here["w"] + taps.index * here["w_tap"]
        count = f.select(reached, here["channels"], 0)
        following = f.load(I64, record) + here["x"] + f.word(here["xs"], tile.points)
        following = f.convert("inttoptr", following, PTR)
        ahead = here["ahead"] + taps.index * here["ahead_tap"]
        inputs = Inputs(record, points, following, w, ahead, count, here)
        taps.next(products(f, tile, inputs, taps.carried))
    return taps.results


def _starts(f: Function, tile: ChannelTile, here: Values) -> list[Value]:
    """The bias, or the sums of earlier taps and channels."""
    sums = []
    fresh = f.compare("eq", here["resumed"], 0)
    for r in range(tile.points):
        output = _output(f, here, r)
        for v in range(tile.vectors):
            f.prefetch(f.at(output, v * tile.lanes, tile.element), write=True)
        start = f.select(fresh, here["bias"], output)
        sums += load_vectors(f, tile, start)
    return sums


def _output(f: Function, here: Values, point: int) -> Value:
    return here["out"] + f.word(here["outs"], point)


def load_vectors(f: Function, tile: ChannelTile, address: Value) -> list[Value]:
    """The vectors of one point, or of one input channel's weights."""
    kind = vector(tile.element, tile.lanes)
    return [f.load(kind, f.at(address, v * tile.lanes, tile.element)) for v in range(tile.vectors)]


def _numbers(f: Function, tile: ChannelTile, address: Value) -> Value:
    return f.load(vector(I64, tile.numbers), address)


def _any(f: Function, tile: ChannelTile, mask: Value) -> Value:
    """Whether a mask is set for any point."""
    used = ", ".join(f"i1 {int(r < tile.points)}" for r in range(tile.numbers))
    bits = mask & Value(mask.type, f"<{used}>")
    return f.compare("ne", f.convert("bitcast", bits, f"i{split(bits.type)[1]}"), 0)


def _point(f: Function, tile: ChannelTile, here: Values, record: Value) -> Value:
    """Write the address of each point's input of one tap; return whether any lies inside."""
    bits = vector(I1, tile.numbers)
    shifts = f.at(record, 1 + tile.masks, I64)
    with f.loop(0, here["edge_axes"], carried=[Value(bits, "splat (i1 true)")]) as axis:
        mine = here["coordinates"] + axis.index * f["stride"]
        shift = f.word(shifts, axis.index)
        size = f.word(here["sizes"], axis.index)
        coordinates = _numbers(f, tile, mine) - f.broadcast(shift, tile.numbers)
        # Unsigned: a negative number is beyond every size.
        inside = f.compare("ult", coordinates, f.broadcast(size, tile.numbers))
        axis.next([axis.carried[0] & inside])
    inside = axis.results[0]
    offset = f.load(I64, record) + here["x"]
    moved = _numbers(f, tile, here["xs"]) + f.broadcast(offset, tile.numbers)
    f.store(f.select(inside, moved, f.broadcast(here["zeros"], tile.numbers)), here["pointers"])
    return _any(f, tile, inside)


def _leave(f: Function, tile: ChannelTile, here: Values, sums: list[Value]) -> None:
    """Store the sums, in the type of results unless they go to the stage."""
    if not tile.result:
        _store(f, tile, here, sums, tile.element)
        return
    staged = f.compare("ne", f["is_stage"], 0)
    with f.when(staged):
        _store(f, tile, here, sums, tile.element)
    with f.unless(staged):
        _store(f, tile, here, sums, tile.result)


def _store(f: Function, tile: ChannelTile, here: Values, sums: list[Value], element: str) -> None:
    """Store all lanes, or the active ones, as `element`.

    They are cast where they are stored: some processors' code generators call a library for a
    bfloat16 that lives longer than a block of code.
    """
    full = here["active"] >= tile.width
    with f.when(full):
        for i, total in enumerate(sums):
            r, v = divmod(i, tile.vectors)
            address = f.at(_output(f, here, r), v * tile.lanes, element)
            f.store(converted(f, total, element), address)
    with f.unless(full):
        masks = live_masks(f, tile, here)
        for i, total in enumerate(sums):
            r, v = divmod(i, tile.vectors)
            address = f.at(_output(f, here, r), v * tile.lanes, element)
            f.store_lanes(converted(f, total, element), address, masks[v])


def live_masks(f: Function, tile: ChannelTile, here: Values) -> list[Value]:
    """Masks of the active lanes, one per vector."""
    return [f.lanes_below(here["active"] - v * tile.lanes, tile.lanes) for v in range(tile.vectors)]
