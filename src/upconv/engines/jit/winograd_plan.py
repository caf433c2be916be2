"""How a correlation is computed by Winograd's algorithm, as plain data: transforms, blocks, units.

Along each axis results are numbered o = stride * q + base + g, operands i = step * p + start + h,
such that the *phases* g of one q read one window of r places p, whatever was cropped. The phases h
of operands are reduced like channels. A *tile* is m values of q along each axis, a *block* a box of
tiles whose transformed operands stay in the second-level cache beside what a *unit* makes of them:
the results of some channels and of one combination of outer phases. A job is some units of a block.
docs/winograd.md explains it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import ceil, gcd, prod

from ...problem import DataLayout, DType
from .correlation import Correlation, Line
from .cpu import Costs, Cpu, costs_of
from .values import BYTES, DOUBLE, FLOAT
from .winograd import Transform, named

EXACT = ((1, 1), (1, 2), (1, 3), (2, 2), (3, 2), (2, 3))
"""Tiles (m, r) that "auto" may take: their errors are about those of direct sums."""
_TILES = {1: (1,), 2: (2, 3, 4, 1), 3: (2, 4, 1)}  # r -> m
_MOST_POINTS = 64  # of all axes: each is a register, or a place on the stack, of the transforms
_MOST_CHOICES = 6  # of exact tiles, and of others, with the fewest products
_CHUNK = 64  # channels that are transformed together
_UNIT = 64  # columns of a unit, about
_L2 = 0.75  # part of the second-level cache that blocks may fill
_MOST_ROWS = 1 << 19  # of all blocks, in tables: about a second to make
_BLOCK = 64  # positions of a long row in a block, about


@dataclass(frozen=True, slots=True)
class Window:
    """One axis as tiles see it: `steps` values of q, of which q reads the r places from q + low;
    `taps` are (phase g, phase h, place in the window, index in the kernel)."""

    line: Line
    base: int
    start: int
    low: int
    r: int
    steps: int
    taps: tuple[tuple[int, int, int, int], ...]

    @classmethod
    def of(cls, line: Line) -> Window:
        """The numbering that needs the shortest window.

        Phases may begin where shifts change, or with the first operand.
        """
        bases, starts = {0}, {0, -(line.high % line.step)}
        for before, phase in pairwise(line.phases):
            if {tap.shift for tap in before.taps} != {tap.shift for tap in phase.taps}:
                bases.add(phase.offset - line.stride)
        options = (_numbered(line, *each) for each in product(bases, starts))
        return min(options, key=lambda option: (option.r, option.steps, option.base))

    def first(self, transform: Transform, tiles: range) -> int:
        """The first operand, there or not, that some tiles read."""
        return self.line.step * (transform.m * tiles.start + self.low) + self.start

    def span(self, transform: Transform, tiles: int) -> int:
        """How many operands so many tiles read."""
        return self.line.step * (transform.m * tiles + self.r - 1)


def _numbered(line: Line, base: int, start: int) -> Window:
    found = []
    for phase in line.phases:
        lead = int(phase.offset >= base + line.stride)  # q - j
        for tap in phase.taps:
            place, h = divmod(-tap.shift - start, line.step)
            found.append((phase.offset - base - lead * line.stride, h, place - lead, tap.index))
    places = [place for _, _, place, _ in found]
    low, high = min(places, default=0), max(places, default=0)
    taps = tuple((g, h, place - low, index) for g, h, place, index in found)
    steps = (line.out - 1 - base) // line.stride + 1
    return Window(line, base, start, low, high - low + 1, steps, taps)


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
        return _exact(self.transforms)

    @property
    def saving(self) -> tuple[int, int]:
        """Products of a tile, and those of direct sums: of one reduced and made channel."""
        direct = prod(
            each.m * len(window.taps)
            for each, window in zip(self.transforms, self.windows, strict=True)
        )
        phases = prod(window.line.stride * window.line.step for window in self.windows)
        return self.points * phases, direct

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
    windows = [Window.of(line) for line in correlation.lines]
    taps = "x".join(str(window.r) for window in windows)
    if not all(window.r in _TILES for window in windows) or all(w.r == 1 for w in windows):
        return f"phases have {taps} taps, and there are tiles for 2 or 3"
    if all(window.steps == 1 or window.r == 1 for window in windows):
        return f"phases have {taps} taps, and one position where they have more than one"
    if correlation.rank > 3:
        return "there are transforms for at most three axes"
    *outer, last = (line.out for line in correlation.lines)
    if prod(outer) * correlation.batch * -(-last // _BLOCK) > _MOST_ROWS:
        return "it makes tables of rows, and there are too many"
    return None


@lru_cache(maxsize=256)
def schedules(correlation: Correlation, threads: int, cpu: Cpu) -> tuple[Schedule, ...]:
    """The best schedule of each promising choice of tiles, fastest first; () where `refused`."""
    if refused(correlation):
        return ()
    windows = tuple(Window.of(line) for line in correlation.lines)
    choices = [
        [(m, each.r) for m in _TILES[each.r] if m <= each.steps or m == 1] for each in windows
    ]
    made: list[tuple[Transform, ...]] = [
        tuple(Transform.of(*each) for each in tiles)
        for tiles in product(*choices)
        if any(m > 1 for m, _ in tiles)
    ]
    made = [each for each in made if prod(t.points for t in each) <= _MOST_POINTS]
    made.sort(key=lambda each: _work(windows, each))
    kept = [each for each in made if _exact(each)][:_MOST_CHOICES]
    kept += [each for each in made if not _exact(each)][:_MOST_CHOICES]
    found = [_best(correlation, windows, each, threads, cpu) for each in kept]
    return tuple(sorted(found, key=lambda each: each.cycles))


def _exact(transforms: tuple[Transform, ...]) -> bool:
    return all((each.m, each.r) in EXACT for each in transforms)


def _work(windows: tuple[Window, ...], transforms: tuple[Transform, ...]) -> int:
    """Products of all tiles, for one reduced and made channel."""
    return prod(t.points * tiles_along(w, t) for w, t in zip(windows, transforms, strict=True))


def _best(
    correlation: Correlation,
    windows: tuple[Window, ...],
    transforms: tuple[Transform, ...],
    threads: int,
    cpu: Cpu,
) -> Schedule:
    """The blocks, jobs and register tile that take the fewest cycles."""
    lanes, item = _lanes(correlation, cpu), BYTES[element_of(correlation)]
    channels, padded = _unit(correlation, windows, lanes)
    across = windows[-1].line.stride * padded // lanes
    some = (2, 3, 1) if cpu.registers < 32 else (2, 4, 3, 1)
    vectors = next(n for n in some if across % n == 0)
    most = cpu.sums(vectors) // vectors
    counts = [correlation.batch, *map(tiles_along, windows, transforms)]
    units = ceil(correlation.made // correlation.groups / channels)
    units *= prod(window.line.stride for window in windows[:-1])
    points = prod(each.points for each in transforms)
    reduced = depth_of(correlation)
    # A line more for each row, which keeps rows out of each other's cache sets.
    each_tile = item * (points * (reduced + (across + 1) * lanes) + across * lanes)
    room = max(most, int(_L2 * cpu.l2 / each_tile))
    costs = _Cycles.of(correlation, transforms, vectors, across, cpu)
    options = []
    for size in {max(1, n) for n in (room, room * 2 // 3, room // 2, room // 4)}:
        box = _box(counts, size)
        tiles, blocks = prod(box), prod(ceil(n / b) for n, b in zip(counts, box, strict=True))
        rows = min(range(max(1, most // 2), most + 1), key=lambda rows: costs.products(tiles, rows))
        for each in {ceil(units / runs) for runs in (1, 2, 4, units)}:
            jobs = blocks * ceil(units / each) * correlation.groups
            cycles = costs.job(tiles, rows, each) * ceil(jobs / threads)
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


def _lanes(correlation: Correlation, cpu: Cpu) -> int:
    return cpu.lanes(BYTES[element_of(correlation)])


@dataclass(frozen=True, slots=True)
class _Cycles:
    """Cycles, in each of which the processor could do `Costs.adds` multiply-adds.

    `step` is what a row of a register tile takes for a reduced channel beside its multiply-adds,
    `inputs` what packing and transforming a tile takes, `results` the way back for a unit,
    `weights` reading a unit's. Fitted on a Zen 4 (2026-11-22) with benchmarks/winograd.py.
    """

    costs: Costs
    reduced: int
    points: int
    vectors: int
    across: int
    inputs: float
    results: float
    weights: float

    @classmethod
    def of(
        cls,
        correlation: Correlation,
        transforms: tuple[Transform, ...],
        vectors: int,
        across: int,
        cpu: Cpu,
    ) -> _Cycles:
        """The figures of a choice of tiles."""
        lanes = _lanes(correlation, cpu)
        reduced = depth_of(correlation)
        points, outputs = (prod(getattr(t, n) for t in transforms) for n in ("points", "m"))
        # Turning rows, and of results writing 16 far apart: fcn8s_final, whose are mostly that.
        turned, left = (2.5, 10.0) if correlation.layout is DataLayout.NCX else (1.0, 2.5)
        before, after = (
            sum(sum(c != 0 for c in row) - 1 for row in matrix) / len(matrix)
            for matrix in (_largest(transforms).b, _largest(transforms).a)
        )
        rank = sum(t.points > 1 for t in transforms)
        inputs = points * (2 + 0.5 * rank * before) + 2 * outputs
        results = points + 0.5 * rank * after * (points + outputs) / 2 + outputs * left
        return cls(
            costs_of(cpu.vector_bytes), reduced, points, vectors, across,
            ceil(reduced / lanes) * inputs * turned, across * results,
            _WEIGHT_CYCLES * points * reduced * across,
        )  # fmt: skip

    def products(self, tiles: int, rows: int) -> float:
        """Those of a unit for a block of so many tiles."""
        sums = rows * self.vectors
        step = max(sums / self.costs.adds, (rows + 2 * self.vectors) / self.costs.loads)
        count = self.points * ceil(tiles / rows) * (self.across // self.vectors)
        return count * (self.reduced * step + 12 + sums)

    def job(self, tiles: int, rows: int, units: int) -> float:
        """A job of some units."""
        each = self.products(tiles, rows) + self.weights + tiles * self.results
        return units * each + tiles * self.inputs + _JOB_CYCLES


_WEIGHT_CYCLES = 3.0  # for a vector of weights, from the third-level cache
_JOB_CYCLES = 3000.0


def _largest(transforms: tuple[Transform, ...]) -> Transform:
    return max(transforms, key=lambda each: each.points)


def depth_of(correlation: Correlation) -> int:
    """Channels that are reduced, times the phases of operands."""
    steps = prod(line.step for line in correlation.lines)
    return correlation.reduced // correlation.groups * steps


def chunk_of(reduced: int, lanes: int) -> int:
    """Channels that are transformed together: whole vectors."""
    return min(_CHUNK, ceil(reduced / lanes) * lanes)
