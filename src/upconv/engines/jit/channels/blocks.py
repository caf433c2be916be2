"""Spatial blocks: parts of the data along images or the first axis.

Channels-first data is transposed into scratch memory. A spatial block needs little of it, and stays
in the second-level caches until it is transposed back. For channels-last data, spatial blocks keep
tables small. A spatial block is several images, or part of one image along the first axis. Its
outputs begin at a multiple of the stride, so all spatial blocks use the correlation's phases,
blocks and packed weights.

Nothing here touches an array.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ..correlation import Correlation
from .schedule import Cut

_HALOS = 6  # minimum bytes of a block, in halos: two blocks transpose each halo
_MIN_BUSY = 0.8  # minimum part of the time that threads work, if each computes blocks alone
_MAX_TARGETS = 4  # with few positions, a block may be this many times as large as wanted
_TRANSPOSED = 4 << 20  # bytes of transposed data per thread, besides 1.3 times the input


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """The correlation of spatial blocks that share tables. `before` is the coordinate, along the
    first axis of a block's inputs, that the first outputs read at shift 0."""

    correlation: Correlation
    before: int = 0


@dataclass(frozen=True, slots=True)
class SpatialBlock:
    """A spatial block: its kind, first image, and first output and input along the first axis."""

    kind: Kind
    image: int
    output: int = 0
    input: int = 0


def spatial_blocks(
    correlation: Correlation, cut: Cut, room: int, element: int
) -> tuple[SpatialBlock, ...]:
    """Cut a correlation into spatial blocks of about `room` bytes and at least one position each.
    `element` is the bytes of a transposed number."""
    image, outs = image_bytes(correlation, element), correlation.lines[0].out
    outputs = _outputs(correlation, cut)
    positions = -(-outs // outputs)
    if image <= room or positions < 2:
        images = _even(correlation.batch, max(1, room // max(1, image)))
        starts = range(0, correlation.batch, images)
        counts = [min(images, correlation.batch - start) for start in starts]
        by_count = {n: Kind(replace(correlation, batch=n)) for n in dict.fromkeys(counts)}
        return tuple(SpatialBlock(by_count[n], i) for n, i in zip(counts, starts, strict=True))
    step = _even(positions, max(1, positions * room // image)) * outputs
    kinds: dict[tuple[int, ...], Kind] = {}
    parts = [_part(correlation, low, min(low + step, outs), kinds) for low in range(0, outs, step)]
    return tuple(
        SpatialBlock(part[0], i, *part[1:]) for i in range(correlation.batch) for part in parts
    )


def blocks_for_threads(
    correlation: Correlation,
    cut: Cut,
    element: int,
    threads: int,
    target: int,
    least: int,
    most: int,
) -> tuple[tuple[SpatialBlock, ...], bool]:
    """Return the spatial blocks, and whether each is computed by one thread.

    A thread's block has about `target` bytes, at least `least`. All threads' blocks together have
    at most `most`. If threads would otherwise be idle, all threads compute each block together.
    """
    image = image_bytes(correlation, element)
    data = image * correlation.batch
    wanted, least = max(target, least), max(least, _HALOS * halo_bytes(correlation, element), 1)
    largest = min(_MAX_TARGETS * wanted, most // threads)
    target = max(1, min(max(wanted, least), most // threads))
    per_thread = min(-(-data // (target * threads)), data // (least * threads))
    for rounded_up in (True, False):
        if per_thread * threads > 1:
            room = _room(correlation, cut, image, per_thread * threads, rounded_up=rounded_up)
            parts = spatial_blocks(correlation, cut, room, element)
            sizes = [
                image_bytes(p.kind.correlation, element) * p.kind.correlation.batch for p in parts
            ]
            slots = threads * -(-len(parts) // threads)
            busy = sum(sizes) / (slots * max(sizes))
            if max(sizes) <= largest and busy >= _MIN_BUSY:
                return parts, True
    together = min(max(wanted * threads, least), most)
    return spatial_blocks(correlation, cut, together, element), False


def _room(correlation: Correlation, cut: Cut, image: int, count: int, *, rounded_up: bool) -> int:
    """Return the bytes of each of `count` blocks of entire images, or of entire positions."""
    positions = -(-correlation.lines[0].out // _outputs(correlation, cut))
    added = count - 1 if rounded_up else 0
    if count <= correlation.batch:
        return (correlation.batch + added) // count * image
    return -(-max(1, (correlation.batch * positions + added) // count) * image // max(1, positions))


def _even(total: int, most: int) -> int:
    """Return the size of equal parts of `total`, at most `most`; the last part may be smaller."""
    return -(-total // -(-total // most))


def image_bytes(correlation: Correlation, element: int) -> int:
    """Return the bytes of one image's transposed input and output."""
    line = correlation.lines[0]
    return _bytes(correlation, element, line.size, line.out)


def halo_bytes(correlation: Correlation, element: int) -> int:
    """Return the bytes of the operand that two neighbouring spatial blocks both transpose."""
    line = correlation.lines[0]
    shared = max(0, line.high - line.low + 1 - line.step)
    return _bytes(correlation, element, min(line.size, shared), 0)


def least_bytes(correlation: Correlation, element: int) -> int:
    """Return the approximate bytes of a small spatial block: two positions' outputs, and the inputs
    that they read."""
    line = correlation.lines[0]
    inputs = min(line.size, line.step + line.high - line.low + 1)
    return _bytes(correlation, element, inputs, min(line.out, 2 * line.stride))


def _bytes(correlation: Correlation, element: int, inputs: int, outputs: int) -> int:
    """Return an image's transposed bytes, for these inputs and outputs along the first axis."""
    x = correlation.reduced * inputs * prod(correlation.operand_size[1:])
    return (x + correlation.made * outputs * prod(correlation.result_size[1:])) * element


def transposed_bytes(correlation: Correlation, threads: int) -> int:
    """Return the bytes that transposed data should not exceed."""
    x_bytes = prod(correlation.operand_shape) * correlation.dtype.itemsize
    return int(1.3 * x_bytes) + threads * _TRANSPOSED


def _outputs(correlation: Correlation, cut: Cut) -> int:
    """Return a point's outputs along the first axis; spatial blocks begin at multiples of these."""
    return correlation.lines[0].stride * (1 if correlation.rank > 1 else cut.unroll)


def _part(
    correlation: Correlation, low: int, high: int, kinds: dict[tuple[int, ...], Kind]
) -> tuple[Kind, int, int]:
    """Return the kind of outputs [low, high), kept in `kinds`, and its first output and input."""
    line = correlation.lines[0]
    first, inputs = line.part(low, high)
    before = line.step * (low // line.stride) - inputs.start
    key = first.size, first.out, before
    if key not in kinds:
        lines = first, *correlation.lines[1:]
        kinds[key] = Kind(replace(correlation, batch=1, lines=lines), before)
    return kinds[key], low, inputs.start
