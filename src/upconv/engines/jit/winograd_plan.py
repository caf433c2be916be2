"""How a correlation is computed by Winograd's algorithm, as plain data: transforms, blocks, units.

Axes are cut into groups of tiles (winograd_window.py). A *block* is a box of groups whose
transformed operands stay in the second-level cache beside what a *unit* makes of them: the results
of some channels and of one tuple of outer phases. A job is some units of a block.
docs/winograd.md explains it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, gcd, log2, prod

from ...problem import DataLayout, DType
from .correlation import Correlation
from .cpu import Cpu, costs_of
from .values import BYTES
from .winograd import Stages, Transform, named
from .winograd_window import Window, transforms_of

_MOST_POINTS = 64  # of all axes
_MOST_CHOICES = 6  # of exact tiles, and of others, that seem to need the fewest cycles
_CHUNK = 64  # channels that are transformed together
_MOST_TAPS = 64
_UNIT = 64  # columns of a unit, about
_L2 = 0.75  # part of the second-level cache that blocks may fill


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that is decided about one correlation.

    `box` is how many images and tiles of each axis a block has at most; `rows` by `vectors` vectors
    are a register tile of products. A unit has `channels` channels, padded to `padded`; a job has
    `units` of them.
    """

    windows: tuple[Window, ...]
    transforms: tuple[Transform, ...]
    box: tuple[int, ...]
    rows: int
    vectors: int
    channels: int
    padded: int
    units: int
    threads: int
    cycles: float

    @property
    def points(self) -> int:
        """Products of a tile."""
        return prod(each.points for each in self.transforms)

    @property
    def tiles(self) -> int:
        """Tiles of a block at most."""
        return prod(self.box) * prod(window.apart for window in self.windows)

    @property
    def pieces(self) -> tuple[tuple[int, ...], ...]:
        """For each point, which pieces of each axis there are."""
        axes = [t.pieces_of(w.r) for t, w in zip(self.transforms, self.windows, strict=True)]
        return tuple(product(*axes))

    @property
    def columns(self) -> int:
        """Columns of a unit."""
        return self.windows[-1].line.stride * self.padded

    @property
    def growth(self) -> float:
        """Rounding errors beside those of direct sums, as a model."""
        return max(1.0, prod(each.growth for each in self.transforms))

    @property
    def exact(self) -> bool:
        """Whether "auto" may take it."""
        return all(each.exact for each in self.transforms)

    @property
    def saving(self) -> tuple[int, int]:
        """Products of a tile, and those of direct sums: of one reduced and made channel."""
        direct = prod(
            each.m * len(window.taps)
            for each, window in zip(self.transforms, self.windows, strict=True)
        )
        phases = prod(window.line.stride * window.line.step for window in self.windows)
        return sum(map(prod, self.pieces)) * phases, direct

    def __str__(self) -> str:
        mine, direct = self.saving
        return (
            f"winograd: {named(self.transforms)}, {mine} products for {direct}, errors about"
            f" {self.growth:.1f} times those of direct sums, blocks of {self.tiles} tiles,"
            f" tile of {self.rows} x {self.vectors} vectors, {self.threads} threads"
        )


def refused(correlation: Correlation) -> str | None:
    """Why a correlation is not computed so, or None."""
    if correlation.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return f"Winograd's algorithm is done in float32 and float64, not {correlation.dtype.value}"
    if correlation.accumulate:
        return "Winograd's algorithm does not add to what the result holds"
    if correlation.rank > 3:
        return "there are transforms for at most three axes"
    windows = [Window.of(line) for line in correlation.lines]
    taps = "x".join(str(window.r) for window in windows)
    if max(window.r for window in windows) > _MOST_TAPS or all(w.r == 1 for w in windows):
        return f"phases have {taps} taps, and there are tiles for 2 to {_MOST_TAPS}"
    if all(window.steps <= window.apart or window.r == 1 for window in windows):
        return f"phases have {taps} taps, and one position where they have more than one"
    return None


@lru_cache(maxsize=256)
def schedules(correlation: Correlation, threads: int, cpu: Cpu) -> tuple[Schedule, ...]:
    """The best schedule of each promising choice of tiles, fastest first; () where `refused`."""
    if refused(correlation):
        return ()
    windows = tuple(Window.of(line) for line in correlation.lines)
    choices = [
        [t for t in transforms_of(each.r) if t.m < 2 * ceil(each.steps / each.apart)]
        for each in windows
    ]
    made = [
        each
        for each in product(*choices)
        if any(t.m > 1 for t in each) and prod(t.points for t in each) <= _MOST_POINTS
    ]
    reduction = reduction_of(correlation)
    made.sort(key=lambda each: _estimate(windows, each, reduction))
    kept = [each for each in made if all(t.exact for t in each)][:_MOST_CHOICES]
    kept += [each for each in made if not all(t.exact for t in each)][:_MOST_CHOICES]
    found = [_best(correlation, windows, each, threads, cpu) for each in kept]
    return tuple(sorted(found, key=lambda each: each.cycles))


@lru_cache(maxsize=256)
def named_schedule(correlation: Correlation, names: str, threads: int, cpu: Cpu) -> Schedule:
    """The best schedule of a choice of tiles, by the names of its transforms."""
    windows = tuple(Window.of(line) for line in correlation.lines)
    made = tuple(
        next(each for each in transforms_of(window.r) if each.name == name)
        for window, name in zip(windows, names.split("x"), strict=True)
    )
    return _best(correlation, windows, made, threads, cpu)


def _estimate(
    windows: tuple[Window, ...], transforms: tuple[Transform, ...], reduction: int
) -> float:
    """Work of all tiles for one made channel: products, and some 16 steps for each point."""
    pairs = list(zip(windows, transforms, strict=True))
    products = prod(sum(t.pieces_of(w.r)) for w, t in pairs)
    points = prod(t.points for t in transforms)
    return (products * reduction + 16 * points) * prod(w.groups(t) * w.apart for w, t in pairs)


def _best(
    correlation: Correlation,
    windows: tuple[Window, ...],
    transforms: tuple[Transform, ...],
    threads: int,
    cpu: Cpu,
) -> Schedule:
    """The blocks, jobs and register tile that take the fewest cycles."""
    lanes, item = _lanes(correlation, cpu), BYTES[correlation.element]
    channels, padded = _unit(correlation, windows, lanes)
    across = windows[-1].line.stride * padded // lanes
    some = (2, 3, 1) if cpu.registers < 32 else (2, 4, 3, 1)
    vectors = next(n for n in some if across % n == 0)
    most = cpu.sums(vectors) // vectors
    counts = [correlation.batch, *map(Window.groups, windows, transforms)]
    units = ceil(correlation.made // correlation.groups / channels)
    units *= prod(window.line.stride for window in windows[:-1])
    points = prod(each.points for each in transforms)
    reduced = reduction_of(correlation)
    # A line more for each row, which keeps rows out of each other's cache sets.
    each_tile = item * (points * (reduced + (across + 1) * lanes) + across * lanes)
    residues = prod(window.apart for window in windows)
    room = max(most, int(_L2 * cpu.l2 / each_tile)) // residues
    costs = _Cycles(correlation, windows, transforms, vectors, across, cpu)
    options = []
    for size in {max(1, n) for n in (room, room * 2 // 3, room // 2, room // 4)}:
        box = _box(counts, size)
        tiles = _Tiles(box, windows, transforms)
        # A group of a large dilation may not fit: 64 channels, d = 32 along two axes.
        over = tiles.transformed * each_tile / cpu.l2
        slower = 1 + 0.1 * log2(max(1, over)) + (over * cpu.l2 > L3)
        blocks = prod(ceil(n / b) for n, b in zip(counts, box, strict=True))
        rows = min(
            range(max(1, most // 2), most + 1), key=lambda rows: costs.products(tiles.made, rows)
        )
        for each in {ceil(units / runs) for runs in (1, 2, 4, units)}:
            jobs = blocks * ceil(units / each) * correlation.groups
            cycles = slower * costs.job(tiles, rows, each) * ceil(jobs / threads)
            options.append((cycles, jobs, box, rows, each))
    cycles, jobs, box, rows, each = min(options)
    return Schedule(
        windows, transforms, box, rows, vectors, channels, padded, each, min(threads, jobs), cycles
    )


def _unit(correlation: Correlation, windows: tuple[Window, ...], lanes: int) -> tuple[int, int]:
    """Channels of a unit, and what they are padded to: whole vectors for each q."""
    made, stride = correlation.made // correlation.groups, windows[-1].line.stride
    step = lanes // gcd(lanes, stride)
    wanted = max(step, _UNIT // stride // step * step)
    if wanted < lanes <= made and correlation.layout is DataLayout.NCX:
        wanted = lanes  # squares of so many channels are transposed
    chunks = ceil(made / wanted)
    channels = min(made, ceil(ceil(made / chunks) / step) * step)
    return channels, ceil(channels / step) * step


def _box(counts: list[int], size: int) -> tuple[int, ...]:
    """At most `size` tiles: of the last axis as many as there are, then of the one before it."""
    box: list[int] = []
    for count in reversed(counts):
        most = max(1, min(count, size))
        most = ceil(count / ceil(count / most))
        box.append(most)
        size //= most
    return tuple(reversed(box))


class _Tiles:
    """Tiles of a block: `results`, those whose products are made, and those transformed. Pieces
    read tiles behind those of the block; products of all but the last such are made in vain."""

    def __init__(
        self, box: tuple[int, ...], windows: tuple[Window, ...], transforms: tuple[Transform, ...]
    ) -> None:
        behind, count = 0, 1
        for n, window, t in reversed(list(zip(box[1:], windows, transforms, strict=True))):
            behind += (t.pieces - 1) * window.apart * count
            count *= (n + t.pieces - 1) * window.apart
        self.results = prod(box) * prod(window.apart for window in windows)
        self.made, self.transformed = box[0] * count - behind, box[0] * count


def _lanes(correlation: Correlation, cpu: Cpu) -> int:
    return cpu.lanes(BYTES[correlation.element])


class _Cycles:
    """Cycles, in each of which the processor could do `Costs.adds` multiply-adds, of a choice of
    tiles; fitted to 920 on a Zen 4 (2026-11-22).

    `sums` are products of all points and pieces, of one reduced and made channel; `inputs` is what
    packing and transforming a tile takes, `results` its way back for a unit, `stream` reading a
    unit's weights, in which products hide, and `weights` what of it does not hide.
    """

    def __init__(
        self, correlation: Correlation, windows: tuple[Window, ...],
        transforms: tuple[Transform, ...], vectors: int, across: int, cpu: Cpu,
    ) -> None:  # fmt: skip
        self.costs, self.reduced = costs_of(cpu.vector_bytes), reduction_of(correlation)
        self.vectors, self.across = vectors, across
        points, outputs = (prod(getattr(t, n) for t in transforms) for n in ("points", "m"))
        sums = prod(sum(t.pieces_of(w.r)) for t, w in zip(transforms, windows, strict=True))
        self.points: int = points
        self.sums: int = sums
        transposed = (
            11.0 if correlation.layout is DataLayout.NCX else 5.0
        )  # rows into channels last
        left = 30 if shares_sets(correlation) else 13
        inputs = 0.6 * points + 0.1 * _additions([t.b for t in transforms]) + transposed * outputs
        results = 0.4 * points + 0.05 * _additions([t.a for t in transforms]) + left * outputs
        self.inputs: float = ceil(self.reduced / _lanes(correlation, cpu)) * inputs
        self.results: float = across * results
        made = correlation.made * prod(window.line.stride for window in windows)
        nbytes = sums * self.reduced * made * BYTES[correlation.element]
        weights = sums * self.reduced * across
        self.stream: float = weights * _STREAM * (1.6 if nbytes > L3 else 1)
        self.weights: float = weights * _WEIGHT

    def products(self, tiles: int, rows: int) -> float:
        """Those of a unit for so many tiles."""
        sums = rows * self.vectors
        step = max(sums / self.costs.adds, (rows + 2 * self.vectors) / self.costs.loads)
        count = ceil(tiles / rows) * (self.across // self.vectors)
        return count * (self.sums * self.reduced * step + self.points * _REGISTER_TILE)

    def job(self, tiles: _Tiles, rows: int, units: int) -> float:
        """A job of some units."""
        each = max(self.products(tiles.made, rows), self.stream) + self.weights
        each += tiles.results * self.results
        return units * each + tiles.transformed * self.inputs + _JOB


_STREAM, _WEIGHT = 2.6, 1.2  # for a vector of weights, from the third-level cache
L3 = 24 << 20  # bytes that stay in the third-level cache
_ONE_SET = 1 << 17  # bytes: lines of 2048 sets
_REGISTER_TILE, _JOB = 4.0, 500.0


def _additions(axes: list[Stages]) -> int:
    """Addition count of a transform by the matrices of each axis."""
    sizes, total = [stages.columns for stages in axes], 0
    for axis, stages in reversed(list(enumerate(axes))):
        for rows, additions in stages.additions:
            sizes[axis] = 1
            total += prod(sizes) * additions
            sizes[axis] = rows
    return total


def reduction_of(correlation: Correlation) -> int:
    """Channels that are reduced, times the phases of operands."""
    steps = prod(line.step for line in correlation.lines)
    return correlation.reduced // correlation.groups * steps


def shares_sets(correlation: Correlation) -> bool:
    """Whether channels of results lie so far apart that vectors of 16 of them share a set of the
    second-level cache: rows of 512x512 results took twice as long to write (fcn8s_final)."""
    channel = prod(correlation.result_size) * BYTES[correlation.element]
    return correlation.layout is DataLayout.NCX and channel % _ONE_SET == 0


def chunk_of(reduced: int, lanes: int) -> int:
    """Channels that are transformed together: whole vectors."""
    return min(_CHUNK, ceil(reduced / lanes) * lanes)
