"""The reference engine: NumPy matrix products and col2im, written to be read; the oracle.

Symbols: N batch, G groups, C and F input and output channels of one group, K taps, P input
positions. Every array is looked at as NCX with its channels split by group; another layout is only
another view. With the columns of a piece of the problem, a (F*K, P) matrix per group,

    FORWARD       columns = w^T x;    canvas += columns (col2im);        y = window of the canvas
    INPUT_GRAD    canvas = g;         columns = canvas (im2col);         dx = w columns
    WEIGHT_GRAD   canvas = g;         columns = canvas (im2col);         dw = x columns^T

The *canvas* is the full result of the algebra in geometry.py, extended where a crop is negative; g
and y are a *window* of it. Tap t of input i lies at canvas position s*i + d*t. For taps of one run
of `period` that position is different for every (i, t), so one strided view of the canvas holds a
whole run of taps for all inputs at once, and col2im is one addition per run: k/s of them for k >= s
and dilation 1, not k, and never a loop over positions.

The work is cut into blocks (batch items x groups x output channels, and slabs of the first spatial
axis) whose columns and canvas stay in cache, so memory does not grow with k^n times the input.
Products of 16-bit types are summed in float32. BLAS may use threads of its own; nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ..activations import apply
from ..errors import EngineMissing
from ..geometry import Lattice
from ..problem import Direction, DType, Problem
from .base import Array

_COLUMNS_BYTES = 4 << 20  # a block's columns: about what the last-level cache gives one core
_MOST_COLUMNS_BYTES = 64 << 20  # ... and what they may grow to under a long kernel
_CANVAS_BYTES = 8 << 20
_ENOUGH_POSITIONS = 512  # fewer columns than this starve a matrix product: take more items, rows
_ENOUGH_ROWS = 256  # and likewise its rows: take more channels
_MOST_RANK = (64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32) // 2 - 2


class ReferenceEngine:
    """NumPy on any rank, layout, dtype and direction; refuses nothing that is a `Problem`."""

    name = "reference"

    def fingerprint(self) -> str:
        """The version of NumPy."""
        return f"numpy {np.__version__}"

    def refuses(self, problem: Problem) -> str | None:
        """bfloat16 needs the package ml_dtypes, and the views used here two axes per dimension."""
        if problem.rank > _MOST_RANK:
            return f"it works on at most {_MOST_RANK} spatial axes with NumPy {np.__version__}"
        try:
            _ = problem.dtype.numpy
        except EngineMissing as missing:
            return str(missing)
        return None

    def build(self, problem: Problem, threads: int) -> ReferencePrimitive:
        """Lay out the blocks; milliseconds at most."""
        return ReferencePrimitive(problem)


@dataclass(frozen=True, slots=True)
class _Block:
    """Batch items, groups and output channels (of every group in the block) computed together."""

    items: slice
    groups: slice
    channels: slice

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many of each."""
        return _count(self.items), _count(self.groups), _count(self.channels)


class ReferencePrimitive:
    """One problem laid out in blocks; see the module's docstring. Holds no memory."""

    resident_bytes = 4096  # this object and its small tuples, about

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.lattices = tuple(Lattice.of(axis) for axis in problem.axes)
        self.kernel = problem.kernel
        self.taps = prod(self.kernel)
        self.size = tuple(lattice.size for lattice in self.lattices)
        self.positions = prod(self.size)
        self.canvas_size = tuple(lattice.length for lattice in self.lattices)
        self.window: Any = (..., *(lattice.window for lattice in self.lattices))
        self.inputs: Any = (..., *(lattice.inputs for lattice in self.lattices))
        self.axis_runs = [lattice.runs() for lattice in self.lattices]
        self.is_tiled = all(lattice.is_tiled for lattice in self.lattices)
        self.dtype = problem.dtype.accumulator.numpy
        self.in_per_group = problem.in_channels // problem.groups
        self.out_per_group = problem.out_channels // problem.groups
        self.steps, self.slab = self._block_steps()
        self.workspace_bytes = self._workspace_bytes()

    def pack(self, weight: Array) -> Array:
        """The weight as (G, C, F, *kernel) in the accumulator's type; a view where that is one."""
        return np.ascontiguousarray(self._grouped_weight(weight), dtype=self.dtype)

    def close(self) -> None:
        """Nothing is held."""

    def run(
        self,
        out: Array,
        a: Array,
        b: Array,
        bias: Array | None = None,
        residual: Array | None = None,
    ) -> None:
        """Compute into `out`; see `Primitive.run`."""
        with np.errstate(all="ignore"):  # overflow to infinity and NaN are results, not accidents
            if self.problem.direction is Direction.WEIGHT_GRAD:
                self._weight_grad(out, a, b)
                return
            extra = None if residual is None else self._grouped(residual)
            if self.problem.direction is Direction.FORWARD:
                self._forward(self._grouped(out), self._grouped(a), b, self._per_group(bias), extra)
            else:
                self._input_grad(
                    self._grouped(out), self._grouped(a), b, self._per_group(bias), extra
                )

    # The three directions -------------------------------------------------------------------------

    def _forward(
        self, y: Array, x: Array, w: Array, bias: Array | None, residual: Array | None
    ) -> None:
        x = self._accumulable(x[self.inputs])
        weights = w.reshape(*w.shape[:2], self.out_per_group * self.taps)
        in_place = self._is_canvas(y) and not self.problem.accumulate
        for block in self._blocks():
            place: Any = (block.items, block.groups, block.channels)
            canvas = y[place] if in_place else self._new_canvas(block)
            start = None if bias is None else _over_space(bias[place[1:]], canvas.ndim)
            if not self.is_tiled:
                canvas[...] = 0 if start is None else start
            rows = weights[block.groups, :, self._weight_columns(block)].swapaxes(1, 2)
            for slab in self._slabs():
                columns = _product(rows, self._positions_of(x, block, slab))
                self._col2im(canvas, columns, block, slab, start)
            result = canvas if in_place else canvas[self.window]
            target = canvas if in_place else y[place]
            self._finish(target, result, None if residual is None else residual[place])

    def _input_grad(
        self, dx: Array, g: Array, w: Array, bias: Array | None, residual: Array | None
    ) -> None:
        weights = w.reshape(*w.shape[:2], self.out_per_group * self.taps)
        for items, groups in product(*self._cut(("items", "groups"))):
            place = (items, groups)
            counts = (_count(items), _count(groups))
            result = np.zeros((*counts, *dx.shape[2:]), self.dtype)
            if bias is not None:
                result += _over_space(bias[groups], result.ndim)
            reached = result[self.inputs]
            for channels in self._cut(("channels",))[0]:
                block = _Block(items, groups, channels)
                canvas = self._filled_canvas(g, block)
                rows = weights[groups, :, self._weight_columns(block)]
                for slab in self._slabs():
                    part = _product(rows, self._im2col(canvas, block, slab))
                    part = part.reshape(*part.shape[:2], counts[0], -1, *self.size[1:])
                    reached[:, :, :, slab] += np.moveaxis(part, 2, 0)
            self._finish(dx[place], result, None if residual is None else residual[place])

    def _weight_grad(self, dw: Array, g: Array, x: Array) -> None:
        g, x = self._grouped(g), self._accumulable(self._grouped(x)[self.inputs])
        dw = self._grouped_weight(dw)
        for groups, channels in product(*self._cut(("groups", "channels"))):
            total: Array | float = 0.0
            for items in self._cut(("items",))[0]:
                block = _Block(items, groups, channels)
                canvas = self._filled_canvas(g, block)
                for slab in self._slabs():
                    columns = self._im2col(canvas, block, slab)
                    total = total + _product(
                        self._positions_of(x, block, slab), columns.swapaxes(1, 2)
                    )
            place = dw[groups, :, channels]
            self._store(place, np.asarray(total).reshape(place.shape) if np.ndim(total) else total)

    # Columns and canvas ---------------------------------------------------------------------------

    def _col2im(
        self, canvas: Array, columns: Array, block: _Block, slab: slice, start: Array | None
    ) -> None:
        """Add every column to the positions its taps lie at, or set them where each is met once."""
        columns = self._as_taps(columns, block, slab)
        for taps in product(*self.axis_runs):
            view = self._lattice_view(canvas, taps, slab)
            values = columns[(slice(None), slice(None), *taps)]
            if not self.is_tiled:
                view += values
            elif start is None:
                view[...] = values
            else:
                np.add(values, self._like_columns(start), out=view)

    def _im2col(self, canvas: Array, block: _Block, slab: slice) -> Array:
        """The (G, F*K, N*P) columns of a slab, gathered from the canvas."""
        items, groups, channels = block.counts
        rows = _count(slab)
        shape = (groups, channels, *self.kernel, items, rows, *self.size[1:])
        columns = np.empty(shape, self.dtype)
        for taps in product(*self.axis_runs):
            columns[(slice(None), slice(None), *taps)] = self._lattice_view(canvas, taps, slab)
        return columns.reshape(groups, channels * self.taps, items * prod(shape[-len(self.size) :]))

    def _as_taps(self, columns: Array, block: _Block, slab: slice) -> Array:
        items, groups, channels = block.counts
        rows = _count(slab)
        return columns.reshape(groups, channels, *self.kernel, items, rows, *self.size[1:])

    def _lattice_view(self, canvas: Array, taps: tuple[slice, ...], slab: slice) -> Array:
        """The canvas (N, G, F, *length) seen as (G, F, *taps, N, *inputs) for one run of taps."""
        starts, counts, tap_strides, input_strides = [], [], [], []
        for lattice, run, step in zip(self.lattices, taps, canvas.strides[3:], strict=True):
            starts.append(lattice.origin + lattice.dilation * run.start)
            counts.append(_count(run))
            tap_strides.append(lattice.dilation * step)
            input_strides.append(lattice.stride * step)
        starts[0] += self.lattices[0].stride * slab.start
        items, groups, channels = canvas.shape[:3]
        by_item, by_group, by_channel = canvas.strides[:3]
        corner_index: Any = (..., *(slice(start, None) for start in starts))
        return np.lib.stride_tricks.as_strided(
            canvas[corner_index],
            (groups, channels, *counts, items, _count(slab), *self.size[1:]),
            (by_group, by_channel, *tap_strides, by_item, *input_strides),
        )

    def _like_columns(self, per_channel: Array) -> Array:
        """(1, G, F, 1...) seen as (G, F, *taps, N, *inputs)."""
        groups, channels = per_channel.shape[1:3]
        return per_channel.reshape(groups, channels, *[1] * (2 * len(self.size) + 1))

    def _new_canvas(self, block: _Block) -> Array:
        return np.empty((*block.counts, *self.canvas_size), self.dtype)

    def _filled_canvas(self, g: Array, block: _Block) -> Array:
        """The block's part of g in a canvas, zero around it; g itself where that is the same."""
        part = g[block.items, block.groups, block.channels]
        if self._is_canvas(g):
            return part
        canvas = self._new_canvas(block)
        canvas[...] = 0
        canvas[self.window] = part
        return canvas

    def _is_canvas(self, y: Array) -> bool:
        """Whether y or g can serve as the canvas: nothing cut or added, the type to compute in."""
        return y.dtype == self.dtype and y.shape[3:] == self.canvas_size and bool(self.positions)

    # Results --------------------------------------------------------------------------------------

    def _finish(self, out: Array, result: Array, residual: Array | None) -> None:
        """Residual, activation, and into `out`."""
        if residual is not None:
            result += residual.astype(self.dtype, copy=False)
        epilogue = self.problem.epilogue
        apply(epilogue.activation, epilogue.slope, result)
        self._store(out, result)

    def _store(self, out: Array, result: Array | float) -> None:
        if self.problem.accumulate:
            out[...] = out.astype(self.dtype, copy=False) + result
        elif result is not out:
            out[...] = result

    # Views ----------------------------------------------------------------------------------------

    def _grouped(self, data: Array) -> Array:
        """x, y or g as (N, G, channels of a group, *size), a view."""
        ncx = data.transpose(self.problem.layout.to_ncx(self.problem.rank))
        groups = self.problem.groups
        return ncx.reshape(ncx.shape[0], groups, ncx.shape[1] // groups, *ncx.shape[2:])

    def _grouped_weight(self, weight: Array) -> Array:
        """w or dw as (G, C, F, *kernel), a view."""
        iox = weight.transpose(self.problem.weight_layout.to_iox(self.problem.rank))
        return iox.reshape(self.problem.groups, self.in_per_group, *iox.shape[1:])

    def _per_group(self, bias: Array | None) -> Array | None:
        return None if bias is None else bias.reshape(self.problem.groups, -1).astype(self.dtype)

    def _accumulable(self, data: Array) -> Array:
        return data.astype(self.dtype, copy=False)

    def _weight_columns(self, block: _Block) -> slice:
        return slice(block.channels.start * self.taps, block.channels.stop * self.taps)

    def _positions_of(self, x: Array, block: _Block, slab: slice) -> Array:
        """The block's x as (G, C, N*P), copied only to bring batch items together."""
        part = np.moveaxis(x[block.items, block.groups, :, slab], 0, 2)
        return part.reshape(*part.shape[:2], prod(part.shape[2:]))

    # Blocks ---------------------------------------------------------------------------------------

    def _block_steps(self) -> tuple[dict[str, int], int]:
        """How many items, groups and channels a block has at most, and how many rows a slab."""
        problem, width = self.problem, self.dtype.itemsize
        canvas = max(1, width * prod(self.canvas_size))
        per_item = max(1, width * self.taps * self.positions)  # columns of one channel
        items = _within(
            problem.batch, -(-_ENOUGH_POSITIONS // max(1, self.positions)), _CANVAS_BYTES // canvas
        )
        wanted = max(_COLUMNS_BYTES // (per_item * items), -(-_ENOUGH_ROWS // self.taps))
        channels = _within(self.out_per_group, wanted, _CANVAS_BYTES // (canvas * items))
        groups = 1
        if channels == self.out_per_group:
            block = channels * items
            wanted = _COLUMNS_BYTES // (per_item * block)
            groups = _within(problem.groups, wanted, _CANVAS_BYTES // (canvas * block))
        rows = self.size[0]
        per_row = max(1, per_item * items * channels * groups // max(1, rows))
        positions_per_row = max(1, self.positions // max(1, rows))
        enough = -(-_ENOUGH_POSITIONS // positions_per_row)  # a slab costs a step per run of taps
        fitting = max(_COLUMNS_BYTES // per_row, min(enough, _MOST_COLUMNS_BYTES // per_row))
        slab = _within(rows, rows, fitting)
        return {"items": items, "groups": groups, "channels": channels}, slab

    def _cut(self, names: tuple[str, ...]) -> list[list[slice]]:
        problem = self.problem
        totals = {"items": problem.batch, "groups": problem.groups, "channels": self.out_per_group}
        return [_slices(totals[name], self.steps[name]) for name in names]

    def _blocks(self) -> Iterator[_Block]:
        for items, groups, channels in product(*self._cut(("items", "groups", "channels"))):
            yield _Block(items, groups, channels)

    def _slabs(self) -> list[slice]:
        """Slabs of the first spatial axis; none at all when there is no input position."""
        return _slices(self.size[0], self.slab) if self.positions else []

    def _workspace_bytes(self) -> int:
        """An upper bound of what one run allocates at a time."""
        problem, width = self.problem, self.dtype.itemsize
        block = prod(self.steps.values())
        per_position = self.steps["items"] * self.steps["groups"]
        slab_positions = self.slab * prod(self.size[1:])
        columns = block * self.taps * slab_positions
        canvas = block * prod(self.canvas_size)
        inputs = per_position * self.in_per_group * slab_positions
        whole = 0
        if problem.dtype is not DType.FLOAT32 and problem.dtype is not DType.FLOAT64:
            whole = prod(problem.x_shape)  # 16-bit x in the accumulator's type
        if problem.direction is Direction.INPUT_GRAD:
            inputs += per_position * self.in_per_group * prod(problem.size)
        if problem.direction is Direction.WEIGHT_GRAD:
            inputs += (
                2 * self.steps["groups"] * self.in_per_group * self.steps["channels"] * self.taps
            )
        return width * (columns + canvas + inputs + whole)


def _product(a: Array, b: Array) -> Array:
    """a @ b for stacks of matrices; a sum of one product needs no BLAS call per matrix."""
    result: Array = a * b if a.shape[-1] == 1 else np.matmul(a, b)
    return result


def _over_space(per_channel: Array, ndim: int) -> Array:
    """(G, F) as (1, G, F, 1, ...) of `ndim` axes."""
    return per_channel.reshape(1, *per_channel.shape, *[1] * (ndim - 3))


def _within(total: int, wanted: int, allowed: int) -> int:
    """A part of `total`, near min(wanted, allowed) and at least 1, that cuts it evenly."""
    most = max(1, min(total, wanted, allowed))
    return max(1, -(-total // -(-total // most))) if total else 1


def _count(part: slice) -> int:
    return int(part.stop - part.start)


def _slices(total: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, total)) for start in range(0, total, step)]
