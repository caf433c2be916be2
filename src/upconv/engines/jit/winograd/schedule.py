"""Schedules of Winograd's algorithm as plain data: transforms, blocks, units.

Axes are cut into groups of tiles (window.py). A *block* is a box of groups whose transformed
operands stay in the second-level cache, beside the products of a *unit*: some channels of one tuple
of outer phases. A job is some units of a block. docs/winograd.md explains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, gcd, inf, log2, prod
from typing import NamedTuple

from ....problem import DataLayout, DType
from ..correlation import Correlation, Line, WeightForm
from ..cpu import Cpu
from ..values import BYTES
from .transforms import Stages, Transform, named
from .window import Window, transforms_of

_MOST_POINTS = 64  # of all axes
_MOST_CHOICES = 6  # exact forms, and others, that seem to need the fewest cycles
_CHUNK = 64  # channels that are transformed together
_MOST_TAPS = 64
_MOST_OUTPUTS = 64  # of a tile along one axis: no transform makes so many
_UNIT = 64  # columns of a unit, about


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


@lru_cache(maxsize=64)
def windows_of(correlation: Correlation) -> tuple[Window, ...]:
    """The window of each axis."""
    return tuple(map(Window.of, correlation.lines))


class Choice(NamedTuple):
    """Transforms of all axes: products of a tile, of one reduced and made channel, and points."""

    transforms: tuple[Transform, ...]
    products: int
    points: int
    exact: bool


@lru_cache(maxsize=256)
def _choices(windows: tuple[Window, ...], most: tuple[int, ...]) -> list[Choice]:
    """All combinations of transforms that make fewer than `most` outputs of each axis."""
    axes = [
        [(t, sum(t.pieces_of(window.r))) for t in transforms_of(window.r) if t.m < n]
        for window, n in zip(windows, most, strict=True)
    ]
    choices = []
    for pairs in product(*axes):
        transforms, products = zip(*pairs, strict=True)
        points = prod(t.points for t in transforms)
        if points <= _MOST_POINTS and any(t.m > 1 for t in transforms):
            exact = all(t.exact for t in transforms)
            choices.append(Choice(transforms, prod(products), points, exact))
    return choices


@lru_cache(maxsize=256)
def schedules(
    correlation: Correlation, threads: int, cpu: Cpu, *, exact: bool = False, most: float = inf
) -> tuple[Schedule, ...]:
    """The best schedule of each promising choice of transforms, the fastest first; () where there
    is a `refusal`.

    `exact` leaves out other forms, `most` those that surely take more cycles.
    """
    if refusal(correlation):
        return ()
    windows, lines = windows_of(correlation), correlation.lines
    # A tile that makes twice as many outputs as there are makes too many.
    outputs = [
        2 * ceil(window.steps(n) / window.apart) for window, n in zip(windows, lines, strict=True)
    ]
    reduced, points = reduction_of(correlation), cpu.costs.winograd.point
    ordered = sorted(
        _choices(windows, tuple(min(n, _MOST_OUTPUTS) for n in outputs)),
        key=lambda c: (
            (c.products * reduced + points * c.points)
            * prod(groups_of(windows, c.transforms, lines))
        ),
    )
    kept = [each for each in ordered if each.exact][:_MOST_CHOICES]
    if not exact:
        kept += [each for each in ordered if not each.exact][:_MOST_CHOICES]
    weight, layout = correlation.weight, correlation.layout
    forms = [Form.of(weight, layout, windows, each.transforms, cpu) for each in kept]
    plans = [
        form.schedule(correlation, threads)
        for form in forms
        if form.least_cycles(correlation, threads) <= most
    ]
    return tuple(sorted(plans, key=lambda plan: plan.cycles))


def named_schedule(correlation: Correlation, names: str, threads: int, cpu: Cpu) -> Schedule:
    """The best schedule of a choice of transforms, by their names."""
    windows = windows_of(correlation)
    form = _named_form(correlation.weight, correlation.layout, windows, names, cpu)
    return form.schedule(correlation, threads)


def groups_of(
    windows: Sequence[Window], transforms: Sequence[Transform], lines: Sequence[Line]
) -> list[int]:
    """Groups of tiles along each axis."""
    return [w.groups(t, line) for w, t, line in zip(windows, transforms, lines, strict=True)]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that is decided about one correlation.

    A block has at most `box` images and groups of tiles along each axis. A job has `units` units.
    `cycles` are those of a run whose weights are in a cache if they fit it.
    """

    form: Form
    box: tuple[int, ...]
    units: int
    threads: int
    cycles: float

    @property
    def tiles(self) -> int:
        """Tiles of a block at most."""
        return prod(self.box) * self.form.residues

    @property
    def workspace_bytes(self) -> int:
        """About the bytes of scratch memory of all threads."""
        return self.threads * self.tiles * self.form.tile_bytes

    def __str__(self) -> str:
        form = self.form
        return (
            f"winograd: {form.name}, {form.saving[0]} products for {form.saving[1]}, errors about"
            f" {form.growth:.1f} times those of direct sums, blocks of {self.tiles} tiles,"
            f" tile of {form.rows} x {form.vectors} vectors, {self.threads} threads"
        )


class Form:
    """A choice of transforms for a class of layers, with everything that no size changes.

    A unit has `channels` channels, padded to `padded`; `rows` by `vectors` vectors are the largest
    register tile of products. Schedules of all sizes of a class share one object.

    Cycles are those in each of which the processor could do `Costs.adds` multiply-adds, fitted to
    920 choices on a Zen 4 (2026-11-22).
    """

    def __init__(
        self, weight: WeightForm, layout: DataLayout, windows: tuple[Window, ...],
        transforms: tuple[Transform, ...], cpu: Cpu,
    ) -> None:  # fmt: skip
        self.weight, self.layout, self.windows, self.transforms = (
            weight,
            layout,
            windows,
            transforms,
        )
        self.cpu, self.name = cpu, named(transforms)
        self.exact = all(each.exact for each in transforms)
        self.growth = max(1.0, prod(each.growth for each in transforms))
        """Rounding errors beside those of direct sums, as a model."""
        self.item = BYTES[weight.element]
        self.lanes = lanes = cpu.lanes(self.item)
        made, stride = weight.made // weight.groups, windows[-1].stride
        self.channels, self.padded = _unit(made, stride, layout, lanes)
        self.chunks = ceil(made / self.channels)
        self.units = self.chunks * prod(window.stride for window in windows[:-1])
        self.columns = stride * self.padded
        across = self.columns // lanes
        some = (2, 3, 1) if cpu.registers < 32 else (2, 4, 3, 1)
        self.vectors = next(n for n in some if across % n == 0)
        self.rows = cpu.sums(self.vectors) // self.vectors
        # Rows of all register tiles: with four, most numbers of tiles leave few rows idle.
        self.sizes = tuple(
            sorted({ceil(self.rows * part / 13) for part in (13, 10, 8, 6)}, reverse=True)
        )
        self.points = prod(each.points for each in transforms)
        self.residues = prod(window.apart for window in windows)
        self.reduced = weight.reduced // weight.groups
        self.reduction = self.reduced * prod(window.step for window in windows)
        # Channels that are transformed together: whole vectors.
        self.chunk = min(_CHUNK, ceil(self.reduced / lanes) * lanes)
        # For each point, the pieces of each axis.
        self.pieces = [
            *product(*(t.pieces_of(w.r) for t, w in zip(transforms, windows, strict=True)))
        ]
        self.piece_count = prod(each.pieces for each in transforms)
        self.point_bytes = self.piece_count * self.reduction * self.columns * self.item
        self.unit_bytes = self.points * self.point_bytes
        products = sum(map(prod, self.pieces))
        self.saving = (
            products * prod(window.stride * window.step for window in windows),
            prod(t.m * len(w.taps) for t, w in zip(transforms, windows, strict=True)),
        )
        """Products of a tile, and those of direct sums: of one reduced and made channel."""
        self._set_cycles(products, across)

    def _set_cycles(self, products: int, across: int) -> None:
        """Set the figures of the model: cycles of a tile's input, its results and a unit."""
        weight, costs, kernel = self.weight, self.cpu.costs, self.cpu.costs.winograd
        reduced, points = self.reduction, self.points
        outputs = prod(each.m for each in self.transforms)
        # A line more for each row, which keeps rows out of each other's cache sets.
        numbers = points * (reduced + (across + 1) * self.lanes) + across * self.lanes
        self.tile_bytes = self.item * numbers
        inputs = kernel.input_addition * _additions([t.b for t in self.transforms])
        pack = kernel.pack_rows if self.layout is DataLayout.NCX else kernel.pack
        inputs += kernel.input * points + pack * outputs
        self._inputs = ceil(reduced / self.lanes) * inputs
        results = kernel.result_addition * _additions([t.a for t in self.transforms])
        results += kernel.result * points
        stores = kernel.store, kernel.store_sharing  # as `shares_sets` says
        self._results = [across * (results + store * outputs) for store in stores]
        reduction = products * reduced
        nbytes = reduction * weight.made * prod(w.stride for w in self.windows) * self.item
        self._beyond = nbytes > costs.l3
        stream = kernel.memory if self._beyond else kernel.stream
        self._stream = reduction * across * stream  # of a unit's weights, in which products hide
        self._weights = reduction * across * kernel.weight  # what of it does not hide
        panels, vectors = across // self.vectors, self.vectors
        self._products = [
            (rows, panels * (reduction * step + points * kernel.register_tile))
            for rows in range(max(1, self.rows // 2), self.rows + 1)
            for step in (max(rows * vectors / costs.adds, (rows + 2 * vectors) / costs.loads),)
        ]
        units = self.units
        self._runs = {
            (ceil(units / runs), ceil(units / ceil(units / runs)) * weight.groups)
            for runs in (1, 2, 4, units)
        }
        least = min(cycles / rows for rows, cycles in self._products) + self._results[0]
        self._least = weight.groups * (units * least + self._inputs)

    @classmethod
    @lru_cache(maxsize=1024)
    def of(
        cls, weight: WeightForm, layout: DataLayout, windows: tuple[Window, ...],
        transforms: tuple[Transform, ...], cpu: Cpu,
    ) -> Form:  # fmt: skip
        """The form of a class, one object for all sizes."""
        return cls(weight, layout, windows, transforms, cpu)

    def least_cycles(self, correlation: Correlation, threads: int) -> float:
        """A bound below the cycles of all schedules: no tile is computed in vain."""
        groups = groups_of(self.windows, self.transforms, correlation.lines)
        return self._least * correlation.batch * prod(groups) * self.residues / threads

    def schedule(self, correlation: Correlation, threads: int) -> Schedule:
        """The blocks and jobs that take the fewest cycles."""
        groups = groups_of(self.windows, self.transforms, correlation.lines)
        counts = [correlation.batch, *groups]
        costs, l2, l3 = self.cpu.costs.winograd, self.cpu.l2, self.cpu.costs.l3
        stored = self._results[shares_sets(correlation, costs.set_bytes)]
        room = max(self.rows, int(costs.l2_blocks * l2 / self.tile_bytes)) // self.residues
        rooms = [room, room * 2 // 3, room // 2, room // 4]
        if self._beyond:  # fewer blocks read the weights from memory
            rooms += [2 * room, 4 * room]
        options = []
        for box in {_box(counts, max(1, n)) for n in rooms}:
            results, multiplied, transformed = self._counts(box)
            # A group of a large dilation may not fit: 64 channels, d = 32 along two axes.
            over = transformed * self.tile_bytes / l2
            slower = 1 + costs.overflow * log2(max(1, over)) + (over * l2 > l3)
            blocks = prod([-(-n // b) for n, b in zip(counts, box, strict=True)])
            products = min([-(-multiplied // rows) * cycles for rows, cycles in self._products])
            unit = max(products, self._stream) + self._weights + results * stored
            for units, runs in self._runs:
                jobs = blocks * runs
                job = units * unit + transformed * self._inputs + costs.job
                options.append((slower * job * -(-jobs // threads), jobs, box, units))
        cycles, jobs, box, units = min(options)
        return Schedule(self, box, units, min(threads, jobs), cycles)

    def _counts(self, box: tuple[int, ...]) -> tuple[int, int, int]:
        """Tiles of a block, those whose products are made, and those transformed.

        Pieces read tiles behind those of the block; products of all but the last such are made in
        vain.
        """
        behind, count = 0, 1
        for n, window, t in zip(box[:0:-1], self.windows[::-1], self.transforms[::-1], strict=True):
            behind += (t.pieces - 1) * window.apart * count
            count *= (n + t.pieces - 1) * window.apart
        return prod(box) * self.residues, box[0] * count - behind, box[0] * count


@lru_cache(maxsize=256)
def _named_form(
    weight: WeightForm, layout: DataLayout, windows: tuple[Window, ...], names: str, cpu: Cpu
) -> Form:
    transforms = tuple(
        next(each for each in transforms_of(window.r) if each.name == name)
        for window, name in zip(windows, names.split("x"), strict=True)
    )
    return Form.of(weight, layout, windows, transforms, cpu)


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
        most = -(-count // -(-count // most))
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


def shares_sets(correlation: Correlation, set_bytes: int) -> bool:
    """Whether channels of results lie so far apart that vectors of 16 of them share a set of the
    second-level cache: rows of 512x512 results took twice as long to write (fcn8s_final)."""
    channel = prod(correlation.result_size) * BYTES[correlation.element]
    return correlation.layout is DataLayout.NCX and channel % set_bytes == 0
