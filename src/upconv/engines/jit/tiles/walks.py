"""The tile kernel's compiled code, and a spatial block's phases: packing, multiplying, and
transposing channels-first results back. One call computes all phases."""

from __future__ import annotations

from math import prod

import numpy as np

from ..channels.blocks import Kind
from ..channels.driver import driver_code as channels_code
from ..channels.form import steps_of
from ..channels.walks import CHUNK, transposed_parts
from ..channels.weights import ChannelPacking
from ..compile import CODE_BYTES
from ..cpu import Cpu
from ..kernel_arguments import Blocks, Table, filled
from ..packing import Numbers
from ..rows import Finish, finish_code
from ..steps import Launch
from ..transpose import transpose_code
from ..values import BFLOAT, BYTES, FLOAT, whole_lines
from ..walk import Phase, part_bytes, phases, walk_code
from .driver import (
    ARGUMENTS,
    INPUT,
    PART,
    ROW,
    RUN,
    STAGE_AT,
    TILE,
    pack_code,
    products_code,
)
from .operations import PAIRS, ROW_BYTES, ROWS, TILE_BYTES, configuration
from .placement import InPlace, Operand
from .schedule import Schedule
from .tables import CHUNK_POSITIONS, Packed
from .tile import RegisterTile, tile_code


class Codes:
    """A schedule's compiled code; `first` says that channels come first. `element` is the type in
    which tiles store results: the caller's type, or the type of results to be transposed."""

    def __init__(self, schedule: Schedule, finish: Finish, first: bool, cpu: Cpu) -> None:
        self.schedule, self.finish, self.first, self.cpu = schedule, finish, first, cpu
        stored = finish.stored
        self.casts = first and finish.is_cast
        self.element = (stored if self.casts else FLOAT) if first else stored
        self._tile_finish = Finish(FLOAT, self.element) if first else finish
        self._tiles: dict[int, int] = {}
        walk, products, channels = walk_code(cpu), products_code(cpu), channels_code(cpu)
        merging = schedule.merging
        form = (True, merging.dense, merging.spread) if merging else (False, False, None)
        transposed = first and not (merging and merging.has_one_channel)
        pack = pack_code(stored, transposed, *form, cpu)
        self.walk = walk.addresses["walk"]
        self.steps = channels.addresses | pack.addresses | products.addresses
        self._kept = [walk, pack, products, channels]
        self.addresses: dict[str, int] = {}
        if first:
            codes = {
                "transpose_in": transpose_code(stored, BFLOAT, cpu),
                "transpose_out": transpose_code(self.element, self.element, cpu),
                "finish_transposed": finish_code(finish, cpu),
            }
            self.addresses = {name: code.address for name, code in codes.items()}
            self._kept += codes.values()

    @property
    def configuration(self) -> Table:
        """The table that configures the registers."""
        plan = self.schedule
        tile = RegisterTile(plan.rows, plan.columns, plan.columns, plan.width, self.finish)
        return configuration(*tile.operands, plan.width)

    @property
    def nbytes(self) -> int:
        """Approximate bytes of the code."""
        return CODE_BYTES * len(self._kept)

    def tile(self, columns: int) -> int:
        """Return the address of the register tile for `columns` blocks of outputs."""
        if columns not in self._tiles:
            finish = self._tile_finish
            flushes = finish.stored == BFLOAT and self.cpu.dots > 0
            plan = self.schedule
            tile = RegisterTile(plan.rows, columns, plan.columns, plan.width, finish, flushes)
            code = tile_code(tile, self.cpu)
            self._kept.append(code)
            self._tiles[columns] = code.address
        return self._tiles[columns]


class Walk:
    """The phases for spatial blocks of one kind, with their arguments and scratch memory."""

    def __init__(
        self, kind: Kind, codes: Codes, order: ChannelPacking, threads: int, *, in_place: bool
    ) -> None:
        correlation, plan = kind.correlation, codes.schedule
        self._codes, self._first, self._threads = codes, codes.first, threads
        self.operand = _operand(kind, plan, in_place)
        y_position = correlation.made * BYTES[codes.element]
        y_steps = steps_of(correlation.result_size, y_position)
        self.tables: dict[str, Table] = {"configuration": codes.configuration}
        self._listed = listed = [*self._packing(), self._products(order, y_steps)]
        stage = max(plan.rows * plan.columns * TILE_BYTES, 2 * CHUNK_POSITIONS * ROW_BYTES)
        if codes.first:
            listed.append(self._transposing(y_steps))
            stage = max(stage, ROWS * CHUNK * BYTES[FLOAT])
        part = part_bytes(STAGE_AT + stage)
        x = threads * part
        y = self.nbytes = x + whole_lines(self.operand.nbytes)
        self.scratch_x, self.scratch_y = (
            -1 if isinstance(self.operand, InPlace) else x,
            y if codes.first else -1,
        )
        if codes.first:
            self.nbytes += whole_lines(prod(correlation.result_shape) * BYTES[codes.element])
        self.phases = phases(threads, *listed)
        kept = [self.phases, *self.tables.values()]
        kept += [t for p in listed for t in (p.inner, p.outer) if t is not None]
        self.resident_bytes = sum(table.nbytes for table in kept)
        self.template = ARGUMENTS.block(
            **{n: table.ctypes.data for n, table in self.tables.items()}, **codes.addresses,
            **self._arguments(), phases=self.phases.ctypes.data, phase_count=len(listed), part=part,
            out_row=y_position, y_position=int(y_steps[-1]) * correlation.lines[-1].stride,
            element=BYTES[FLOAT], stage_row=CHUNK * BYTES[FLOAT],
        )  # fmt: skip
        self.launch = Launch.of_walk(Blocks(self.template), codes.walk, threads, self.phases)

    def _packing(self) -> list[Phase]:
        """Return the phase that packs the operand, if any, and fill its tables."""
        operand, code = self.operand, self._codes.steps["pack"]
        if isinstance(operand, Packed):
            self.tables |= operand.chunks()
            return [Phase(code, self.tables["chunks"], _inputs(operand, self._first))]
        return []

    def _products(self, order: ChannelPacking, y_steps: Numbers) -> Phase:
        """Return the phase that multiplies, and fill its tables."""
        correlation, plan = self.operand.correlation, self._codes.schedule
        self.tables["steps"], ranges = self.operand.products(plan.cut, plan.inputs)
        counts = plan.cut.counts(correlation.result_size)
        classes, numbers = counts[:1], np.zeros(len(counts), np.int64)
        if (counts != classes).any():
            classes, numbers = np.unique(counts, axis=0, return_inverse=True)
        jumps = y_steps * (1, *(line.stride for line in correlation.lines))
        self.tables |= self.operand.results(classes, jumps)
        self._tile_count = tiles = len(self.tables["tiles"]) // max(1, len(classes))
        firsts = numbers.ravel() * tiles
        rows = _rows(self.operand, self._codes, order, y_steps, ranges, firsts, self._threads)
        self.tables["rows"], parts = rows, _parts(rows, plan)
        runs = _runs(tiles, rows, len(parts), plan, self._threads)
        weights = rows["slab"] + rows["count"] * (plan.columns * TILE_BYTES)
        # With one run, each weight belongs to one job, which may pack it if all threads have jobs.
        enough = self._threads == 1 or len(parts) >= _MIN_PARTS * self._threads
        self.slab = int(weights.max(initial=0)) if len(runs) == 1 and enough else 0
        by_outer = correlation.has_larger_weight
        return Phase(self._codes.steps["products"], runs, parts, by_outer=by_outer)

    def _transposing(self, y_steps: Numbers) -> Phase:
        """Return the phase that transposes results back."""
        correlation, codes = self.operand.correlation, self._codes
        tables = transposed_parts(
            correlation.batch, y_steps, correlation.made, ROWS, correlation.dtype.itemsize,
            self._threads, whole=codes.casts,
        )  # fmt: skip
        return Phase(codes.steps["transpose_out" if codes.casts else "finish_out"], *tables)

    def _arguments(self) -> dict[str, int]:
        """Return the arguments that packing and products read."""
        operand, correlation = self.operand, self.operand.correlation
        numbers = 1 if self._first else correlation.reduced
        return {
            "in_position": correlation.dtype.itemsize * numbers,
            "block_bytes": operand.block_bytes,
            "x_row": operand.row_bytes,
            "x_position": operand.position if isinstance(operand, Packed) else 0,
            "at_once": self._codes.schedule.at_once or max(1, self._tile_count),
        }


def _operand(kind: Kind, plan: Schedule, in_place: bool) -> Operand:
    """Return the operand of a spatial block: in place if wanted and possible, or packed."""
    if in_place:
        operand = InPlace(kind.correlation, kind.before, plan.merging is not None)
        if operand.is_possible:
            return operand
    return Packed(kind.correlation, kind.before, plan.merging)


def _rows(
    operand: Operand, codes: Codes, order: ChannelPacking, y_steps: Numbers,
    ranges: list[tuple[int, int]], tiles: Numbers, threads: int,
) -> Table:  # fmt: skip
    """Return the rows of blocks of outputs, for all groups and phases. `ranges` has each phase's
    first product and number of products, and `tiles` its first tile of positions."""
    plan, correlation = codes.schedule, operand.correlation
    cut, channels = plan.cut, plan.cut.lanes.channels
    element, listed = BYTES[codes.element], []
    phases_y = cut.offsets @ y_steps[1:]
    for number, (first, count) in enumerate(ranges):
        for block in range(0, plan.blocks, plan.columns):
            columns = min(plan.columns, plan.blocks - block)
            lane = block * ROWS
            listed.append((
                codes.tile(columns), int(tiles[number]) * TILE.itemsize, first * 8, count, 0,
                order.offsets[number * plan.blocks + block], lane * BYTES[FLOAT],
                int(phases_y[number]) + lane * element, min(columns * ROWS, channels - lane),
                0, number * plan.blocks + block, columns, 0,
            ))  # fmt: skip
    group = np.arange(correlation.groups)[:, None]
    rows = np.repeat(np.array(listed, ROW)[None], correlation.groups, 0)
    rows["group"] = group
    rows["x"] += group * operand.group_bytes
    rows["w"] += group * order.group_bytes
    rows["bias"] += group * plan.blocks * ROWS * BYTES[FLOAT]
    rows["y"] += group * channels * element
    # Each thread's rows begin with those that have most taps, so that short jobs come last.
    longest = np.argsort(-rows["count"].ravel(), kind="stable")
    dealt: Table = rows.ravel()[np.concatenate([longest[i::threads] for i in range(threads)])]
    return dealt


def _parts(rows: Table, plan: Schedule) -> Table:
    """Return parts with one row each, or with rows that have about `part_bytes` of weights; set the
    offset of each row's weights in its part's slab."""
    weights = np.cumsum(rows["count"] * plan.columns * TILE_BYTES)
    numbers = (weights - weights[:1]) // plan.part_bytes if plan.at_once else np.arange(len(rows))
    first = np.flatnonzero(np.diff(numbers, prepend=-1))  # numbers never decrease
    before = np.append(0, weights[:-1])
    rows["slab"] = before - before[first][np.searchsorted(first, np.arange(len(rows)), "right") - 1]
    return filled(PART, len(first), first=first, last=np.append(first[1:], len(rows)))


def _inputs(packed: Packed, first: bool) -> Table:
    """Return records of all images' input channels: one per block of 32 channels if channels come
    `first`, else one for all full blocks and one for the rest; with `dense` merging one for all."""
    correlation, merging, blocks = packed.correlation, packed.merging, packed.blocks
    channels, width = correlation.reduced // correlation.groups, PAIRS
    starts = np.arange(blocks) if first else np.array(sorted({0, channels // PAIRS}))
    starts = starts[starts * PAIRS < channels]
    counts = np.append(starts[1:], blocks) - starts
    if merging and merging.dense:
        starts, counts, width = starts[:1], np.ones(1, np.int64), merging.lanes
    # Merged taps' blocks are adjacent in a position: the first one clears all of them.
    zeros, lanes = (starts == 0, merging.lanes) if merging else (counts, blocks * PAIRS)
    group, number, image = np.indices((correlation.groups, len(starts), correlation.batch))
    block = starts[number]
    return filled(
        INPUT, image.shape, image=image, channel=group * channels + block * PAIRS,
        channels=np.minimum(width, channels - block * PAIRS), blocks=counts[number],
        zeros=zeros[number], room=np.minimum(width, lanes - block * PAIRS),
        dst=group * packed.group_bytes + block * packed.block_bytes + image * packed.image_bytes,
    ).ravel()  # fmt: skip


def _runs(tiles: int, rows: Table, parts: int, plan: Schedule, threads: int) -> Table:
    """Return runs of tiles of positions: enough jobs to keep all threads busy, each taking at least
    about 10 us."""
    products = int(rows["count"].sum()) * plan.columns * tiles
    jobs = min(16 * threads, max(2 * threads, products // _JOB)) if threads > 1 else 1
    runs = max(1, min(-(-jobs // max(1, parts)), tiles // plan.rows))
    length = -(-tiles // (runs * plan.rows)) * plan.rows
    first = np.arange(0, tiles, max(1, length))
    return filled(RUN, len(first), first=first, last=np.minimum(first + length, tiles))


_JOB = 1000  # tile products per job
_MIN_PARTS = 2  # minimum parts per thread, if jobs pack their weights
