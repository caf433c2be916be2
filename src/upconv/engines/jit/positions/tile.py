"""The positions kernel's register tile, which does nearly all multiply-adds.

A tile computes `lanes * vectors` consecutive positions j in one output row, for R = channels x
phases rows of the tile: y[f, s*j + r] for `channels` channels f and `phases` consecutive phases r.
For one input channel and one outer tap:

    for each shift e:           V loads of x[j - e ...]
        for each (f, r) that uses e:    broadcast w[f, r, e], V multiply-adds into acc[f, r]

Weights are packed in exactly this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import gcd
from typing import NamedTuple

from ..activation import NO_ACTIVATION, ActivationEpilogue, activated, second_of
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module, signature
from ..processor_costs import Costs, costs_of
from ..rows import converted
from ..values import BYTES, LINE, Value, vector


class Step(NamedTuple):
    """An input shift and the phases (numbered within the tile) that use it."""

    shift: int
    phases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile's class: everything on which its code depends. Sizes are arguments.

    `dense` says that the tile has all phases of the stride, so that each of its rows is contiguous.
    `epilogue` is applied before results, and a second result if there is one, are stored as type
    `stored`.
    """

    element: str
    stored: str
    lanes: int
    vectors: int
    channels: int
    phases: int
    steps: tuple[Step, ...]
    dense: bool
    epilogue: ActivationEpilogue = NO_ACTIVATION

    @property
    def width(self) -> int:
        """Number of positions per phase."""
        return self.lanes * self.vectors

    @property
    def entries(self) -> int:
        """Number of weights for one input channel and one outer tap."""
        return self.channels * sum(len(step.phases) for step in self.steps)

    @property
    def costs(self) -> Costs:
        """The cost figures for the processors that run it."""
        return costs_of(self.lanes * BYTES[self.element])

    @property
    def cycles(self) -> float:
        """Cycles per input channel: the time for multiply-adds, loads, or dependent sums.

        Most inputs are unaligned, and the tile prefetches each of their cache lines."""
        costs, uses = self.costs, self.entries
        inputs = self.vectors * (costs.unaligned * len(self.steps) + costs.line)
        loads = (inputs + uses + (len(self.steps) > 1)) / costs.loads
        waiting = costs.latency * _longest(self.steps)
        return max(uses * self.vectors / costs.adds, loads, waiting) + costs.step

    @property
    def placing(self) -> float:
        """Cycles for placing and storing results; those that form no run are stored one by one."""
        costs = self.costs.positions
        vector = costs.phase * self.phases + costs.piece * (0 if self.dense else self.lanes)
        return costs.store + self.vectors * self.channels * vector

    @property
    def tail_vectors(self) -> int:
        """The maximum number of vectors at a row's end that tiles of one vector compute."""
        return int(self.vectors / (self.narrowed(1).cycles / (self.cycles / self.vectors)))

    @property
    def cuts(self) -> bool:
        """Whether input vectors are cut from two adjacent vectors, which are loaded once.

        Most loads of 64 bytes touch two cache lines. A tile waits for these loads if no second
        channel or phase shares them. Cutting takes 0.80 to 0.96 times as long (Zen 4, 2026-11-22),
        but 1.2 times with 31 shifts, which leave too few registers."""
        shifts = [step.shift for step in self.steps]
        single = self.lanes * BYTES[self.element] == LINE and self.channels * self.phases == 1
        return single and 2 < len(shifts) <= 8 and shifts[0] - shifts[-1] <= self.lanes

    def narrowed(self, vectors: int) -> Tile:
        """Return a tile with the same rows and weights but fewer positions, for a row's end."""
        return replace(self, vectors=vectors)


@lru_cache(maxsize=512)
def _longest(steps: tuple[Step, ...]) -> int:
    """Return the maximum number of multiply-adds into one register per input channel."""
    return max(Counter(phase for step in steps for phase in step.phases).values(), default=0)


PARAMETERS = signature(
    "x*"  # position j of the first input channel, in the packed input
    " w*"  # weights in the order of use
    " taps* ntaps"  # byte offsets of the outer taps' inputs
    " channels channel_stride"  # input channels of the group, and bytes from one to the next
    " ahead"  # input channels from a line's prefetch to its use; all: for the next tile
    " bias* y*"
    " y_channel"  # bytes from one output channel to the next
    " y_position"  # and, unless dense, from one position to the next
    " active"  # output channels that exist
    " slopes"  # bytes from a bias to its PReLU slope, if the tile's epilogue has slopes
    " second"  # and from y to the second result; 0 for a staged tile
)


@compiled("wide", "narrow", kept=512)
def tile_code(module: Module, tile: Tile, cpu: Cpu) -> None:
    """Emit a tile's function `wide` and, if it has several vectors, `narrow` for one vector."""
    emit_tile(module, "wide", tile)
    if tile.vectors > 1:
        emit_tile(module, "narrow", tile.narrowed(1))


def emit_tile(module: Module, name: str, tile: Tile) -> None:
    """Emit a function with `PARAMETERS` that computes one tile."""
    with module.function(name, PARAMETERS) as f:
        addresses = (f.at(f["bias"], i, tile.element) for i in range(tile.channels))
        biases = [f.broadcast(f.load(tile.element, address), tile.lanes) for address in addresses]
        per_channel = tile.phases * tile.vectors
        _prefetch_results(f, tile)
        sums = _products(f, tile, [bias for bias in biases for _ in range(per_channel)])
        sums = [
            activated(f, tile.epilogue.activation, slope, value)
            for channel, slope in enumerate(_slopes(f, tile))
            for value in sums[channel * per_channel : (channel + 1) * per_channel]
        ]
        rows = [sums[i : i + tile.vectors] for i in range(0, len(sums), tile.vectors)]
        _store_channels(f, tile, rows, f["y"])
        if tile.epilogue.has_second:
            with f.when(f.compare("ne", f["second"], 0)):
                _store_channels(f, tile, rows, f["y"] + f["second"], second=True)


def _slopes(f: Function, tile: Tile) -> Iterator[float | Value]:
    """Yield each channel's slope, loaded only when needed, since the registers hold sums."""
    first = f["bias"] + f["slopes"] if tile.epilogue.slopes else None
    for channel in range(tile.channels):
        if first is None:
            yield tile.epilogue.slope
        else:
            slope = f.load(tile.element, f.at(first, channel, tile.element))
            yield f.broadcast(slope, tile.lanes)


def _store_channels(
    f: Function, tile: Tile, rows: list[list[Value]], y: Value, *, second: bool = False
) -> None:
    """Store one result for all channels; the first channel always exists."""
    for channel in range(tile.channels):
        mine = rows[channel * tile.phases : (channel + 1) * tile.phases]
        with f.when(f["active"] > channel) if channel else nullcontext():
            if second:
                mine = [[second_of(f, tile.epilogue, value) for value in row] for row in mine]
            _store_one(f, tile, mine, channel, y)


def _prefetch_results(f: Function, tile: Tile) -> None:
    """Prefetch the results' cache lines. If they come from memory, a tile with few products mostly
    waits for them: with it depthwise k4 s2 takes 0.8 times as long (Zen 4, 2026-11-23)."""
    nbytes = tile.width * tile.phases * BYTES[tile.stored] if tile.dense else 0
    for channel in range(tile.channels):
        for first in range(0, nbytes, LINE):
            line = f["y"] + (f["y_channel"] * channel + first)
            f.prefetch(line, write=True)
            if tile.epilogue.has_second:
                f.prefetch(line + f["second"], write=True)


def _products(f: Function, tile: Tile, sums: list[Value]) -> list[Value]:
    """Add the products for all outer taps and input channels to the sums."""
    if not tile.steps:
        return sums
    step = tile.entries * BYTES[tile.element]
    switch = f["channels"] - f["ahead"] - 1
    with f.loop(0, f["ntaps"], carried=[f["w"], *sums]) as taps:
        start = f["x"] + f.word(f["taps"], taps.index)
        following = f.at(start, tile.width, tile.element)
        later = start + f["channel_stride"] * f["ahead"]
        ahead = f.select(switch < 0, following, later)
        with f.loop(0, f["channels"], carried=[start, ahead, *taps.carried]) as loop:
            x, ahead, w, *running = loop.carried
            _prefetch(f, tile, ahead)
            running = _one_channel(f, tile, x, w, running)
            switches = f.compare("eq", loop.index, switch)
            ahead = f.select(switches, following, ahead + f["channel_stride"])
            loop.next([x + f["channel_stride"], ahead, w + step, *running])
        taps.next(loop.results[2:])
    return taps.results[1:]


AHEAD = 6
"""Packed input channels from a line's prefetch to its use. A tile's last channels prefetch for the
next tile; if the input is read in place, all do.

Channels are too far apart for a hardware prefetcher to see a pattern. Of the distances from 0 to
16, 4 to 8 are equally fast on a Xeon with 2 MiB of second-level cache (2026-11-21). They are 5 to
15 % faster than 0 with the input in that cache, and 1.7 times as fast with it in the third."""


def _prefetch(f: Function, tile: Tile, x: Value) -> None:
    """Prefetch an input channel's cache lines, which need not exist."""
    first, last = -tile.steps[0].shift, tile.width - tile.steps[-1].shift
    for lane in range(first, last, LINE // BYTES[tile.element]):
        f.prefetch(f.at(x, lane, tile.element), near=True)


def _one_channel(f: Function, tile: Tile, x: Value, w: Value, sums: list[Value]) -> list[Value]:
    """Emit the multiply-adds for one input channel and one outer tap."""
    count, start = 0, tile.steps[0].shift
    kind = vector(tile.element, tile.lanes)
    # One instruction cuts integers; floating-point numbers need a copy and an index as well.
    bits = vector(f"i{8 * BYTES[tile.element]}", tile.lanes)
    lines = _vectors(f, tile, bits, x, start, tile.vectors + 1) if tile.cuts else []
    for step in tile.steps:
        if lines:
            cut = range(start - step.shift, start - step.shift + tile.lanes)
            inputs = [f.convert("bitcast", f.shuffle(*p, cut), kind) for p in pairwise(lines)]
        else:
            inputs = _vectors(f, tile, kind, x, step.shift, tile.vectors)
        for channel in range(tile.channels):
            for phase in step.phases:
                weight = f.broadcast(f.load(tile.element, f.at(w, count, tile.element)), tile.lanes)
                count += 1
                first = (channel * tile.phases + phase) * tile.vectors
                for v in range(tile.vectors):
                    sums[first + v] = f.multiply_add(inputs[v], weight, sums[first + v])
    return sums


def _vectors(f: Function, tile: Tile, kind: str, x: Value, shift: int, count: int) -> list[Value]:
    """Load `count` adjacent input vectors."""
    offsets = (v * tile.lanes - shift for v in range(count))
    return [f.load(kind, f.at(x, offset, tile.element)) for offset in offsets]


# Interleaving -------------------------------------------------------------------------------------


def _store_one(f: Function, tile: Tile, rows: list[list[Value]], channel: int, y: Value) -> None:
    """Store one channel: rows[phase][vector] as positions of `phases` adjacent elements each."""
    run = interleaved(f, rows, tile.lanes)
    out = y + f["y_channel"] * channel if channel else y
    if tile.dense:
        for i, values in enumerate(run):
            to = f.at(out, i * tile.lanes, tile.stored)
            f.store(converted(f, values, tile.stored), to)
        return
    piece = gcd(tile.phases, tile.lanes)  # a power of two: no piece crosses two vectors
    for i, values in enumerate(run):
        for start in range(0, tile.lanes, piece):
            position, phase = divmod(i * tile.lanes + start, tile.phases)
            part = values
            if piece < tile.lanes:
                part = f.shuffle(values, None, range(start, start + piece))
            address = out + f["y_position"] * position if position else out
            f.store(converted(f, part, tile.stored), f.at(address, phase, tile.stored))


def interleaved(f: Function, rows: list[list[Value]], lanes: int) -> list[Value]:
    """Interleave sequences a, b, c ... (each a list of vectors): a0 b0 c0 ... a1 b1 c1 ..."""
    if len(rows) == 1:
        return rows[0]
    factor = next(p for p in range(2, len(rows) + 1) if len(rows) % p == 0)
    parts = [interleaved(f, rows[i::factor], lanes) for i in range(factor)]
    return [out for group in zip(*parts, strict=True) for out in _woven(f, list(group), lanes)]


def _woven(f: Function, group: list[Value], lanes: int) -> list[Value]:
    """Interleave p vectors: a0 b0 c0 a1 b1 c1 ..., with p - 1 two-vector shuffles per result."""
    ways = len(group)
    result = []
    for part in range(ways):
        flat = [part * lanes + lane for lane in range(lanes)]
        woven = f.shuffle(
            group[0], group[1], [i // ways + (lanes if i % ways == 1 else 0) for i in flat]
        )
        for source in range(2, ways):
            order = [
                lanes + i // ways if i % ways == source else lane for lane, i in enumerate(flat)
            ]
            woven = f.shuffle(woven, group[source], order)
        result.append(woven)
    return result
