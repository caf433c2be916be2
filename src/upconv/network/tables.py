"""Tables of records that native code reads, and the step that walks over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..engines.jit.cpu import Cpu
from ..engines.jit.kernel_arguments import ArgumentLayout
from ..engines.jit.moves import IMAGE, LAYOUT, PART
from ..engines.jit.packing import Numbers, aligned
from ..engines.jit.steps import Step
from ..engines.jit.values import DOUBLE, FLOAT, I16, STORED
from ..engines.jit.walk import Phase, phases, walk_code
from ..problem import DataLayout, DType
from .graph import Array
from .matrices import image_stride

Arrays = Sequence[Array]
PART_BYTES = 32 << 10
_BEGIN: Array = np.zeros(1, np.int64)


class Target(NamedTuple):
    """The target of a step: the layout of its arrays, the thread count and the processor."""

    layout: DataLayout
    threads: int
    cpu: Cpu


def records(kind: np.dtype[Any], count: int, **fields: Any) -> NDArray[Any]:
    """Create a table of `count` records; other fields are zero."""
    result = np.zeros(count, kind)
    for name, numbers in fields.items():
        result[name] = numbers
    return result


def as_numbers(table: NDArray[Any]) -> Numbers:
    """View a table of 64-bit fields as a matrix of integers, as walks require."""
    return table.view(np.int64).reshape(len(table), table.itemsize // 8)


def walk_step(
    layout: ArgumentLayout, values: dict[str, int], listed: Sequence[Phase], target: Target,
    kept: tuple[object, ...],
) -> Step:  # fmt: skip
    """Return a step that walks through phases, with these values in its argument block."""
    table: Numbers = phases(target.threads, *listed)
    walk = walk_code(target.cpu)
    block = layout.block(phases=table.ctypes.data, phase_count=len(table), **values)
    last, jobs = len(table) - 1, int(table[-1, 1])
    over = block.address + 8 * layout.indices[f"over_{last}"]
    entering = min(target.threads, int(table[:, 1].max()))
    return Step(block, entering, over, jobs, kept=(walk, table, *kept))


class StepTables:
    """The builder of a step and its tables."""

    def __init__(self, out: Array, x: Array) -> None:
        self.values = {"x": x.ctypes.data, "y": out.ctypes.data}
        self._kept: list[object] = [out, x]

    def add(self, **tables: NDArray[Any]) -> None:
        """Add tables, whose addresses become values of the argument block."""
        for name, table in tables.items():
            self.values[name] = table.ctypes.data
            self._kept.append(table)

    def step(
        self, code: Any, name: str, parts: NDArray[Any], images: NDArray[Any], target: Target,
        *kept: object, part: int = 0,
    ) -> Step:  # fmt: skip
        """Build a step with one phase; each thread has `part` bytes of scratch memory."""
        jobs = (as_numbers(parts), as_numbers(images))
        phase = Phase(code.addresses[name], *jobs)
        threads = min(target.threads, len(parts) * len(images))
        target = target._replace(threads=threads)
        scratch = aligned(threads * part // 8, np.dtype(np.float64)) if part else None
        if scratch is not None:
            self.values |= {"scratch": scratch.ctypes.data, "part": part}
        everything = (code, jobs, scratch, *self._kept, *kept)
        return walk_step(LAYOUT, self.values, [phase], target, everything)


def images(out: Array, x: Array, sources: Array = _BEGIN, to: int = 0) -> NDArray[Any]:
    """Return the byte offsets of two arrays' images, or of the parts of each image.

    sources: each part's offset in an image of x; parts of the result are `to` bytes apart.
    """
    n, part = (axis.ravel() for axis in np.mgrid[0 : len(x), 0 : len(sources)])
    return records(IMAGE, len(n), src=n * image_stride(x) + sources[part],
                   dst=n * image_stride(out) + part * to)  # fmt: skip


def job_parts(rows: int, width: int, unit: int, nbytes: int) -> NDArray[Any]:
    """Divide rows into jobs of several rows, or of a multiple of `unit` columns of one row."""
    columns = min(width, max(1, PART_BYTES // nbytes // unit) * unit)
    count = max(1, PART_BYTES // (columns * nbytes)) if columns == width else 1
    row, column = (axis.ravel() for axis in np.mgrid[0:rows:count, 0:width:columns])
    return records(PART, len(row), row=row, rows=np.minimum(count, rows - row), column=column,
                   columns=np.minimum(columns, width - column))  # fmt: skip


def elements(x: Array, reduce: str) -> tuple[str, str]:
    """Return the types for loading and computing. Elements that only move are loaded as integers,
    since not every processor supports bfloat16."""
    if reduce == "pick":
        return ({2: I16, 4: FLOAT, 8: DOUBLE}[x.itemsize],) * 2
    return stored_type(x), computed_type([x])


def stored_type(array: Array) -> str:
    """Return the type in which steps load and store an array's elements."""
    return STORED[DType(array.dtype.name)]


def computed_type(arrays: Arrays) -> str:
    """Return the type in which steps compute on these arrays."""
    return DOUBLE if any(array.dtype == np.float64 for array in arrays) else FLOAT
