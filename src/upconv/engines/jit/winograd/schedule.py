"""How a correlation is computed by Winograd's algorithm, as plain data: transforms, blocks, units.

Axes are cut into groups of tiles (window.py). A *block* is a box of groups whose
transformed operands stay in the second-level cache beside what a *unit* makes of them: the results
of some channels and of one tuple of outer phases. A job is some units of a block.
docs/winograd.md explains it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, gcd, log2, prod

from ....problem import DataLayout, DType
from ..correlation import Correlation, Line, WeightForm
from ..costs import Winograd
from ..cpu import Cpu
from ..values import BYTES
from .transforms import Stages, Transform, named
from .window import Window, transforms_of

_MOST_POINTS = 64  # of all axes
_MOST_CHOICES = 6  # of exact tiles, and of others, that seem to need the fewest cycles
_CHUNK = 64  # channels that are transformed together
_MOST_TAPS = 64
_MOST_OUTPUTS = 64  # of a tile along one axis: no transform makes so many
_UNIT = 64  # columns of a unit, about


@dataclass(frozen=True, slots=True)
class Order:
    """What the order of a transformed weight depends on beside the weight: no size and no thread.

    A unit has `channels` channels, padded to `padded`; panels are `vectors` vectors wide.
    """

    windows: tuple[Window, ...]
    transforms: tuple[Transform, ...]
    vectors: int
    channels: int
    padded: int

    @property
    def pieces(self) -> tuple[tuple[int, ...], ...]:
        """For each point, which pieces of each axis there are."""
        axes = [t.pieces_of(w.r) for t, w in zip(self.transforms, self.windows, strict=True)]
        return tuple(product(*axes))

    @property
    def points(self) -> int:
        """Products of a tile."""
        return prod(each.points for each in self.transforms)

    @property
    def columns(self) -> int:
        """Columns of a unit."""
        return self.windows[-1].stride * self.padded


@dataclass(frozen=True, slots=True)
class Schedule(Order):
    """Everything that is decided about one correlation.

    `box` is how many images and tiles of each axis a block has at most; `rows` by `vectors` vectors
    are the largest register tile of products. A job has `units` units. `cycles` are those
    of a run whose weights are in a cache if they fit it.
    """

    box: tuple[int, ...]
    rows: int
    units: int
    threads: int
    tile_bytes: int
    cycles: float

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of all register tiles: with four, most numbers of tiles leave few rows idle."""
        return tuple(sorted({ceil(self.rows * part / 13) for part in (13, 10, 8, 6)}, reverse=True))

    @property
    def tiles(self) -> int:
        """Tiles of a block at most."""
        return prod(self.box) * prod(window.apart for window in self.windows)

    @property
    def workspace_bytes(self) -> int:
        """About the bytes of scratch memory of all threads."""
        return self.threads * self.tiles * self.tile_bytes

    @property
    def order(self) -> Order:
        """In which the weight is read."""
        return Order(self.windows, self.transforms, self.vectors, self.channels, self.padded)

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
        phases = prod(window.stride * window.step for window in self.windows)
        return sum(map(prod, self.pieces)) * phases, direct

    def __str__(self) -> str:
        mine, direct = self.saving
        return (
            f"winograd: {named(self.transforms)}, {mine} products for {direct}, errors about"
            f" {self.growth:.1f} times those of direct sums, blocks of {self.tiles} tiles,"
            f" tile of {self.rows} x {self.vectors} vectors, {self.threads} threads"
        )


def refusal(correlation: Correlation) -> str | None:
    """Why a correlation is not computed so, or None."""
    if correlation.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return f"Winograd's algorithm is done in float32 and float64, not {correlation.dtype.value}"
    if correlation.accumulate:
        return "Winograd's algorithm does not add to what the result holds"
    if correlation.rank > 3:
        return "there are transforms for at most three axes"
    windows = windows_of(correlation)
    taps = "x".join(str(window.r) for window in windows)
    if max(window.r for window in windows) > _MOST_TAPS or all(w.r == 1 for w in windows):
        return f"phases have {taps} taps, and there are tiles for 2 to {_MOST_TAPS}"
    pairs = zip(windows, correlation.lines, strict=True)
    if all(window.r == 1 or window.steps(line) <= window.apart for window, line in pairs):
        return f"phases have {taps} taps, and one position where they have more than one"
    return None


def windows_of(correlation: Correlation) -> tuple[Window, ...]:
    """The window of each axis."""
    return tuple(map(Window.of, correlation.lines))


@lru_cache(maxsize=256)
def schedules(
    correlation: Correlation, threads: int, cpu: Cpu, *, exact: bool = False
) -> tuple[Schedule, ...]:
    """The best schedule of each promising choice of tiles, of `exact` ones alone if that is asked
    for, the fastest first; () where there is a `refusal`."""
    if refusal(correlation):
        return ()
    windows = windows_of(correlation)
    pairs = zip(windows, correlation.lines, strict=True)
    # A tile that makes twice what there is makes too much.
    most = tuple(2 * ceil(window.steps(line) / window.apart) for window, line in pairs)
    made = [
        _Tiles.of(correlation.weight, correlation.layout, windows, each, cpu)
        for each in _choices(windows, tuple(min(n, _MOST_OUTPUTS) for n in most))
    ]
    made.sort(key=lambda tiles: tiles.estimate(correlation.lines))
    kept = [each for each in made if each.exact][:_MOST_CHOICES]
    if not exact:
        kept += [each for each in made if not each.exact][:_MOST_CHOICES]
    found = [each.schedule(correlation, threads) for each in kept]
    return tuple(sorted(found, key=lambda each: each.cycles))


@lru_cache(maxsize=256)
def _choices(
    windows: tuple[Window, ...], most: tuple[int, ...]
) -> tuple[tuple[Transform, ...], ...]:
    """All combinations of transforms that make fewer than `most` outputs of each axis."""
    axes = [
        [t for t in transforms_of(window.r) if t.m < n]
        for window, n in zip(windows, most, strict=True)
    ]
    return tuple(
        each
        for each in product(*axes)
        if any(t.m > 1 for t in each) and prod(t.points for t in each) <= _MOST_POINTS
    )


def named_schedule(correlation: Correlation, names: str, threads: int, cpu: Cpu) -> Schedule:
    """The best schedule of a choice of tiles, by the names of its transforms."""
    windows = windows_of(correlation)
    made = tuple(
        next(each for each in transforms_of(window.r) if each.name == name)
        for window, name in zip(windows, names.split("x"), strict=True)
    )
    tiles = _Tiles.of(correlation.weight, correlation.layout, windows, made, cpu)
    return tiles.schedule(correlation, threads)


class _Tiles:
    """A choice of tiles for a class of layers: what models need to know of it, whatever the sizes.

    Cycles are those in each of which the processor could do `Costs.adds` multiply-adds, fitted to
    920 choices on a Zen 4 (2026-11-22). `sums` are products of all points and pieces, of one
    reduced and made channel; `inputs` is what packing and transforming a tile takes, `results` its
    way back for a unit, `stream` reading a unit's weights, in which products hide, and `weights`
    what of it does not hide.
    """

    def __init__(
        self, weight: WeightForm, layout: DataLayout, windows: tuple[Window, ...],
        transforms: tuple[Transform, ...], cpu: Cpu,
    ) -> None:  # fmt: skip
        self.windows, self.transforms, self._cpu = windows, transforms, cpu
        costs, kernel = cpu.costs, cpu.costs.winograd
        self.exact = all(each.exact for each in transforms)
        item, lanes = BYTES[weight.element], cpu.lanes(BYTES[weight.element])
        made, stride = weight.made // weight.groups, windows[-1].stride
        self.channels, self.padded = _unit(made, stride, layout, lanes)
        self._across = across = stride * self.padded // lanes
        some = (2, 3, 1) if cpu.registers < 32 else (2, 4, 3, 1)
        self._vectors = vectors = next(n for n in some if across % n == 0)
        self._rows = cpu.sums(vectors) // vectors
        self._units = ceil(made / self.channels) * prod(w.stride for w in windows[:-1])
        self._runs = {
            (units, ceil(self._units / units) * weight.groups)
            for runs in (1, 2, 4, self._units)
            for units in (ceil(self._units / runs),)
        }
        self._reduced = weight.reduced // weight.groups
        self._reduced *= prod(window.step for window in windows)
        self._points = points = prod(each.points for each in transforms)
        outputs = prod(each.m for each in transforms)
        self._residues = prod(window.apart for window in windows)
        # A line more for each row, which keeps rows out of each other's cache sets.
        self._bytes = item * (points * (self._reduced + (across + 1) * lanes) + across * lanes)
        self._sums = prod(sum(t.pieces_of(w.r)) for t, w in zip(transforms, windows, strict=True))
        additions = _additions([t.b for t in transforms])
        inputs = kernel.input * points + kernel.input_addition * additions
        inputs += (kernel.pack_rows if layout is DataLayout.NCX else kernel.pack) * outputs
        self._inputs = ceil(self._reduced / lanes) * inputs
        additions = _additions([t.a for t in transforms])
        results = kernel.result * points + kernel.result_addition * additions
        stores = kernel.store, kernel.store_sharing  # as `shares_sets` says
        self._results = tuple(across * (results + store * outputs) for store in stores)
        self._step = self._sums * self._reduced
        weights = self._step * across
        nbytes = self._step * weight.made * prod(window.stride for window in windows) * item
        self._beyond = nbytes > costs.l3
        self._stream = weights * (kernel.memory if self._beyond else kernel.stream)
        self._weights = weights * kernel.weight
        self._panels = across // vectors
        self._rows_cycles = [
            (rows, self._step * step + points * kernel.register_tile)
            for rows in range(max(1, self._rows // 2), self._rows + 1)
            for step in (max(rows * vectors / costs.adds, (rows + 2 * vectors) / costs.loads),)
        ]

    @classmethod
    @lru_cache(maxsize=1024)
    def of(
        cls, weight: WeightForm, layout: DataLayout, windows: tuple[Window, ...],
        transforms: tuple[Transform, ...], cpu: Cpu,
    ) -> _Tiles:  # fmt: skip
        """Those of a class, made once."""
        return cls(weight, layout, windows, transforms, cpu)

    def estimate(self, lines: tuple[Line, ...]) -> float:
        """Work of all tiles for one made channel: products, and some work of each point."""
        axes = zip(self.windows, self.transforms, lines, strict=True)
        tiles = prod(window.groups(t, line) * window.apart for window, t, line in axes)
        return (self._step + self._cpu.costs.winograd.point * self._points) * tiles

    def schedule(self, correlation: Correlation, threads: int) -> Schedule:
        """The blocks, jobs and register tile that take the fewest cycles."""
        axes = zip(self.windows, self.transforms, correlation.lines, strict=True)
        counts = [correlation.batch, *(window.groups(t, line) for window, t, line in axes)]
        costs = self._cpu.costs.winograd
        most, l2, shared = self._rows, self._cpu.l2, shares_sets(correlation, costs)
        l3 = self._cpu.costs.l3
        room = max(most, int(costs.l2_blocks * l2 / self._bytes)) // self._residues
        options = []
        rooms = [room, room * 2 // 3, room // 2, room // 4]
        if self._beyond:  # fewer blocks read the weights from memory
            rooms += [2 * room, 4 * room]
        for box in {_box(counts, max(1, n)) for n in rooms}:
            results, made, transformed = self._counts(box)
            # A group of a large dilation may not fit: 64 channels, d = 32 along two axes.
            over = transformed * self._bytes / l2
            slower = 1 + costs.overflow * log2(max(1, over)) + (over * l2 > l3)
            blocks = prod(ceil(n / b) for n, b in zip(counts, box, strict=True))
            products = min(
                ceil(made / rows) * self._panels * cycles for rows, cycles in self._rows_cycles
            )
            unit = max(products, self._stream) + self._weights + results * self._results[shared]
            for units, runs in self._runs:
                jobs = blocks * runs
                job = units * unit + transformed * self._inputs + costs.job
                cycles = slower * job * ceil(jobs / threads)
                options.append((cycles, jobs, box, units))
        cycles, jobs, box, units = min(options)
        return Schedule(
            self.windows, self.transforms, self._vectors, self.channels, self.padded, box, most,
            units, min(threads, jobs), self._bytes, cycles,
        )  # fmt: skip

    def _counts(self, box: tuple[int, ...]) -> tuple[int, int, int]:
        """Tiles of a block, those whose products are made, and those transformed.

        Pieces read tiles behind those of the block; products of all but the last such are made in
        vain.
        """
        behind, count = 0, 1
        for n, window, t in zip(box[:0:-1], self.windows[::-1], self.transforms[::-1], strict=True):
            behind += (t.pieces - 1) * window.apart * count
            count *= (n + t.pieces - 1) * window.apart
        return prod(box) * self._residues, box[0] * count - behind, box[0] * count


def _unit(made: int, stride: int, layout: DataLayout, lanes: int) -> tuple[int, int]:
    """Channels of a unit, and what they are padded to: whole vectors for each q."""
    step = lanes // gcd(lanes, stride)
    wanted = max(step, _UNIT // stride // step * step)
    if wanted < lanes <= made and layout is DataLayout.NCX:
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


def shares_sets(correlation: Correlation, costs: Winograd) -> bool:
    """Whether channels of results lie so far apart that vectors of 16 of them share a set of the
    second-level cache: rows of 512x512 results took twice as long to write (fcn8s_final)."""
    channel = prod(correlation.result_size) * BYTES[correlation.element]
    return correlation.layout is DataLayout.NCX and channel % costs.set_bytes == 0


def chunk_of(reduced: int, lanes: int) -> int:
    """Channels that are transformed together: whole vectors."""
    return min(_CHUNK, ceil(reduced / lanes) * lanes)
