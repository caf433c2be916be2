"""The channels kernel's register tile: vectors run along lanes, and inputs are broadcast.

Lanes are adjacent outputs in channels-last memory: the channels of one position or of several
neighbours. A tile computes V vectors of lanes for R *points*, any R output positions with the same
taps. For each tap and each input channel:

    V loads of weights
    for each point: broadcast its input, V multiply-adds into acc[point]

If neighbouring taps along the last axis read neighbouring positions, the channels in their window
are adjacent, and so are their weights. `merged` taps are then summed as one tap with that many
times the channels, in the same order. That saves finding each tap's inputs, which is most of the
work with few channels. Only tiles whose windows cross neither end of a row do so.

A tap that is outside for all R points is skipped. For each tap, a *masked* tile changes only the
lanes that use it, so an input affects only outputs that it reaches. (Infinite weights are still
multiplied by the zeros that taps read outside.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from ..emit import Function, Module, signature
from ..kernel_arguments import Record
from ..rows import Finish, Span, finish_values, plain
from ..values import BYTES, I1, I64, LINE, PTR, Value, split, vector
from .driver import ARGUMENTS, PASS, ROW, RUN

PARAMETERS = signature(
    "args* run* row* pass*"  # the records of driver.py
    " points* stride"  # a table of points' numbers, bytes from one array of numbers to the next
    " tiles"  # tiles to compute, R points each
    " out* outs*"  # R byte offsets from `out` for each tile
    " is_stage"  # whether `out` is the stage, which has the computed type
)
ARRAYS = "xs", "outs", "edges", "coordinates"
"""A point's numbers: the offsets of its input at shift 0 and of its output, its edges, and its
input's coordinate along each axis."""

INSIDE, OUTER, CROSSING = 0, 1, 1 << 16
"""A point's edges: `OUTER` times the number of outer axes along which some tap reads outside, plus
`CROSSING` if some tap does so along the last axis."""


@dataclass(frozen=True, slots=True)
class ChannelTile:
    """A tile's class: everything on which its code depends.

    `stored` is the type of inputs, `element` that of weights and sums. A *depthwise* tile has the
    channels of all groups: `multiplier` output channels and `reduction` input channels in each. It
    multiplies lanes by lanes. With `dots`, two input channels' weights are a pair of bfloat16. If
    there is a `finish`, the last pass applies it to sums that are not staged. In a `ragged` tile,
    not all lanes are active.
    """

    stored: str
    element: str
    lanes: int
    points: int
    vectors: int
    masked: bool = False
    depthwise: bool = False
    multiplier: int = 1
    reduction: int = 1
    dots: bool = False
    finish: Finish | None = None
    ragged: bool = False

    @property
    def width(self) -> int:
        """A point's number of lanes."""
        return self.lanes * self.vectors

    @property
    def numbers(self) -> int:
        """The number of points that are read at once: a power of two, because other masks are slow
        without mask registers. Tables continue after the last point."""
        return 1 << (self.points - 1).bit_length()

    @property
    def masks(self) -> int:
        """Number of masks in a tap's record."""
        return self.vectors if self.masked and not self.depthwise else 0


Values = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Inputs:
    """One tap's operands: its record; each point's input at shift 0; the number of elements from
    there to the tap's first input; the addresses of weights and of what to prefetch; the number of
    channels; all the tile's values."""

    record: Value
    points: list[Value]
    first: Value
    w: Value
    ahead: Value
    channels: Value
    operands: Values


Products = Callable[[Function, ChannelTile, Inputs, list[Value]], list[Value]]


def emit_channel_tile(module: Module, name: str, tile: ChannelTile, products: Products) -> None:
    """Emit a function with `PARAMETERS` that computes tiles; `products` emits a tap's products."""
    with module.function(name, PARAMETERS) as f:
        shared = _operands(f)
        shared["inputs"], shared["reached"] = f.scratch(8 * tile.numbers), f.scratch(8)
        with f.loop(0, f["tiles"]) as loop:
            values, first = dict(shared), loop.index * tile.points
            values |= {name: f.at(values[name], first, I64) for name in ARRAYS}
            edges = reduce(or_, (f.word(values["edges"], r) for r in range(tile.points)))
            values["near_edges"] = f.compare("ne", edges, INSIDE)
            values["merged"] = f.select(edges < CROSSING, values["merged"], 1)
            values |= _ahead(f, tile, values, loop.index)
            values["channels"] *= values["merged"]
            for r in range(tile.points):
                f.store(values["x"] + f.word(values["xs"], r), f.at(values["inputs"], r, I64))
            f.store(values["channels"], values["reached"])
            sums = _starts(f, tile, values)
            _store_sums(f, tile, values, _products(f, tile, products, values, sums))


def _ahead(f: Function, tile: ChannelTile, values: Values, number: Value) -> Values:
    """Return what tile `number` prefetches: an address, bytes to the next tap and to what the next
    product prefetches, and a mask of a tap's offset.

    A call's first tiles prefetch one vector each of the next pass's weights, a cache line per
    product. Later tiles prefetch the next tile's inputs. Points are mostly neighbours, so input
    channel c prefetches number c * `points` of them.
    """
    channels = 2 if tile.dots else 1  # of a product
    tap = values["channels"] * (LINE // channels)
    weights = values["w"] + (values["ahead"] + number * values["ntaps"] * tap)
    inputs = values["x"] + f.word(values["xs"], tile.points)
    next_inputs, of_weights = channels * tile.points * BYTES[tile.stored], number < tile.vectors
    return {
        "ahead": f.select(of_weights, f.convert("ptrtoint", weights, I64), inputs),
        "ahead_tap": f.select(of_weights, tap, 0),
        "ahead_step": f.select(of_weights, f.integer(LINE), next_inputs),
        "ahead_offset": f.select(of_weights, f.integer(0), -1),
    }


def _operands(f: Function) -> Values:
    """Return a pass's numbers, and the addresses of its operands and tables."""
    a, p = ARGUMENTS.reader(f), Record(f, f["pass"], PASS)
    run, row = Record(f, f["run"], RUN), Record(f, f["row"], ROW)
    names = ["ntaps", "record", "merged", "channels", "w_tap", "resumed", "active", "last"]
    points, w = f["points"], a["w"] + (row["w"] + p["w"])
    x = a["x"] + (run["x"] + row["x"] + p["x"])
    bias = a["bias"] + (row["bias"] + p["bias"])
    out, y = (f.convert("ptrtoint", address, I64) for address in (f["out"], a["y"]))
    # After a slab's last weights, there is nothing to prefetch.
    ahead = p["ahead"] * (1 - row["slab"] * p["last"])
    return {name: p[name] for name in names} | {
        "ahead": ahead,
        "x": f.convert("ptrtoint", x, I64), "xs": points, "out": f["out"], "outs": f["outs"],
        "edges": points + f["stride"] * 2, "coordinates": points + f["stride"] * 3,
        "sizes": a["sizes"] + run["sizes"], "axes": a["axes"], "taps": a["taps"] + p["taps"],
        "zeros": f.convert("ptrtoint", a["zeros"], I64), "w": w,
        "bias": bias, "slopes": bias + a["slopes"], "second": a["second"],
        "residual": a["residual"] + (out - y),
    }  # fmt: skip


def _products(
    f: Function, tile: ChannelTile, products: Products, values: Values, sums: list[Value]
) -> list[Value]:
    """Add the products of all taps."""
    with f.loop(0, values["ntaps"], values["merged"], carried=sums) as taps:
        record = values["taps"] + taps.index * values["record"]
        first = f.load(I64, record)
        offset = first * BYTES[tile.stored]
        with f.when(values["near_edges"]):
            _leave_out(f, tile, values, record, offset)
        points = [f.load(PTR, f.at(values["inputs"], r, I64)) for r in range(tile.points)]
        w = values["w"] + taps.index * values["w_tap"]
        ahead = values["ahead"] + taps.index * values["ahead_tap"]
        ahead = f.convert("inttoptr", ahead + (offset & values["ahead_offset"]), PTR)
        reached = f.load(I64, values["reached"])
        inputs = Inputs(record, points, first, w, ahead, reached, values)
        taps.next(products(f, tile, inputs, taps.carried))
    return taps.results


def _starts(f: Function, tile: ChannelTile, values: Values) -> list[Value]:
    """Load the bias, or earlier passes' sums."""
    sums = []
    fresh = f.compare("eq", values["resumed"], 0)
    for r in range(tile.points):
        output = _output(f, values, r)
        for lane in range(0, tile.width, LINE // BYTES[tile.element]):
            f.prefetch(f.at(output, lane, tile.element), write=True)
        if tile.finish is not None and tile.finish.residual:
            row = values["residual"] + f.word(values["outs"], r)
            for lane in range(0, tile.width, LINE // BYTES[tile.finish.stored]):
                f.prefetch(f.at(row, lane, tile.finish.stored), near=True)
        start = f.select(fresh, values["bias"], output)
        sums += load_vectors(f, tile, start)
    return sums


def _output(f: Function, values: Values, point: int) -> Value:
    return values["out"] + f.word(values["outs"], point)


def load_vectors(f: Function, tile: ChannelTile, address: Value) -> list[Value]:
    """Load one point's vectors, or one input channel's weights."""
    kind = vector(tile.element, tile.lanes)
    return [f.load(kind, f.at(address, v * tile.lanes, tile.element)) for v in range(tile.vectors)]


def _numbers(f: Function, tile: ChannelTile, address: Value) -> Value:
    return f.load(vector(I64, tile.numbers), address)


def _any(f: Function, tile: ChannelTile, mask: Value) -> Value:
    """Whether a mask is set for any point."""
    used = ", ".join(f"i1 {int(r < tile.points)}" for r in range(tile.numbers))
    bits = mask & Value(mask.type, f"<{used}>")
    return f.compare("ne", f.convert("bitcast", bits, f"i{split(bits.type)[1]}"), 0)


def _leave_out(
    f: Function, tile: ChannelTile, values: Values, record: Value, offset: Value
) -> None:
    """Let the points whose input for one tap is outside read zeros, `offset` bytes from their
    address; if all are outside, let the tap have no channels."""
    bits = vector(I1, tile.numbers)
    shifts = f.at(record, 1 + tile.masks, I64)
    with f.loop(0, values["axes"], carried=[Value(bits, "splat (i1 true)")]) as axis:
        row = values["coordinates"] + axis.index * f["stride"]
        shift = f.word(shifts, axis.index)
        size = f.word(values["sizes"], axis.index)
        coordinates = _numbers(f, tile, row) - f.broadcast(shift, tile.numbers)
        # Unsigned, so that a negative number is beyond every size.
        inside = f.compare("ult", coordinates, f.broadcast(size, tile.numbers))
        axis.next([axis.carried[0] & inside])
    inside = axis.results[0]
    inputs = _numbers(f, tile, values["xs"]) + f.broadcast(values["x"], tile.numbers)
    zeros = f.broadcast(values["zeros"] - offset, tile.numbers)
    f.store(f.select(inside, inputs, zeros), values["inputs"])
    f.store(f.select(_any(f, tile, inside), values["channels"], 0), values["reached"])


def _store_sums(f: Function, tile: ChannelTile, values: Values, sums: list[Value]) -> None:
    """Store the sums: finished, or unchanged for later passes and in the stage."""
    if tile.finish is None:
        _store(f, tile, values, sums, plain(tile.element))
        return
    unfinished = f.compare("ne", f["is_stage"], 0) | f.compare("eq", values["last"], 0)
    with f.when(unfinished):
        _store(f, tile, values, sums, plain(tile.element))
    with f.unless(unfinished):
        _store(f, tile, values, sums, tile.finish)


def _store(f: Function, tile: ChannelTile, values: Values, sums: list[Value], kind: Finish) -> None:
    """Finish the active lanes by `kind`, and store them.

    Each branch casts them again: for some processors, LLVM calls a library for a bfloat16 that is
    used in another basic block.
    """
    masks: Sequence[Value | None] = [None] * tile.vectors
    masks = live_masks(f, tile, values) if tile.ragged else masks
    spans = [Span(f, f.integer(v * tile.lanes), tile.lanes, mask) for v, mask in enumerate(masks)]
    places = {"dst": values["out"], "residual": values["residual"], "second": values["second"]}
    for r in range(tile.points):
        offset = f.word(values["outs"], r)
        for span, total in zip(spans, sums[r * tile.vectors :], strict=False):
            finish_values(f, kind, places, total, offset, values["slopes"], span)


def live_masks(f: Function, tile: ChannelTile, values: Values) -> list[Value]:
    """Return masks of the active lanes, one per vector."""
    active, width = values["active"], tile.lanes
    return [f.lanes_below(active - v * width, width) for v in range(tile.vectors)]
