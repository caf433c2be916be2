"""Spatial blocks: parts of the data along images or the first axis.

Channels-first data is transposed into scratch: of a spatial block it stays in the second-level
caches until it is transposed back, and takes little memory. Spatial blocks of channels-last data
keep tables small. A spatial block is a number of images, or part of one along the first axis. Its
outputs begin at a multiple of the stride, so it has the phases, blocks and packed weights of the
correlation.

Nothing here touches an array.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ..correlation import Correlation
from .schedule import Cut

_HALOS = 6  # a spatial block transposes its halo too: at most a sixth more
_LEAST_BUSY = 0.8  # of the time of all threads, where each computes blocks of its own
_MOST_TARGETS = 4  # times as large as wanted, as where the first axis has few positions
_TRANSPOSED = 4 << 20  # bytes per thread that transposing may take beside 1.3 times the input


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """The correlation of spatial blocks that share tables. `before` is the input along the first
    axis from which the inputs of the first outputs are counted."""

    correlation: Correlation
    before: int = 0


@dataclass(frozen=True, slots=True)
class SpatialBlock:
    """Numbers of the first image, and of the first output and input along the first axis."""

    kind: Kind
    image: int
    output: int = 0
    input: int = 0


def spatial_blocks(
    correlation: Correlation, cut: Cut, room: int, element: int
) -> tuple[SpatialBlock, ...]:
    """Cut a correlation into spatial blocks whose data takes about `room` bytes, of one position at
    least. `element` is the bytes of a number of transposed data."""
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

    A thread's block has about `target` bytes, and `least` or more; those of all threads have at
    most `most`. Where this would leave threads idle, all threads compute each block together.
    """
    image = image_bytes(correlation, element)
    data = image * correlation.batch
    wanted, least = max(target, least), max(least, _HALOS * halo_bytes(correlation, element), 1)
    largest = min(_MOST_TARGETS * wanted, most // threads)
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
            if max(sizes) <= largest and busy >= _LEAST_BUSY:
                return parts, True
    together = min(max(wanted * threads, least), most)
    return spatial_blocks(correlation, cut, together, element), False


def _room(correlation: Correlation, cut: Cut, image: int, count: int, *, rounded_up: bool) -> int:
    """Bytes of each of `count` blocks, of whole images or of whole positions of the first axis."""
    positions = -(-correlation.lines[0].out // _outputs(correlation, cut))
    up = count - 1 if rounded_up else 0
    if count <= correlation.batch:
        return (correlation.batch + up) // count * image
    return -(-max(1, (correlation.batch * positions + up) // count) * image // max(1, positions))


def _even(total: int, most: int) -> int:
    """The size of equal parts of `total`, of at most `most`; the last may be smaller."""
    return -(-total // -(-total // most))


def image_bytes(correlation: Correlation, element: int) -> int:
    """Bytes of one image's input and output, transposed."""
    line = correlation.lines[0]
    return _bytes(correlation, element, line.size, line.out)


def halo_bytes(correlation: Correlation, element: int) -> int:
    """Bytes of the operand that two neighbouring spatial blocks both transpose."""
    line = correlation.lines[0]
    shared = max(0, line.high - line.low + 1 - line.step)
    return _bytes(correlation, element, min(line.size, shared), 0)


def least_bytes(correlation: Correlation, element: int) -> int:
    """About the bytes of a small spatial block: outputs of two positions, and the inputs that they
    need."""
    line = correlation.lines[0]
    inputs = min(line.size, line.step + line.high - line.low + 1)
    return _bytes(correlation, element, inputs, min(line.out, 2 * line.stride))


def _bytes(correlation: Correlation, element: int, inputs: int, outputs: int) -> int:
    """Bytes of an image's data, transposed, with these inputs and outputs of the first axis."""
    x = correlation.reduced * inputs * prod(correlation.operand_size[1:])
    return (x + correlation.made * outputs * prod(correlation.result_size[1:])) * element


def transposed_bytes(correlation: Correlation, threads: int) -> int:
    """Bytes that transposed data should take at most."""
    x_bytes = prod(correlation.operand_shape) * correlation.dtype.itemsize
    return int(1.3 * x_bytes) + threads * _TRANSPOSED


def _outputs(correlation: Correlation, cut: Cut) -> int:
    """Outputs along the first axis that a spatial block has a multiple of."""
    return correlation.lines[0].stride * (1 if correlation.rank > 1 else cut.unroll)


def _part(
    correlation: Correlation, low: int, high: int, kinds: dict[tuple[int, ...], Kind]
) -> tuple[Kind, int, int]:
    """The kind of outputs [low, high), new or among `kinds`, and the first output and input."""
    line = correlation.lines[0]
    first, inputs = line.part(low, high)
    before = line.step * (low // line.stride) - inputs.start
    key = first.size, first.out, before
    if key not in kinds:
        lines = first, *correlation.lines[1:]
        kinds[key] = Kind(replace(correlation, batch=1, lines=lines), before)
    return kinds[key], low, inputs.start
