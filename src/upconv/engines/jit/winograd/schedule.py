"""Schedules of Winograd's algorithm as plain data: transforms, blocks, units.

Axes are cut into groups of tiles (window.py). A *block* is a box of groups whose transformed
operands stay in the second-level cache, with the products of a *unit*: some channels of one tuple
of outer phases. A job is some units of a block. docs/winograd.md explains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, gcd, inf, log2, prod
from typing import NamedTuple

from ....problem import DataLayout
from ....properties import cached_property
from ..correlation import Correlation, Line, WeightForm
from ..cpu import Cpu
from ..values import BYTES, LINE
from .limits import refusal
from .transforms import Stages, Transform, named
from .window import Window, transforms_of, windows_of

_MAX_POINTS = 64  # of all axes
_MAX_CHOICES = 6  # promising exact forms to schedule, and as many others
_CHUNK = 64  # channels that are transformed together
_UNIT = 64  # approximate columns of a unit


@lru_cache(maxsize=256)
def schedules(
    correlation: Correlation, threads: int, cpu: Cpu, *, exact: bool = False, most: float = inf
) -> tuple[Schedule, ...]:
    """Return each promising form's best schedule, the fastest first, or () if it is refused.

    `exact` leaves out inexact forms, and `most` leaves out forms that must take more cycles.
    """
    if refusal(correlation):
        return ()
    pairs = zip(windows_of(correlation), correlation.lines, strict=True)
    # A tile with twice as many outputs as the axis is too large.
    outputs = [2 * ceil(window.steps(line) / window.apart) for window, line in pairs]
    forms = [
        form
        for form in forms_of(correlation, cpu).values()
        if not (exact and not form.exact)
        and all(t.m < n for t, n in zip(form.transforms, outputs, strict=True))
    ]
    forms.sort(key=lambda form: form.estimate * prod(form.groups(correlation.lines)))
    kept = [form for form in forms if form.exact][:_MAX_CHOICES]
    kept += [form for form in forms if not form.exact][:_MAX_CHOICES]
    plans = [
        form.schedule(correlation, threads)
        for form in kept
        if form.least_cycles(correlation, threads) <= most
    ]
    return tuple(sorted(plans, key=lambda plan: plan.cycles))


def forms_of(correlation: Correlation, cpu: Cpu) -> dict[str, Form]:
    """Return the forms for a correlation's class, by name."""
    return _forms_of(correlation.weight, correlation.layout, windows_of(correlation), cpu)


@lru_cache(maxsize=256)
def _forms_of(
    weight: WeightForm, layout: DataLayout, windows: tuple[Window, ...], cpu: Cpu
) -> dict[str, Form]:
    """Return the forms for a class of layers, by name: all combinations of transforms."""
    choices = product(*(transforms_of(window.r) for window in windows))
    forms = [
        Form(weight, layout, windows, transforms, cpu)
        for transforms in choices
        if any(t.m > 1 for t in transforms) and prod(t.points for t in transforms) <= _MAX_POINTS
    ]
    return {form.name: form for form in forms}


@dataclass(frozen=True, slots=True)
class Schedule:
    """All decisions about a correlation.

    A block has at most `box` images and groups of tiles along each axis. A job has `units` units.
    `cycles` assume that the weights are in a cache if they fit in it.
    """

    form: Form
    box: tuple[int, ...]
    units: int
    threads: int
    cycles: float

    @property
    def tiles(self) -> int:
        """Number of tiles in a full block."""
        return prod(self.box) * self.form.residues

    @property
    def workspace_bytes(self) -> int:
        """Approximate bytes of all threads' scratch memory."""
        return self.threads * self.tiles * self.form.tile_bytes

    def __str__(self) -> str:
        form = self.form
        return (
            f"winograd: {form.name}, {form.saving[0]} products for {form.saving[1]}, errors about"
            f" {form.growth:.1f} times those of direct sums, blocks of {self.tiles} tiles,"
            f" tile of {form.rows} x {form.vectors} vectors, {self.threads} threads"
        )


class Cycles(NamedTuple):
    """The model of a form's cycles.

    Its figures are in processor_costs.py. Most were fitted to 920 choices on a Zen 4 (2026-11-22).
    """

    inputs: float  # packing and transforming a tile
    results: tuple[float, float]
    """A tile's inverse transform for a unit: without and with `shares_sets`."""
    products: tuple[tuple[int, float], ...]
    """Rows of a register tile, and its cycles for all of a unit's points."""
    stream: float  # reading a unit's weights while products are computed
    weights: float  # the part of that reading which products do not hide
    beyond: bool  # whether weights come from memory


class Form:
    """A choice of transforms for a class of layers, and everything independent of sizes.

    A unit has `channels` channels, padded to `padded`. The largest register tile of products has
    `rows` rows of `vectors` vectors. Schedules for all sizes in a class share one object.
    """

    def __init__(
        self, weight: WeightForm, layout: DataLayout, windows: tuple[Window, ...],
        transforms: tuple[Transform, ...], cpu: Cpu,
    ) -> None:  # fmt: skip
        self.weight, self.layout, self.cpu = weight, layout, cpu
        self.windows, self.transforms, self.name = windows, transforms, named(transforms)
        self.exact = all(transform.exact for transform in transforms)
        self.points = prod(transform.points for transform in transforms)
        # For each point, the number of pieces along each axis.
        axes = [t.pieces_of(w.r) for t, w in zip(transforms, windows, strict=True)]
        self.pieces = [*product(*axes)]
        self.products = prod(map(sum, axes))  # per tile, for one reduced and one result channel
        self.residues = prod(window.apart for window in windows)
        self.item = BYTES[weight.element]
        self.lanes = lanes = cpu.lanes(self.item)
        self.reduced, self.made = weight.reduced // weight.groups, weight.made // weight.groups
        self.reduction = self.reduced * prod(window.step for window in windows)
        # Channels that are transformed together: entire vectors.
        self.chunk = min(_CHUNK, ceil(self.reduced / lanes) * lanes)
        self.channels, self.padded = _unit(self.made, windows[-1].stride, layout, lanes)
        self.chunks = ceil(self.made / self.channels)
        self.units = self.chunks * prod(window.stride for window in windows[:-1])
        self.columns = windows[-1].stride * self.padded
        counts = (2, 3, 1) if cpu.registers < 32 else (2, 4, 3, 1)
        self.vectors = next(n for n in counts if self.columns // lanes % n == 0)
        self.rows = cpu.sums(self.vectors) // self.vectors
        # The register tiles' rows: with four sizes, most numbers of tiles leave few rows idle.
        sizes = {ceil(self.rows * part / 13) for part in (13, 10, 8, 6)}
        self.sizes = tuple(sorted(sizes, reverse=True))
        self.piece_bytes = self.reduction * self.vectors * lanes * self.item  # of one panel
        self.panels = self.columns // (self.vectors * lanes)
        self.panel_bytes = prod(transform.pieces for transform in transforms) * self.piece_bytes
        self.point_bytes = self.panels * self.panel_bytes
        self.unit_bytes = self.points * self.point_bytes
        # An extra line per row keeps rows out of each other's cache sets.
        numbers = self.points * (self.reduction + self.columns + lanes) + self.columns
        self.tile_bytes = self.item * numbers
        self.estimate = self.products * self.reduction + cpu.costs.winograd.point * self.points
        """A tile's work for one result channel, by which forms are ranked."""

    @property
    def growth(self) -> float:
        """Predicted rounding errors relative to those of direct sums."""
        return max(1.0, prod(transform.growth for transform in self.transforms))

    @property
    def saving(self) -> tuple[int, int]:
        """Products in a tile and in direct sums, for one reduced and one result channel."""
        pairs = zip(self.transforms, self.windows, strict=True)
        phases = prod(window.stride * window.step for window in self.windows)
        return self.products * phases, prod(t.m * len(window.taps) for t, window in pairs)

    @cached_property
    def cycles(self) -> Cycles:
        """The cost model for this form."""
        costs, kernel, across = self.cpu.costs, self.cpu.costs.winograd, self.columns // self.lanes
        outputs = prod(transform.m for transform in self.transforms)
        pack = kernel.pack_rows if self.layout is DataLayout.NCX else kernel.pack
        inputs = kernel.input_addition * _additions([t.b for t in self.transforms])
        strided = any(window.step > 1 for window in self.windows)
        passes = kernel.axes if strided and len(self.windows) > 1 else 1.0
        inputs += kernel.input * passes * self.points + pack * outputs
        if strided:
            inputs += kernel.strided_line * outputs * self.lanes * self.item / LINE
        results = kernel.result_addition * _additions([t.a for t in self.transforms])
        results += kernel.result * passes * self.points
        reduction, vectors = self.products * self.reduction, self.vectors
        taps = prod(window.stride for window in self.windows)
        beyond = reduction * self.weight.made * taps * self.item > costs.l3
        return Cycles(
            ceil(self.reduction / self.lanes) * inputs,
            (
                across * (results + kernel.store * outputs),
                across * (results + kernel.store_sharing * outputs),
            ),
            tuple(
                (rows, self.panels * (reduction * step + self.points * kernel.register_tile))
                for rows in range(max(1, self.rows // 2), self.rows + 1)
                for step in (max(rows * vectors / costs.adds, (rows + 2 * vectors) / costs.loads),)
            ),
            reduction * across * (kernel.memory if beyond else kernel.stream),
            reduction * across * kernel.weight,
            beyond,
        )

    @cached_property
    def runs(self) -> set[tuple[int, int]]:
        """Options for a job: its units, and the number of jobs per block."""
        units = [ceil(self.units / runs) for runs in (1, 2, 4, self.units)]
        return {(n, ceil(self.units / n) * self.weight.groups) for n in units}

    @cached_property
    def _least(self) -> float:
        """Minimum cycles for one tile of each residue."""
        model = self.cycles
        unit = min(cycles / rows for rows, cycles in model.products) + model.results[0]
        return self.weight.groups * (self.units * unit + model.inputs) * self.residues

    def groups(self, lines: tuple[Line, ...]) -> list[int]:
        """Return the number of groups of tiles along each axis."""
        axes = zip(self.windows, self.transforms, lines, strict=True)
        return [window.groups(transform, line) for window, transform, line in axes]

    def least_cycles(self, correlation: Correlation, threads: int) -> float:
        """Return a lower bound of all schedules' cycles, as if every tile were useful."""
        return self._least * correlation.batch * prod(self.groups(correlation.lines)) / threads

    def schedule(self, correlation: Correlation, threads: int) -> Schedule:
        """Return the schedule that takes the fewest cycles."""
        counts = correlation.batch, *self.groups(correlation.lines)
        sharing = shares_sets(correlation, self.cpu)
        return self._scheduled(counts, sharing, threads)

    @lru_cache(maxsize=256)  # noqa: B019 - other caches keep forms as well
    def _scheduled(self, counts: tuple[int, ...], sharing: bool, threads: int) -> Schedule:
        model, costs = self.cycles, self.cpu.costs.winograd
        l2, l3 = self.cpu.l2, self.cpu.costs.l3
        stored = model.results[sharing]
        room = max(self.rows, int(costs.l2_blocks * l2 / self.tile_bytes)) // self.residues
        rooms = [room, room * 2 // 3, room // 2, room // 4]
        if model.beyond:  # larger ones read weights from memory less often
            rooms += [2 * room, 4 * room]
        options = []
        for box in {_box(counts, max(1, n)) for n in rooms}:
            results, multiplied, transformed = self._counts(box)
            # With a large dilation a group may not fit: 64 channels, d = 32 along two axes.
            over = transformed * self.tile_bytes / l2
            slower = 1 + costs.overflow * log2(max(1, over)) + (over * l2 > l3)
            blocks = prod([-(-n // b) for n, b in zip(counts, box, strict=True)])
            products = min([-(-multiplied // rows) * cycles for rows, cycles in model.products])
            unit = max(products, model.stream) + model.weights + results * stored
            for units, runs in self.runs:
                jobs = blocks * runs
                job = units * unit + transformed * model.inputs + costs.job
                options.append((slower * job * -(-jobs // threads), jobs, box, units))
        cycles, jobs, box, units = min(options)
        return Schedule(self, box, units, min(threads, jobs), cycles)

    def _counts(self, box: tuple[int, ...]) -> tuple[int, int, int]:
        """Return a block's numbers of tiles, of tiles with products, and of transformed tiles.

        Pieces read transformed tiles beyond the block. Products are also computed, uselessly, for
        those between the block's tiles, but not for the last ones.
        """
        behind, count = 0, 1
        for n, window, t in zip(box[:0:-1], self.windows[::-1], self.transforms[::-1], strict=True):
            behind += (t.pieces - 1) * window.apart * count
            count *= (n + t.pieces - 1) * window.apart
        return prod(box) * self.residues, box[0] * count - behind, box[0] * count


def _unit(result_channels: int, stride: int, layout: DataLayout, lanes: int) -> tuple[int, int]:
    """Return a unit's channels, and their padded number: all phases of a q fill vectors."""
    step = lanes // gcd(lanes, stride)
    wanted = max(step, _UNIT // stride // step * step)
    if wanted < lanes <= result_channels and layout is DataLayout.NCX:
        wanted = lanes  # squares with this many channels are transposed
    chunks = ceil(result_channels / wanted)
    channels = min(result_channels, ceil(ceil(result_channels / chunks) / step) * step)
    return channels, ceil(channels / step) * step


def _box(counts: Sequence[int], size: int) -> tuple[int, ...]:
    """Return a box of at most `size` groups, with as many as possible along the last axis."""
    box: list[int] = []
    for count in reversed(counts):
        most = max(1, min(count, size))
        most = -(-count // -(-count // most))
        box.append(most)
        size //= most
    return tuple(reversed(box))


def _additions(axes: list[Stages]) -> int:
    """Return a transform's number of additions, given each axis's matrices."""
    sizes, total = [stages.columns for stages in axes], 0
    for axis, stages in reversed(list(enumerate(axes))):
        for rows, additions in stages.additions:
            sizes[axis] = 1
            total += prod(sizes) * additions
            sizes[axis] = rows
    return total


def reduction_of(correlation: Correlation) -> int:
    """Return the number of reduced channels times operand phases."""
    steps = prod(line.step for line in correlation.lines)
    return correlation.reduced // correlation.groups * steps


def shares_sets(correlation: Correlation, cpu: Cpu) -> bool:
    """Whether result channels are so far apart that they share sets in the second-level cache. Rows
    of 512x512 results took twice as long to write (fcn8s_final)."""
    channel = prod(correlation.result_size) * correlation.dtype.itemsize
    return correlation.layout is DataLayout.NCX and channel % cpu.costs.winograd.set_bytes == 0
