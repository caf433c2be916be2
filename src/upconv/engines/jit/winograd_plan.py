"""How a correlation is computed by Winograd's algorithm, as plain data: transforms, blocks, units.

Along each axis results are numbered o = stride * q + base + g, such that the *phases* g of one q
read one window of r operands, whatever was cropped. A *tile* is m values of q along each axis,
a *block* a box of tiles whose transformed operands stay in the second-level cache beside what a
*unit* makes of them: the results of some channels and of one combination of outer phases. A job is
some units of a block. docs/winograd.md explains it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil, gcd, prod

from ...geometry import Phase
from ...problem import DataLayout, DType
from .correlation import Correlation, Line
from .costs import costs_of
from .cpu import Cpu
from .values import BYTES, DOUBLE, FLOAT
from .winograd import Transform, named

EXACT = ((1, 1), (1, 2), (1, 3), (2, 2), (3, 2), (2, 3))
"""Tiles (m, r) that "auto" may take: their errors are about those of direct sums."""
_TILES = {1: (1,), 2: (2, 3, 4, 1), 3: (2, 4, 1)}  # r -> m
_MOST_POINTS = 64  # of all axes: each is a register, or a place on the stack, of the transforms
_CHUNK = 64  # channels that are transformed together
_UNIT = 64  # columns of a unit, about
_L2 = 0.75  # part of the second-level cache that blocks may fill
_MOST_ROWS = 1 << 20  # of all blocks, in tables


@dataclass(frozen=True, slots=True)
class Window:
    """One axis as tiles see it: `steps` values of q, of which q reads the r operands that end with
    q - low; `taps` are (phase g, place in the window, index in the kernel)."""

    line: Line
    base: int
    low: int
    r: int
    steps: int
    taps: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, line: Line) -> Window:
        """The numbering of results that needs the shortest window."""
        options = (_numbered(line, base) for base in range(0, -line.stride, -1))
        return min(options, key=lambda option: (option.r, option.steps))


def _numbered(line: Line, base: int) -> Window:
    def lead(phase: Phase) -> int:  # q - j
        return int(phase.offset >= base + line.stride)

    shifts = [tap.shift + lead(phase) for phase in line.phases for tap in phase.taps]
    low, high = min(shifts, default=0), max(shifts, default=0)
    r = high - low + 1
    taps = tuple(
        (
            phase.offset - base - lead(phase) * line.stride,
            high - tap.shift - lead(phase),
            tap.index,
        )
        for phase in line.phases
        for tap in phase.taps
    )
    return Window(line, base, low, r, (line.out - 1 - base) // line.stride + 1, taps)


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
        return prod(self.box)

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
        return all((each.m, each.r) in EXACT for each in self.transforms)

    @property
    def saving(self) -> tuple[int, int]:
        """Products of a tile, and those of direct sums: of one reduced and made channel."""
        direct = prod(
            each.m * len(window.taps)
            for each, window in zip(self.transforms, self.windows, strict=True)
        )
        return self.points * prod(window.line.stride for window in self.windows), direct

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
    if any(line.step > 1 for line in correlation.lines):
        return "an ordinary convolution with a stride has no windows that overlap enough"
    spans = [Window.of(line).r for line in correlation.lines]
    if max(spans) > 3 or max(spans) == 1:
        return (
            f"phases have {'x'.join(map(str, spans))} taps, and 2 or 3 are what there is a tile for"
        )
    if correlation.rank > 3:
        return "there are transforms for at most three axes"
    if prod(line.out for line in correlation.lines[:-1]) * correlation.batch > _MOST_ROWS:
        return "it makes tables of rows, and there are too many"
    return None


@lru_cache(maxsize=256)
def schedules(correlation: Correlation, threads: int, cpu: Cpu) -> tuple[Schedule, ...]:
    """The best schedule of each choice of tiles, the fastest first; () where `refused`."""
    if refused(correlation):
        return ()
    windows = tuple(Window.of(line) for line in correlation.lines)
    choices = [
        [(m, each.r) for m in _TILES[each.r] if m <= each.steps or m == 1] for each in windows
    ]
    found = []
    for tiles in product(*choices):
        transforms = tuple(Transform.of(*each) for each in tiles)
        if prod(t.points for t in transforms) <= _MOST_POINTS and any(m > 1 for m, _ in tiles):
            found.append(_best(correlation, windows, transforms, threads, cpu))
    return tuple(sorted(found, key=lambda each: each.cycles))


def _best(
    correlation: Correlation,
    windows: tuple[Window, ...],
    transforms: tuple[Transform, ...],
    threads: int,
    cpu: Cpu,
) -> Schedule:
    element = element_of(correlation)
    lanes = cpu.lanes(BYTES[element])
    reduced = correlation.reduced // correlation.groups
    points = prod(each.points for each in transforms)
    channels, padded = _unit(correlation, windows, lanes)
    across = windows[-1].line.stride * padded // lanes
    vectors = next(
        n for n in ((2, 3, 1) if cpu.registers < 32 else (2, 4, 3, 1)) if across % n == 0
    )
    most = cpu.sums(vectors) // vectors
    counts = [correlation.batch]
    counts += [ceil(w.steps / t.m) for w, t in zip(windows, transforms, strict=True)]
    units = ceil(correlation.made // correlation.groups / channels) * prod(
        window.line.stride for window in windows[:-1]
    )
    each_tile = BYTES[element] * (
        points * (reduced + padded_columns(across, lanes)) + across * lanes
    )
    room = max(most, int(_L2 * cpu.l2 / each_tile))
    options = []
    for size in dict.fromkeys(max(1, n) for n in (room, room * 2 // 3, room // 2, room // 4)):
        box = _box(counts, size)
        blocks = prod(ceil(n / b) for n, b in zip(counts, box, strict=True))
        for runs in dict.fromkeys((1, 2, 4, units)):
            each = ceil(units / min(runs, units))
            jobs = blocks * ceil(units / each) * correlation.groups
            for rows in range(max(1, most // 2), most + 1):
                schedule = Schedule(
                    windows, transforms, box, rows, vectors, channels, padded, each,
                    min(threads, jobs), 0.0,
                )  # fmt: skip
                cycles = _job_cycles(correlation, schedule, cpu) * ceil(jobs / threads)
                options.append((cycles, -size, rows, schedule))
    cycles, _, _, schedule = min(options, key=lambda option: option[:3])
    return replace(schedule, cycles=cycles)


def padded_columns(across: int, lanes: int) -> int:
    """Columns of products with the padding that keeps rows out of each other's cache sets."""
    return across * lanes + lanes


def _unit(correlation: Correlation, windows: tuple[Window, ...], lanes: int) -> tuple[int, int]:
    """Channels of a unit, and what they are padded to: whole vectors for each q."""
    made, stride = correlation.made // correlation.groups, windows[-1].line.stride
    step = lanes // gcd(lanes, stride)
    wanted = max(step, _UNIT // stride // step * step)
    if wanted < lanes <= made and correlation.layout is DataLayout.NCX:
        wanted = lanes  # squares of so many channels are turned
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


def boxes(schedule: Schedule, batch: int) -> Iterator[tuple[range, ...]]:
    """The images, and tiles of each axis, of all blocks."""
    counts = [batch, *map(tiles_along, schedule.windows, schedule.transforms)]
    yield from product(
        *(
            [range(i, min(n, i + part)) for i in range(0, n, part)]
            for n, part in zip(counts, schedule.box, strict=True)
        )
    )


def tiles_along(window: Window, transform: Transform) -> int:
    """Tiles of an axis."""
    return ceil(window.steps / transform.m)


def element_of(correlation: Correlation) -> str:
    """The type of computing."""
    return DOUBLE if correlation.dtype is DType.FLOAT64 else FLOAT


def _job_cycles(correlation: Correlation, schedule: Schedule, cpu: Cpu) -> float:
    """Cycles of a job, in which the processor could do `Costs.adds` multiply-adds each.

    Fitted on a Zen 4 (2026-11-22) with benchmarks/winograd.py.
    """
    lanes = cpu.lanes(BYTES[element_of(correlation)])
    costs = costs_of(cpu.vector_bytes)
    reduced = correlation.reduced // correlation.groups
    across = schedule.columns // lanes
    tiles, points = schedule.tiles, schedule.points
    rows = ceil(tiles / schedule.rows) * schedule.rows
    sums = schedule.rows * schedule.vectors
    step = max(sums / costs.adds, (schedule.rows + 2 * schedule.vectors) / costs.loads)
    products = points * rows * across / sums * (reduced * step + 12 + sums)
    weights = points * reduced * across * _WEIGHT_CYCLES
    outputs = prod(each.m for each in schedule.transforms)
    adds = _transform_adds(schedule)
    inputs = ceil(reduced / lanes) * tiles * (2 * points + 0.5 * adds[0] + 2 * outputs)
    turned = 2.5 if correlation.layout is DataLayout.NCX else 1.0
    results = tiles * across * (points + 0.5 * adds[1] + outputs * (1 + turned * 1.5))
    each = products + weights + results
    return schedule.units * each + inputs * (turned if turned > 1 else 1.0) + 3000


_WEIGHT_CYCLES = 3.0  # for a vector of weights, from the third-level cache


@lru_cache(maxsize=256)
def _adds(transforms: tuple[Transform, ...]) -> tuple[int, int]:
    inputs = outputs = 0
    for i, each in enumerate(transforms):
        before = prod(t.points for t in transforms[:i])
        after = prod(t.points for t in transforms[i + 1 :])
        inputs += before * after * sum(sum(c != 0 for c in row) - 1 for row in each.b)
        before = prod(t.m for t in transforms[:i])
        outputs += before * after * sum(sum(c != 0 for c in row) - 1 for row in each.a)
    return inputs, outputs


def _transform_adds(schedule: Schedule) -> tuple[int, int]:
    return _adds(schedule.transforms)


def chunk_of(reduced: int, lanes: int) -> int:
    """Channels that are transformed together: whole vectors."""
    return min(_CHUNK, ceil(reduced / lanes) * lanes)
