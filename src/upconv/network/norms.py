"""Steps of normalization: statistics, then a chain of pointwise operations.

The chain computes (x - mean) * (1 / sqrt(variance + epsilon)), then the epilogue.

The elements that share a mean form a group. If groups fit in the cache and every thread has one, a
single job computes a group's statistics and its chain, so memory is read only once. Otherwise there
are several phases: sum parts, merge the sums, compute the means, apply the chain. Parts depend only
on sizes, so neither the number of threads nor the cache sizes change the bits.
"""

from __future__ import annotations

from math import lcm
from struct import pack, unpack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..engines.jit import statistics
from ..engines.jit.chains import PIECE, argument_layout, chain_code
from ..engines.jit.steps import Step
from ..engines.jit.values import BYTES
from ..engines.jit.walk import Phase
from ..problem import DataLayout
from .graph import Array, Norm
from .matrices import PIECE_BYTES, Matrices, by_position
from .pointwise import Table, bind
from .tables import Arrays, Target, as_numbers, computed_type, records, stored_type, walk_step

_MIN_PART = 8 << 10
_VECTORS = 4  # vectors of columns that are summed at a time
_FEW = 64  # fewer vectors are summed in one vector of columns, since adding up columns takes longer
_MERGED = 64  # columns per job that merges parts
_NONE = np.zeros(0, statistics.FINAL)
_NAMES = ("part", "merge", "final", "piece")


def steps(operation: Norm, outputs: Arrays, inputs: Arrays, target: Target) -> list[Step]:
    """Return the native steps of a norm; an output may be input 0."""
    if not operation.per_position:
        return [_over_positions(operation, outputs, inputs, target)]
    results = []
    for image in range(len(inputs[0])):
        part = slice(image, image + 1)
        read = [array[part] if len(array) > 1 else array for array in inputs]
        written = [array[part] for array in outputs]
        results.append(_per_position(operation, written, read, target))
    return results


class _Plan(NamedTuple):
    """The steps that normalize an image in rows of `columns` columns: parts to sum, sums to merge,
    means to compute, pieces of the chain and, if possible, units that combine all of these."""

    columns: int
    row_bytes: int
    parts: NDArray[Any]
    merges: NDArray[Any]
    finals: NDArray[Any]
    pieces: NDArray[Any]
    units: NDArray[Any]


def _over_positions(operation: Norm, outputs: Arrays, inputs: Arrays, target: Target) -> Step:
    """Return the step of a norm over all positions."""
    arrays, batch = (*inputs, *outputs), len(inputs[0])
    layout, threads, cpu = target
    matrices = Matrices.of(arrays, layout, by_channel=True, by_image=True, lanes=cpu.lanes(4))
    entries = matrices.rows if matrices.per_row else matrices.length
    computed = computed_type(arrays)
    lanes, itemsize = cpu.lanes(BYTES[computed]), BYTES[computed]
    plan = (_channels_first if layout is DataLayout.NCX else _channels_last)(
        inputs[0], matrices, operation.groups, lanes
    )
    plane = -(-plan.columns // lanes) * lanes
    sums = np.empty((batch, len(plan.parts) + 1, 3, plane))
    part = statistics.part_code(stored_type(inputs[0]), computed, cpu)
    codes = part, statistics.merge_code(cpu), statistics.final_code(computed, cpu)
    values = {
        "columns": plan.columns, "plane": plane, "x_row": plan.row_bytes,
        "sums": sums.ctypes.data, "sums_image": sums.strides[0],
        "copies": matrices.tiles, "copy_bytes": entries // matrices.tiles * itemsize,
        **{f"{n}_code": c.addresses[n] for n, c in zip(_NAMES, codes, strict=False)},
    }  # fmt: skip
    # Use units only if they keep all threads busy and fit in the cache.
    count, nbytes = batch * len(plan.units), sum(a.nbytes for a in arrays) // batch
    even = count % threads == 0 or count >= 4 * threads
    if not even or nbytes // len(plan.units) > cpu.l2 // 2:
        pieces = matrices.pieces(max(a.itemsize for a in arrays), threads)
        plan = plan._replace(pieces=pieces, units=_NONE)
    return _step(operation, outputs, inputs, target, matrices, plan, values, (sums, *codes))


def _channels_first(x: Array, matrices: Matrices, groups: int, lanes: int) -> _Plan:
    """Return the plan for channels first, where a group is contiguous: rows of a few vectors."""
    group = x[0].size // groups
    columns = min(lanes if group < _FEW * lanes else _VECTORS * lanes, group)
    rows, rest = divmod(group, columns)
    row_bytes = columns * x.itemsize
    parts = _parts(rows, rest, row_bytes, x.nbytes)
    count = len(parts)
    parts = np.tile(parts, groups)
    number = np.arange(groups)
    parts["start"] += np.repeat(number * group * x.itemsize, count)
    parts["slot"] = np.arange(len(parts))
    entries = (matrices.rows if matrices.per_row else matrices.length) // groups
    finals = records(statistics.FINAL, groups, slot=number * count, slots=count, width=columns,
                      to=number * entries, entries=entries)  # fmt: skip
    where = {"row": number * entries, "rows": entries, "length": matrices.length}
    if not matrices.per_row:
        where = {"column": number * entries, "rows": 1, "length": entries}
    pieces = records(PIECE, groups, **where)
    units = records(statistics.UNIT, groups, part=number * count, parts=count, final=number,
                    finals=1, piece=number, pieces=1)  # fmt: skip
    return _Plan(columns, row_bytes, parts, _NONE, finals, pieces, units)


def _channels_last(x: Array, matrices: Matrices, groups: int, lanes: int) -> _Plan:
    """Return the plan for channels last, where a group is a set of columns of every row.

    All parts are merged into a last slot before the means are computed.
    """
    channels, row_bytes, columns = x.shape[-1], matrices.strides[0][1], matrices.length
    total = matrices.rows * matrices.length + matrices.rest
    if row_bytes == columns * x.itemsize:  # dense, so shorter rows are possible
        columns = min(columns, lcm(channels, lanes))
        row_bytes = columns * x.itemsize
    parts = _parts(*divmod(total, columns), row_bytes, x.nbytes)
    parts["slot"] = np.arange(len(parts))
    width, number = channels // groups, np.arange(groups)
    first = np.arange(0, channels, _MERGED)
    merges = records(statistics.MERGE, len(first), column=first, slots=len(parts), to=len(parts),
                      width=np.minimum(_MERGED, channels - first), repeats=columns // channels,
                      apart=channels)  # fmt: skip
    first = number * width
    finals = records(statistics.FINAL, groups, slot=len(parts), slots=1, column=first, width=width,
                     to=first, entries=width)  # fmt: skip
    pieces = records(PIECE, 2, row=(0, matrices.rows), rows=(matrices.rows, 1),
                      length=(matrices.length, matrices.rest))  # fmt: skip
    pieces = pieces[: 1 + (matrices.rest > 0)]
    units = records(statistics.UNIT, 1, parts=len(parts), merges=len(merges), finals=groups,
                     pieces=len(pieces))  # fmt: skip
    return _Plan(columns, row_bytes, parts, merges, finals, pieces, units)


def _parts(rows: int, rest: int, row_bytes: int, nbytes: int) -> NDArray[Any]:
    """Divide rows into parts of several rows; the last part includes the remainder."""
    size = max(_MIN_PART, min(PIECE_BYTES, nbytes // 16))
    count = max(1, size // row_bytes)
    first = np.arange(0, rows, count)
    result = records(
        statistics.PART, len(first), start=first * row_bytes, rows=np.minimum(count, rows - first)
    )
    result["rest"][-1] = rest
    return result


def _per_position(operation: Norm, outputs: Arrays, inputs: Arrays, target: Target) -> Step:
    """Return the step of a norm over the channels of each position, for one image."""
    arrays, x = (*inputs, *outputs), inputs[0]
    layout, threads, cpu = target
    matrices = by_position(arrays, layout, operation.groups)
    computed, by_row = computed_type(arrays), layout is DataLayout.NXC
    make, name = (statistics.rows_code, "rows") if by_row else (statistics.columns_code, "columns")
    code = make(stored_type(x), computed, cpu)
    # A piece of columns reads a segment of every row; segments are as long as L2 allows.
    limit = PIECE_BYTES if by_row else max(PIECE_BYTES, cpu.l2 // 4)
    size = min(limit, x.nbytes // (4 * threads))
    extent, other, unit = matrices.rows, matrices.length, 1
    if not by_row:
        extent, other, unit = other, extent, _VECTORS * cpu.lanes(BYTES[computed])
    count = max(1, size // (other * x.itemsize * unit)) * unit
    first = np.arange(0, extent, count)
    fields = ("row", "rows", "length") if by_row else ("column", "length", "rows")
    numbers = first, np.minimum(count, extent - first), other
    pieces = records(PIECE, len(first), **dict(zip(fields, numbers, strict=True)))
    number = np.arange(len(pieces))
    units = records(statistics.UNIT, len(pieces), part=number, parts=1, piece=number, pieces=1)
    plan = _Plan(0, 0, pieces, _NONE, _NONE, pieces, units)
    values = {"x_row": matrices.strides[0][1], "part_code": code.addresses[name]}
    return _step(operation, outputs, inputs, target, matrices, plan, values, (code,))


def _step(
    operation: Norm, outputs: Arrays, inputs: Arrays, target: Target, matrices: Matrices,
    plan: _Plan, values: dict[str, int], kept: tuple[object, ...],
) -> Step:  # fmt: skip
    """Return the step that carries out a plan, by its units or, without units, in phases."""
    by_row = matrices.per_row != operation.per_position  # one mean per row, else per column
    kind, other = ("row", "column") if by_row else ("column", "row")
    shape = matrices.images, matrices.rows if by_row else matrices.length
    numeric = np.dtype(f"f{BYTES[computed_type((*inputs, *outputs))]}")
    minus_mean, inverse = (np.empty(shape, numeric) for _ in range(2))
    chain: list[tuple[str, Any]] = [("add", Table(kind, minus_mean)), ("mul", Table(kind, inverse))]
    for op in operation.epilogue:
        operand: Any = op.operand
        if operation.per_position and isinstance(operand, np.ndarray):
            operand = Table(other, operand.reshape(operation.groups, -1))
        chain.append((op.name, operand))
    bound = bind(chain, matrices, outputs, inputs)
    code = chain_code(bound.form, statistics.STATISTICS, target.cpu)
    listed = plan.parts, plan.merges, plan.finals, plan.pieces
    tables = {name: as_numbers(table) for name, table in zip(_NAMES, listed, strict=True)}
    values = bound.values | values | {
        "x": inputs[0].ctypes.data, "x_image": matrices.strides[0][0],
        "minus_mean": minus_mean.ctypes.data, "inverse": inverse.ctypes.data,
        "table_image": minus_mean.strides[0],
        "epsilon": unpack("<q", pack("<d", operation.epsilon))[0],
        "piece_code": code.addresses["pointwise"],
        **{f"{name}s": table.ctypes.data for name, table in tables.items()},
    }  # fmt: skip
    jobs = [(values[f"{name}_code"], table) for name, table in tables.items() if len(table)]
    if len(plan.units):
        unit = statistics.unit_code(target.cpu)
        jobs = [(unit.addresses["unit"], as_numbers(plan.units))]
        kept = (unit, *kept)
    phases = [Phase(address, table, outer_count=matrices.images) for address, table in jobs]
    layout = argument_layout(bound.form, statistics.STATISTICS)
    return walk_step(layout, values, phases, target, (code, tables, jobs, *bound.kept, *kept))
