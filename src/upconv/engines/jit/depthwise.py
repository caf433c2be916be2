"""Products of a depthwise layer in channels-last memory: lanes of input meet lanes of weights.

With one input channel per group, the output lanes of a point are the channels of all groups, each
with its own weight: y[l] += x[l / m] * w[l], m output channels (`spread`) to an input channel. A
tap is one vector of weights per vector of lanes, shared by all points of the tile; inputs are read
as they lie. Memory is the limit, not multiply-adds.
"""

from __future__ import annotations

from .channel_tile import ChannelTile, Inputs, live_masks
from .cpu import Cpu
from .emit import Function
from .rows import converted
from .tile import multiply_add
from .values import Value, vector


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
