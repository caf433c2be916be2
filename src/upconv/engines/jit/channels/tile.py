"""The register tile of the channel-vectorised kernel: vectors run along lanes, inputs are
broadcast.

Lanes are outputs that lie side by side in channels-last memory: the channels of one position or of
a few neighbours. A tile computes V vectors of lanes for R *points*, any R outputs positions made by
the same taps. For each tap and each input channel

    V loads of weights
    for each point: broadcast its input, V multiply-adds into acc[point]

Where neighbouring taps of the last axis read neighbouring positions, the channels of their window
lie side by side, and so do their weights: `merged` taps are then summed as one tap of so many times
the channels, in the same order. It saves finding the inputs of each, which is most of the work with
few channels. Only tiles whose windows cross neither end of a row do so.

A tap that is outside for all R points is skipped. A *masked* tile touches, for each tap, only the
lanes that use it: no input meets an output that it does not reach. (Infinity in the weights does
meet the zeros that are read outside.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..emit import Function, Module, signature
from ..rows import converted
from ..values import BYTES, I1, I16, I64, PTR, Value, split, vector

PARAMETERS = signature(
    "tiles"  # tiles to compute, R points each
    " xs*"  # R addresses per tile: the input of each point before any shift
    " coordinates*"  # for each axis R numbers: which input that is
    " edges*"  # R numbers: `INSIDE`, or where taps read outside
    " coordinate_axis"  # bytes from one axis's numbers to the next one's
    " sizes* axes"  # inputs of each axis
    " taps* ntaps"  # a record per tap: bytes to add to xs, masks if masked, a shift per axis
    " record"  # bytes of a record
    " merged"  # taps, one after another, that are one where no window crosses the end of a row
    " x_offset"  # bytes to add to xs
    " channels"  # input channels
    " zeros"  # the address of zeros to read instead
    " w* w_tap"  # bytes from one tap's weights to the next one's
    " ahead* ahead_step"  # weights that will be needed next, and bytes to ask for per channel, or 0
    " bias*"  # V vectors
    " resumed"  # whether sums go on from what lies in the output
    " out* outs*"  # R byte offsets from `out`
    " active"  # lanes to store
)
POINTS = ("xs", "outs", "coordinates", "edges")
"""Parameters of which a tile's points have a number each: they move on from tile to tile."""

INSIDE, OUTER, CROSSING = 0, 1, 1 << 16
"""The edges of a point: 0 where no tap reads outside, `OUTER` for each outer axis along which some
does, and `CROSSING` where some does along the last axis."""


@dataclass(frozen=True, slots=True)
class ChannelTile:
    """What a tile's code depends on: its class.

    `stored` is the type of the inputs, `element` of all else. A *depthwise* tile has one input
    channel per output channel (or per `multiplier` neighbouring ones): lanes of input meet lanes of
    weights. With `dots` the weights of two input channels lie together, as bfloat16.
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


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the products of one tap are made of: the address of each point's input, the weights."""

    record: Value
    points: list[Value]
    w: Value
    channels: Value
    ahead: Value


Values = dict[str, Value]
Products = Callable[[Function, ChannelTile, Inputs, list[Value]], list[Value]]
Read = Callable[[Function, ChannelTile, Value], Value]
"""What loads the inputs at an address into the lanes that meet one vector of weights."""


def emit_channel_tile(module: Module, name: str, tile: ChannelTile, products: Products) -> None:
    """A function of `PARAMETERS` that computes one tile, `products` being those of one tap."""
    with module.function(name, PARAMETERS) as f:
        pointers = f.scratch(8 * tile.numbers)
        with f.loop(0, f["tiles"]) as loop:
            first = loop.index * tile.points
            here = {name: f.at(f[name], first, I64) for name in POINTS}
            edges = _numbers(f, tile, here["edges"])
            here["axes"] = f.select(_any(f, tile, f.compare("ne", edges, INSIDE)), f["axes"], 0)
            crosses = _any(f, tile, f.compare("uge", edges, CROSSING))
            here["merged"] = f.select(crosses, 1, f["merged"])
            here["channels"] = f["channels"] * here["merged"]
            here["ahead"] = f["ahead"] + loop.index * here["channels"] * f["ahead_step"]
            here["pointers"] = pointers
            sums = _starts(f, tile, here)
            _leave(f, tile, here, _products(f, tile, products, here, sums))


def _products(
    f: Function, tile: ChannelTile, products: Products, here: Values, sums: list[Value]
) -> list[Value]:
    """Add the products of all taps."""
    with f.loop(0, f["ntaps"], here["merged"], carried=sums) as taps:
        record = f["taps"] + taps.index * f["record"]
        some = _point(f, tile, here, record)
        points = [f.load(PTR, f.at(here["pointers"], r, I64)) for r in range(tile.points)]
        w = f["w"] + taps.index * f["w_tap"]
        count = f.select(some, here["channels"], 0)
        inputs = Inputs(record, points, w, count, here["ahead"])
        taps.next(products(f, tile, inputs, taps.carried))
    return taps.results


def _starts(f: Function, tile: ChannelTile, here: Values) -> list[Value]:
    """The bias, or the sums of earlier taps and channels."""
    sums = []
    fresh = f.compare("eq", f["resumed"], 0)
    for r in range(tile.points):
        output = _output(f, here, r)
        for v in range(tile.vectors):
            f.prefetch(f.at(output, v * tile.lanes, tile.element), write=True)
        start = f.select(fresh, f["bias"], output)
        sums += [_vector(f, tile, start, v) for v in range(tile.vectors)]
    return sums


def _output(f: Function, here: Values, point: int) -> Value:
    return f["out"] + f.word(here["outs"], point)


def _vector(f: Function, tile: ChannelTile, address: Value, number: int) -> Value:
    kind = vector(tile.element, tile.lanes)
    return f.load(kind, f.at(address, number * tile.lanes, tile.element))


def _numbers(f: Function, tile: ChannelTile, address: Value) -> Value:
    return f.load(vector(I64, tile.numbers), address)


def _any(f: Function, tile: ChannelTile, mask: Value) -> Value:
    """Whether a mask is set for any point."""
    used = ", ".join(f"i1 {int(r < tile.points)}" for r in range(tile.numbers))
    bits = mask & Value(mask.type, f"<{used}>")
    return f.compare("ne", f.convert("bitcast", bits, f"i{split(bits.type)[1]}"), 0)


def _point(f: Function, tile: ChannelTile, here: Values, record: Value) -> Value:
    """Write where each point's input of one tap lies; whether any lies inside."""
    bits = vector(I1, tile.numbers)
    shifts = f.at(record, 1 + tile.masks, I64)
    with f.loop(0, here["axes"], carried=[Value(bits, "splat (i1 true)")]) as axis:
        mine = here["coordinates"] + axis.index * f["coordinate_axis"]
        shift = f.word(shifts, axis.index)
        size = f.word(f["sizes"], axis.index)
        place = _numbers(f, tile, mine) - f.broadcast(shift, tile.numbers)
        # Unsigned: a negative number is beyond every size.
        inside = f.compare("ult", place, f.broadcast(size, tile.numbers))
        axis.next([axis.carried[0] & inside])
    inside = axis.results[0]
    offset = f.load(I64, record) + f["x_offset"]
    moved = _numbers(f, tile, here["xs"]) + f.broadcast(offset, tile.numbers)
    f.store(f.select(inside, moved, f.broadcast(f["zeros"], tile.numbers)), here["pointers"])
    return _any(f, tile, inside)


_AHEAD = 8
"""How many input channels before their use weights are brought from the second-level cache into
the first: some processors do not do it fast enough by themselves (a Xeon, 2026-11-21: up to 12 %
from it where weights are large, nothing lost elsewhere)."""


def broadcast_tap(f: Function, tile: ChannelTile, given: Inputs, sums: list[Value]) -> list[Value]:
    """Add the products of all input channels of one tap."""
    channels = f.integer(0), given.channels
    return add_channels(f, tile, given, [given.w, *sums], channels, 1, [everywhere])[1:]


def add_channels(
    f: Function,
    tile: ChannelTile,
    given: Inputs,
    carried: list[Value],
    channels: tuple[Value, Value],
    step: int,
    reads: Sequence[Read],
) -> list[Value]:
    """Add the products of input channels, `step` at a time by one vector of weights for each of
    `reads`; `carried` and the result are the place of the weights, and the sums.

    Asking for weights between two reads also keeps the compiler from holding all inputs of the
    first in registers until the second.
    """
    masks = lane_masks(f, tile, given.record)
    with f.loop(*channels, step, carried=carried) as loop:
        w, *running = loop.carried
        for number, read in enumerate(reads):
            weights = fetch_weights(f, tile, given, loop.index + number, w)
            inputs = (read(f, tile, f.at(x, loop.index, tile.stored)) for x in given.points)
            running = add_products(f, tile, inputs, weights, running, masks)
            w = f.at(w, tile.width, tile.element)
        loop.next([w, *running])
    return loop.results


def fetch_weights(
    f: Function, tile: ChannelTile, given: Inputs, channel: Value, w: Value
) -> list[Value]:
    """The weights of one input channel, those that come later being asked for."""
    f.prefetch(given.ahead + channel * f["ahead_step"])
    for v in range(tile.vectors):
        f.prefetch(f.at(w, _AHEAD * tile.width + v * tile.lanes, tile.element), near=True)
    return [_vector(f, tile, w, v) for v in range(tile.vectors)]


def add_products(
    f: Function,
    tile: ChannelTile,
    inputs: Iterable[Value],
    weights: list[Value],
    sums: list[Value],
    masks: list[Value],
) -> list[Value]:
    """Add one input channel's products to the sums of all points."""
    running = list(sums)
    for r, x in enumerate(inputs):
        for v in range(tile.vectors):
            i = r * tile.vectors + v
            if tile.dots:
                total = f.dots(running[i], x, weights[v])
            else:
                total = f.multiply_add(x, weights[v], running[i])
            running[i] = f.select(masks[v], total, running[i]) if tile.masked else total
    return running


def everywhere(f: Function, tile: ChannelTile, address: Value) -> Value:
    """An input in every lane."""
    if BYTES[tile.stored] > 2:
        return f.broadcast(f.load(tile.stored, address), tile.lanes)
    # As integers: some processors' code generators call a library for a vector of one half.
    bits = f.broadcast(f.load(I16, address), tile.lanes)
    halves = f.convert("bitcast", bits, vector(tile.stored, tile.lanes))
    return converted(f, halves, tile.element)


def lane_masks(f: Function, tile: ChannelTile, record: Value) -> list[Value]:
    """For each vector which lanes use a tap, in a masked tile."""
    if not tile.masked:
        return []
    masks = []
    for v in range(tile.vectors):
        bits = f.convert("trunc", f.word(record, 1 + v), f"i{tile.lanes}")
        masks.append(f.convert("bitcast", bits, vector(I1, tile.lanes)))
    return masks


def _leave(f: Function, tile: ChannelTile, here: Values, sums: list[Value]) -> None:
    """Store all lanes, or those that are live."""
    whole = f["active"] >= tile.width
    with f.when(whole):
        for i, total in enumerate(sums):
            r, v = divmod(i, tile.vectors)
            f.store(total, f.at(_output(f, here, r), v * tile.lanes, tile.element))
    with f.unless(whole):
        masks = live_masks(f, tile)
        for i, total in enumerate(sums):
            r, v = divmod(i, tile.vectors)
            f.store_lanes(total, f.at(_output(f, here, r), v * tile.lanes, tile.element), masks[v])


def live_masks(f: Function, tile: ChannelTile) -> list[Value]:
    """For each vector which lanes are live."""
    return [f.lanes_below(f["active"] - v * tile.lanes, tile.lanes) for v in range(tile.vectors)]
