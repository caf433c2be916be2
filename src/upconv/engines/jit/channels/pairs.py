"""Products of one tap that are no broadcasts of one number: pairs of bfloat16, and depthwise ones.

One broadcast of 32 bits puts the inputs c (low half) and c + 1 (high half), which lie side by side
in channels-last memory, in every lane: each is made float32 by one instruction more (`paired_tap`),
or dot products add both at once (`dot_tap`). The last of an odd number of channels has no neighbour
that may be read: it is done alone.

With one input channel per group, the output lanes of a point are the channels of all groups, each
with its own weight: y[l] += x[l / m] * w[l], m output channels (`multiplier`) to an input channel.
A tap is one vector of weights per vector of lanes, shared by all points of the tile; inputs are
read as they lie (`depthwise_tap`). Memory is the limit, not multiply-adds.
"""

from __future__ import annotations

from ..emit import Function
from ..rows import converted
from ..values import I16, I32, Value, vector
from .tile import ChannelTile, Inputs, Read, add_channels, everywhere, live_masks

_HIGH = -1 << 16  # the bits of a pair's second number, which are those of its float32


def paired_tap(f: Function, tile: ChannelTile, given: Inputs, sums: list[Value]) -> list[Value]:
    """Add the products of all input channels of one tap."""
    return _in_pairs(f, tile, given, sums, [_half(0), _half(1)], everywhere)


def dot_tap(f: Function, tile: ChannelTile, given: Inputs, sums: list[Value]) -> list[Value]:
    """Add the products of all input channels of one tap by dot products of pairs."""
    return _in_pairs(f, tile, given, sums, [_pair], _single)


def _in_pairs(
    f: Function, tile: ChannelTile, given: Inputs, sums: list[Value], reads: list[Read], last: Read
) -> list[Value]:
    """Two channels at a time by `reads`, then the last one of an odd number."""
    whole = _paired(f, given.channels)
    some, rest = (f.integer(0), whole), (whole, given.channels)
    done = add_channels(f, tile, given, [given.w, *sums], some, 2, reads)
    return add_channels(f, tile, given, done, rest, 1, [last])[1:]


def _paired(f: Function, channels: Value) -> Value:
    """How many channels are in pairs."""
    return channels - channels % 2


def _half(number: int) -> Read:
    """The first or the second of two neighbouring inputs as float32, in every lane."""

    def read(f: Function, tile: ChannelTile, pair: Value) -> Value:
        both = f.broadcast(f.load(I32, pair), tile.lanes)
        bits = both & _HIGH if number else both << 16
        return f.convert("bitcast", bits, vector(tile.element, tile.lanes))

    return read


def _pair(f: Function, tile: ChannelTile, address: Value) -> Value:
    """Two inputs in every lane."""
    pair = f.broadcast(f.load(I32, address), tile.lanes)
    return f.convert("bitcast", pair, vector(tile.element, tile.lanes))


def _single(f: Function, tile: ChannelTile, address: Value) -> Value:
    """One input and a zero in every lane."""
    pair = f.broadcast(f.convert("zext", f.load(I16, address), I32), tile.lanes)
    return f.convert("bitcast", pair, vector(tile.element, tile.lanes))


# Depthwise ----------------------------------------------------------------------------------------


def depthwise_tap(f: Function, tile: ChannelTile, given: Inputs, sums: list[Value]) -> list[Value]:
    """Add the products of one tap: `given.channels` is 1, or 0 where it is outside."""
    kind = vector(tile.element, tile.lanes)
    with f.loop(0, given.channels, carried=sums) as loop:
        running = list(loop.carried)
        masks = live_masks(f, tile) if tile.masked else []
        for v in range(tile.vectors):
            w = f.load(kind, f.at(given.w, v * tile.lanes, tile.element))
            for r, point in enumerate(given.points):
                i = r * tile.vectors + v
                x = _inputs(f, tile, point, v, masks)
                running[i] = f.multiply_add(x, w, running[i])
        loop.next(running)
    return loop.results


def _inputs(f: Function, tile: ChannelTile, point: Value, v: int, masks: list[Value]) -> Value:
    """The inputs of one vector of lanes; of a masked tile only those that exist are read."""
    count = tile.lanes // tile.multiplier
    kind, address = vector(tile.stored, count), f.at(point, v * count, tile.stored)
    if masks:
        own = [i * tile.multiplier for i in range(count)]
        mask = masks[v] if tile.multiplier == 1 else f.shuffle(masks[v], None, own)
        x = f.load_lanes(kind, address, mask)
    else:
        x = f.load(kind, address)
    x = converted(f, x, tile.element)
    if tile.multiplier == 1:
        return x
    return f.shuffle(x, None, [i // tile.multiplier for i in range(tile.lanes)])
