"""One tap's products: single inputs, pairs of bfloat16 inputs, and depthwise products.

Pairs: one broadcast of 32 bits puts two neighbouring channels of a bfloat16 input in every lane: c
in the low half, c + 1 in the high half. Another instruction widens each to float32, or one dot
product adds both products. If the number of channels is odd, the last one has no neighbour, and the
tile reads it alone.

Depthwise: a point's lanes are the output channels of all groups. A group has m of them
(`multiplier`) and one or m input channels c: y[l] += x[l / m][c] * w[c][l]. A tap has a vector of
weights per input channel and vector of lanes, which all points of the tile share. Inputs are not
packed. With one input channel, memory bandwidth limits the speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..emit import Function
from ..rows import converted
from ..values import BFLOAT, BYTES, I1, I16, I32, LINE, Value, vector
from .tile import ChannelTile, Inputs, live_masks, load_vectors

Read = Callable[[Function, ChannelTile, Value], Value]
"""A function that loads an input, or a pair of inputs, from an address into every lane."""

_HIGH = -1 << 16  # mask of a pair's second number: the upper half of its float32
_AHEAD = 2048
"""Bytes between weights in use and weights being prefetched into the first-level cache. On a Xeon,
weights from the third-level cache arrive twice as fast with 2 to 16 KiB as without this prefetch,
and three quarters as fast with 1 KiB (2026-11-27)."""


def tap_products(f: Function, tile: ChannelTile, inputs: Inputs, sums: list[Value]) -> list[Value]:
    """Add one tap's products for all input channels, in pairs if inputs are bfloat16."""
    if tile.depthwise:
        return _depthwise(f, tile, inputs, sums)
    pairs, last = ([_pair], _half_pair) if tile.dots else ([_half(0), _half(1)], _single)
    carried, first = [inputs.w, inputs.ahead, *sums], inputs.first
    stop = first + inputs.channels
    if in_pairs(tile):
        middle = first + paired(f, inputs.channels)
        carried = _channels(f, tile, inputs, carried, (first, middle, 2), pairs)
        first = middle
    return _channels(f, tile, inputs, carried, (first, stop, 1), [last])[2:]


def in_pairs(tile: ChannelTile) -> bool:
    """Whether two input channels are read at once."""
    return tile.stored == BFLOAT


def paired(f: Function, channels: Value) -> Value:
    """Return the number of channels that form pairs."""
    return channels - channels % 2


def _channels(
    f: Function,
    tile: ChannelTile,
    inputs: Inputs,
    carried: list[Value],
    channels: tuple[Value, Value, int],
    reads: Sequence[Read],
) -> list[Value]:
    """Add the products for a range of input channels. Each of `reads` has separate weights. A loop
    carries the address of weights, that of what to prefetch, and the sums.

    Loading weights between two reads also keeps the compiler from holding the first read's inputs
    in registers until the second.
    """
    masks = _lane_masks(f, tile, inputs.record)
    with f.loop(*channels, carried=carried) as loop:
        w, ahead, *sums = loop.carried
        for read in reads:
            weights = _weights(f, tile, w, ahead)
            for r, point in enumerate(inputs.points):
                x = read(f, tile, f.at(point, loop.index, tile.stored))
                for v, weight in enumerate(weights):
                    i = r * tile.vectors + v
                    total = (
                        f.dots(sums[i], x, weight)
                        if tile.dots
                        else f.multiply_add(x, weight, sums[i])
                    )
                    sums[i] = f.select(masks[v], total, sums[i]) if masks else total
            w = f.at(w, tile.width, tile.element)
            ahead = ahead + inputs.operands["ahead_step"]
        loop.next([w, ahead, *sums])
    return loop.results


def _weights(f: Function, tile: ChannelTile, w: Value, ahead: Value) -> list[Value]:
    """Load a product's weights, and prefetch later weights and inputs."""
    f.prefetch(ahead)
    for lane in range(0, tile.width, LINE // BYTES[tile.element]):
        f.prefetch(f.at(w + _AHEAD, lane, tile.element), near=True)
    return load_vectors(f, tile, w)


def _lane_masks(f: Function, tile: ChannelTile, record: Value) -> list[Value]:
    """Return masks of the lanes that use a tap, one per vector of a masked tile."""
    words = [f.word(record, 1 + v) for v in range(tile.masks)]
    bits = [f.convert("trunc", word, f"i{tile.lanes}") for word in words]
    return [f.convert("bitcast", mask, vector(I1, tile.lanes)) for mask in bits]


# Reading inputs -----------------------------------------------------------------------------------


def _single(f: Function, tile: ChannelTile, address: Value) -> Value:
    """Load one input into every lane."""
    if BYTES[tile.stored] > 2:
        return f.broadcast(f.load(tile.stored, address), tile.lanes)
    # Broadcast as integers: for 16-bit floats some code generators call a library.
    bits = f.broadcast(f.load(I16, address), tile.lanes)
    halves = f.convert("bitcast", bits, vector(tile.stored, tile.lanes))
    return converted(f, halves, tile.element)


def _half(number: int) -> Read:
    """Return a reader of one of two neighbouring inputs, as float32, into every lane."""

    def read(f: Function, tile: ChannelTile, pair: Value) -> Value:
        pairs = f.broadcast(f.load(I32, pair), tile.lanes)
        bits = pairs & _HIGH if number else pairs << 16
        return f.convert("bitcast", bits, vector(tile.element, tile.lanes))

    return read


def _pair(f: Function, tile: ChannelTile, address: Value) -> Value:
    """Load two inputs into every lane."""
    pair = f.broadcast(f.load(I32, address), tile.lanes)
    return f.convert("bitcast", pair, vector(tile.element, tile.lanes))


def _half_pair(f: Function, tile: ChannelTile, address: Value) -> Value:
    """Load one input and a zero into every lane."""
    pair = f.broadcast(f.convert("zext", f.load(I16, address), I32), tile.lanes)
    return f.convert("bitcast", pair, vector(tile.element, tile.lanes))


# Depthwise ----------------------------------------------------------------------------------------


def _depthwise(f: Function, tile: ChannelTile, inputs: Inputs, sums: list[Value]) -> list[Value]:
    """Add one tap's products; `inputs.channels` is a group's, or 0 if no point reads an input."""
    points = [f.at(point, inputs.first, tile.stored) for point in inputs.points]
    with f.loop(0, inputs.channels, tile.reduction, carried=sums) as loop:
        running = list(loop.carried)
        masks = live_masks(f, tile, inputs.operands) if tile.masked else []
        for v in range(tile.vectors):
            kind, first = vector(tile.element, tile.lanes), v * tile.lanes
            weights = [
                f.load(kind, f.at(inputs.w, first + c * tile.width, tile.element))
                for c in range(tile.reduction)
            ]
            for r, point in enumerate(points):
                i, x = r * tile.vectors + v, _lanes(f, tile, point, v, masks)
                for c, weight in enumerate(weights):
                    factor = _of_each_group(f, tile, x, c)
                    running[i] = f.multiply_add(factor, weight, running[i])
        loop.next(running)
    return loop.results


def _lanes(f: Function, tile: ChannelTile, point: Value, v: int, masks: list[Value]) -> Value:
    """Load the inputs for one vector of lanes; a masked tile reads only those of active lanes."""
    count = tile.lanes // tile.multiplier * tile.reduction
    kind, address = vector(tile.stored, count), f.at(point, v * count, tile.stored)
    if masks:
        first = [i // tile.reduction * tile.multiplier for i in range(count)]
        mask = masks[v] if count == tile.lanes else f.shuffle(masks[v], None, first)
        x = f.load_lanes(kind, address, mask)
    else:
        x = f.load(kind, address)
    return converted(f, x, tile.element)


def _of_each_group(f: Function, tile: ChannelTile, x: Value, channel: int) -> Value:
    """Return an input channel of each lane's group."""
    if tile.multiplier == 1:
        return x
    groups = (lane // tile.multiplier for lane in range(tile.lanes))
    return f.shuffle(x, None, [group * tile.reduction + channel for group in groups])
