"""Products of one tap that are no broadcasts of one number: pairs of bfloat16, and depthwise ones.

One broadcast of 32 bits puts the inputs c (low half) and c + 1 (high half), which lie side by side
in channels-last memory, in every lane: each is made float32 by one instruction more (`paired_tap`),
or dot products add both at once (`dot_tap`). The last of an odd number of channels has no neighbour
that may be read: it is done alone.

With one input channel per group, the output lanes of a point are the channels of all groups, each
with its own weight: y[l] += x[l / m] * w[l], m output channels (`spread`) to an input channel. A
tap is one vector of weights per vector of lanes, shared by all points of the tile; inputs are read
as they lie (`own_tap`). Memory is the limit, not multiply-adds.
"""

from __future__ import annotations

from .channel_tile import (
    ChannelTile,
    Inputs,
    add_products,
    broadcast_tap,
    fetch_weights,
    lane_masks,
    live_masks,
)
from .cpu import Cpu
from .emit import Function
from .rows import converted
from .tile import multiply_add
from .values import I16, I32, Value, vector

_HIGH = -1 << 16  # the bits of a pair's second number, which are those of its float32


def paired_tap(
    f: Function, tile: ChannelTile, cpu: Cpu, given: Inputs, sums: list[Value]
) -> list[Value]:
    """Add the products of all input channels of one tap."""
    masks = lane_masks(f, tile, given.record)
    whole = _paired(f, given.channels)
    with f.loop(0, whole, 2, carried=[given.w, *sums]) as loop:
        w, *running = loop.carried
        for half in range(2):
            # Asking for weights in between also keeps the compiler from holding all broadcasts of
            # the first half in registers until the second.
            weights = fetch_weights(f, tile, given, f.add(loop.index, half), w)
            inputs = (
                _half(f, tile, f.at(point, loop.index, tile.stored), half) for point in given.points
            )
            running = add_products(f, tile, cpu, inputs, weights, running, masks)
            w = f.at(w, tile.width, tile.element)
        loop.next([w, *running])
    return broadcast_tap(f, tile, cpu, given, loop.results[1:], (whole, loop.results[0]))


def _paired(f: Function, channels: Value) -> Value:
    """How many channels are in pairs."""
    return f.sub(channels, f.rem(channels, 2))


def _half(f: Function, tile: ChannelTile, pair: Value, half: int) -> Value:
    """One of two neighbouring inputs as float32, in every lane."""
    kind = vector(I32, tile.lanes)
    bits = f.broadcast(f.load(I32, pair), tile.lanes)
    if half:
        bits = f.bitwise("and", bits, f.splat(kind, _HIGH))
    else:
        bits = f.bitwise("shl", bits, f.splat(kind, 16))
    return f.convert("bitcast", bits, vector(tile.element, tile.lanes))


def dot_tap(
    f: Function, tile: ChannelTile, cpu: Cpu, given: Inputs, sums: list[Value]
) -> list[Value]:
    """Add the products of all input channels of one tap by dot products of pairs."""
    whole = _paired(f, given.channels)
    done = _dots(f, tile, cpu, given, [given.w, *sums], (f.integer(0), whole), I32)
    return _dots(f, tile, cpu, given, done, (whole, given.channels), I16)[1:]


def _dots(
    f: Function,
    tile: ChannelTile,
    cpu: Cpu,
    given: Inputs,
    carried: list[Value],
    channels: tuple[Value, Value],
    read: str,
) -> list[Value]:
    """Add the products of some channels, of which `read` is as many as are read at once; `carried`
    and the result are the place of weights, and the sums."""
    masks = lane_masks(f, tile, given.record)
    with f.loop(*channels, 2, carried=carried) as loop:
        w, *running = loop.carried
        weights = fetch_weights(f, tile, given, loop.index, w)
        inputs = (
            _pair(f, tile, f.load(read, f.at(point, loop.index, tile.stored)))
            for point in given.points
        )
        running = add_products(f, tile, cpu, inputs, weights, running, masks)
        loop.next([f.at(w, tile.width, tile.element), *running])
    return loop.results


def _pair(f: Function, tile: ChannelTile, bits: Value) -> Value:
    """Two inputs, or one and a zero, in every lane."""
    pair = bits if bits.type == I32 else f.convert("zext", bits, I32)
    return f.convert("bitcast", f.broadcast(pair, tile.lanes), vector(tile.element, tile.lanes))


# Depthwise ----------------------------------------------------------------------------------------


def own_tap(
    f: Function, tile: ChannelTile, cpu: Cpu, given: Inputs, sums: list[Value]
) -> list[Value]:
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
                running[i] = multiply_add(f, cpu, x, w, running[i])
        loop.next(running)
    return loop.results


def _inputs(f: Function, tile: ChannelTile, point: Value, v: int, masks: list[Value]) -> Value:
    """The inputs of one vector of lanes; of a masked tile only those that exist are read."""
    count = tile.lanes // tile.spread
    kind, address = vector(tile.stored, count), f.at(point, v * count, tile.stored)
    if masks:
        own = [i * tile.spread for i in range(count)]
        mask = masks[v] if tile.spread == 1 else f.shuffle(masks[v], None, own)
        x = f.load_lanes(kind, address, mask)
    else:
        x = f.load(kind, address)
    x = converted(f, x, tile.element)
    if tile.spread == 1:
        return x
    return f.shuffle(x, None, [i // tile.spread for i in range(tile.lanes)])
