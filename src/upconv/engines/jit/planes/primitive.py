"""The planes primitive: depthwise layers; see tile.py."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from ....geometry import Phase, Tap
from ....problem import DataLayout
from ....threads import useful_threads
from ...addresses import address_of
from ...base import Array
from .. import walk
from ..compile import CODE_BYTES
from ..correlation import Correlation, Line, Reads, WeightForm, reads_of
from ..cpu import Cpu
from ..kernel_arguments import Blocks, Table, filled
from ..operands import Kernel, Operands
from ..packing import Packer, shared
from ..positions.tiling import finish_of, in_tile, stores
from ..rows import finish_code
from ..steps import Launch
from ..values import BYTES, LINE, STORED
from .tile import ARGUMENTS, BAND, BANDS, CHANNELS, TAP, PlaneTile, plane_code

_MAX_POSITIONS = 14  # positions in a tile of channels-last data
_MAX_PRODUCTS = 400  # products in a tile: each adds code
_MAX_REACH = 3  # range of a row's shifts, in vectors: each vector is loaded
_MAX_TAPS = 1 << 14  # outer taps of all outer positions: each is in a table
_CENTER = (Phase(0, 1, (Tap(0, 0),)),)
_POINT = Line(1, 1, 1, 1, _CENTER, 0, 0, _CENTER)


class Planes(Kernel):
    """A depthwise correlation with result stride 1, compiled and scheduled."""

    def __init__(self, correlation: Correlation, tile: PlaneTile, threads: int, cpu: Cpu) -> None:
        self.correlation, self._tile = correlation, tile
        code, self._walk = plane_code(tile, cpu), walk.walk_code(cpu)
        finish = finish_code(finish_of(correlation), cpu) if tile.staged else None
        self._threads = useful_threads(correlation.multiply_adds, threads)
        dtype, channels = correlation.dtype.accumulator.numpy, _channels(correlation, tile)
        axes = tuple(line.phases[0].taps for line in correlation.lines)
        lanes = channels if tile.last else 0
        self.order = shared(PlanePacking, correlation.weight, axes, lanes, cpu)
        self._pack_threads, self._no_bias = threads, np.zeros(channels, dtype)
        *_, rows, last = _lines(correlation)
        x_row, y_row = (n * correlation.dtype.itemsize for n in (last.size, last.out))
        w_tap = max(1, lanes) * dtype.itemsize
        tables = _tables(correlation, tile, w_tap, self._threads)
        job = walk.Phase(code.addresses["planes"], tables["inner"], tables["outer"])
        phases = walk.phases(self._threads, job)
        self._held = code, finish, tables, phases
        blocks = Blocks(ARGUMENTS.block(
            phases=phases.ctypes.data, phase_count=1,
            finish=finish.addresses["finish"] if finish else 0,
            bands=tables["bands"].ctypes.data, taps=tables["taps"].ctypes.data,
            w_channel=0 if tile.last else self.order.nbytes // correlation.made, w_tap=w_tap,
            x_row=x_row, y_row=y_row, multiplier=correlation.made // correlation.groups,
            x_rows=rows.size, x_width=last.size, y_width=last.out, slopes=self._no_bias.nbytes,
        ))  # fmt: skip
        started = self._walk.addresses["walk"]
        self._launch = Launch.of_walk(blocks, started, self._threads, phases)
        self.workspace_bytes = 0
        self.predicted_cycles = predicted_cycles(correlation, tile, threads)
        nbytes = sum(table.nbytes for table in tables.values())
        self.resident_bytes = nbytes + self.order.resident_bytes + CODE_BYTES

    def _launches(
        self, operands: Operands, w: Array, biases: Array, scratch: int
    ) -> Iterable[tuple[Launch, dict[str, int]]]:
        x, y, more = operands.x, operands.y, operands.residual
        apart = not self._tile.last
        values = {
            "x": address_of(x), "x_image": x.strides[0], "x_channel": apart * x.strides[1],
            "y": address_of(y), "y_image": y.strides[0], "y_channel": apart * y.strides[1],
            "w": address_of(w), "bias": address_of(biases),
            "residual": 0 if more is None else address_of(more), "second": operands.second,
        }  # fmt: skip
        return ((self._launch, values),)

    @property
    def description(self) -> str:
        """The tile in one line."""
        tile, rows = self._tile, "positions" if self._tile.last else "rows"
        return (
            f"planes: tile of {tile.rows} {rows} x {tile.vectors} vectors of {tile.lanes}, read in"
            f" place, {self._threads} threads"
        )


def _lines(correlation: Correlation) -> tuple[Line, ...]:
    """Return the axes, ending with rows and positions in a row, or with positions and channels."""
    if correlation.layout is DataLayout.NXC:
        channels = _POINT._replace(size=correlation.reduced, out=correlation.made)
        return (*correlation.lines, channels)
    return (_POINT, *correlation.lines) if correlation.rank == 1 else correlation.lines


def _channels(correlation: Correlation, tile: PlaneTile) -> int:
    """Return the number of channels, rounded up to full tiles if vectors run along them."""
    width = tile.width if tile.last else 1
    return -(-correlation.made // width) * width


class PlanePacking(Packer):
    """A packer of depthwise weights as [channel][tap], or with `lanes`, for channels-last data, as
    [tap][lane]. `axes` lists the taps of each axis."""

    def __init__(
        self, weight: WeightForm, axes: tuple[tuple[Tap, ...], ...], lanes: int, cpu: Cpu
    ) -> None:
        by_group, _, by_made, *by_tap = weight.strides
        entries = np.array([
            sum(tap.index * step for tap, step in zip(taps, by_tap, strict=True))
            for taps in product(*axes)
        ])  # fmt: skip
        compute, itemsize = weight.dtype.accumulator.numpy, weight.dtype.itemsize
        if lanes:
            numbers = np.arange(lanes) * by_group
            numbers[weight.made :] = -1
            step = lanes * compute.itemsize
            rows = [(i * step, n * itemsize, 0, lanes) for i, n in enumerate(entries)]
            groups = 1, 1, len(entries) * step
        else:
            numbers, multiplier = entries, weight.made // weight.groups
            step, count = len(entries) * compute.itemsize, len(entries)
            rows = [(m * step, m * by_made * itemsize, 0, count) for m in range(multiplier)]
            groups = weight.groups, 1, multiplier * step
        super().__init__(weight, compute, *groups, np.array(rows), numbers, cpu)


def _tables(
    correlation: Correlation, tile: PlaneTile, tap_bytes: int, threads: int
) -> dict[str, Table]:
    """Return the bands of all planes in a channel, the outer taps that read inputs in them, and
    both job tables."""
    *outer, rows, last = _lines(correlation)
    itemsize, band_bytes = correlation.dtype.itemsize, tile.costs.band_bytes
    reads = reads_of([
        Reads(line.out, line.step, line.size, [tap.shift for tap in line.phases[0].taps])
        for line in outer
    ]).T  # fmt: skip
    plane, tap = np.nonzero(reads >= 0)
    x = reads[plane, tap] * (rows.size * last.size * itemsize)
    tap_bytes *= len(rows.phases[0].taps) * len(last.phases[0].taps)
    counts = np.bincount(plane, minlength=len(reads))
    row_bytes, tiles = last.out * itemsize, -(-rows.out // tile.rows)
    parts = -(-tiles // max(1, band_bytes // (row_bytes * tile.rows)))
    height = -(-tiles // parts) * tile.rows
    top = np.arange(0, rows.out, height)
    bands = filled(
        BAND, (len(reads), len(top)),
        y=np.arange(len(reads))[:, None] * (row_bytes * rows.out),
        top=top, bottom=np.minimum(top + height, rows.out),
        taps=(counts.cumsum() - counts)[:, None], tap_count=counts[:, None],
    ).ravel()  # fmt: skip
    # Several small bands, of several channels, form one job.
    channels = 1 if tile.last else correlation.made
    units = correlation.batch * channels * len(bands) // (8 * threads)
    run = max(1, min(band_bytes // (height * row_bytes), units))
    inner = np.arange(0, len(bands), run)
    size = max(1, run // len(bands))
    first, image = np.arange(0, channels, size), np.arange(correlation.batch)[:, None]
    return {
        "bands": bands, "taps": filled(TAP, len(tap), x=x, w=tap * tap_bytes),
        "inner": filled(BANDS, len(inner), first=inner, count=np.minimum(run, len(bands) - inner)),
        "outer": filled(
            CHANNELS, (correlation.batch, len(first)),
            image=image, first=first, count=np.minimum(size, channels - first),
        ).ravel(),
    }  # fmt: skip


@lru_cache(maxsize=64)  # both the choice of a kernel and the kernel need it
def plane_tile(correlation: Correlation, cpu: Cpu) -> PlaneTile | None:
    """Return the tile for a correlation, or None if this kernel cannot compute it."""
    lines = _lines(correlation)
    *outer, rows, last = lines
    possible = (
        1 < correlation.groups == correlation.reduced
        and (correlation.layout is DataLayout.NCX or correlation.made == correlation.groups)
        and _is_fast(correlation, cpu)
        and all(line.stride == 1 and line.phases[0].taps for line in lines)
        and last.step <= 2
        and prod(line.out * len(line.phases[0].taps) for line in outer) <= _MAX_TAPS
    )
    if not possible:
        return None
    lanes = cpu.lanes(BYTES[correlation.element])
    down, across = (tuple(tap.shift for tap in line.phases[0].taps) for line in (rows, last))
    channels_last, costs = correlation.layout is DataLayout.NXC, cpu.costs.planes
    most = _MAX_POSITIONS if channels_last else costs.rows
    most = min(most, rows.out, _MAX_PRODUCTS // (len(down) * len(across)))
    reach = last.high - last.low
    if most < 1 or last.out < costs.filled * lanes or reach > _MAX_REACH * lanes * last.step:
        return None
    sizes = [(count, max(1, 4 // count)) for count in range(min(most, 4), most + 1)]
    if last.step > 1 and most >= 4:
        sizes.append((4, 2))  # this size loads less per vector
    if channels_last:
        wide = min(most, cpu.registers - 4) // 2
        sizes = [(count, 1 + (count <= wide)) for count in range(1, most + 1)]
    tiles = [
        PlaneTile(
            correlation.element, STORED[correlation.dtype], lanes, count,
            min(vectors, -(-last.out // lanes)),
            (rows.step, last.step), (down, across), in_tile(correlation),
            not stores(correlation), channels_last,
        )
        for count, vectors in sizes
    ]  # fmt: skip
    return min(tiles, key=lambda tile: _cycles(correlation, tile))


def _is_fast(correlation: Correlation, cpu: Cpu) -> bool:
    """Whether the processor has masks for the numbers, and registers for the sums.

    AVX2 has no masks for 16-bit numbers. With one tap, LLVM would keep sums in memory.
    """
    if cpu.vector_bytes == LINE:
        return True
    taps = prod(len(line.phases[0].taps) for line in correlation.lines)
    return cpu.vector_bytes == LINE // 2 and correlation.dtype.itemsize >= 4 and taps > 1


def predicted_cycles(correlation: Correlation, tile: PlaneTile, threads: int) -> float:
    """Return the cycles per thread."""
    return _cycles(correlation, tile) / useful_threads(correlation.multiply_adds, threads)


def _cycles(correlation: Correlation, tile: PlaneTile) -> float:
    """Return all tiles' cycles."""
    *outer, rows, last = _lines(correlation)
    tiles = -(-rows.out // tile.rows) * -(-last.out // tile.width)
    planes = prod(line.out * len(line.phases[0].taps) for line in outer)
    costs = tile.costs
    channels = costs.channels_last if tile.last else costs.channels_first * correlation.made
    return correlation.batch * channels * planes * tiles * tile.cycles
