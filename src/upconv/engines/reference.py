"""The reference engine: NumPy matrix products and col2im, written to be read; the oracle.

Symbols: N batch, G groups, C and F input and output channels of one group, K taps, P input
positions. Every array is looked at as NCX with its channels split by group; another layout is only
another view. With the columns of a piece of the problem, a (F*K, P) matrix per group,

    FORWARD       columns = w^T x;    padded += columns (col2im);        y = window of padded
    INPUT_GRAD    padded = g;         columns = padded (im2col);         dx = w columns
    WEIGHT_GRAD   padded = g;         columns = padded (im2col);         dw = x columns^T

The *padded output* is the full result of the algebra in geometry.py, extended where a crop is
negative; g and y are a *window* of it. Tap t of input i lies at its position s*i + d*t. A set of
taps and inputs whose positions are all different is *conflict-free* (`IndexSet.conflict_free`). One
strided view holds a whole set, and col2im is one addition per set: for dilation 1 that is k/s of
them along an axis, not k, and never a loop over positions. Taps and inputs that reach no output are
left out.

The work is cut into blocks (batch items x groups x output channels) and boxes of inputs whose
columns and padded output stay in cache, so memory does not grow with k^n times the input. Products
of 16-bit types are summed in float32. BLAS may use threads of its own; nothing else does.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from .. import memory
from ..activations import SCRATCH_BYTES, Activation, apply
from ..errors import EngineMissing
from ..problem import Direction, Problem
from .base import Array
from .blocks import Block, Blocking, count
from .im2col import Box, Im2col, IndexSet, box_size

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

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """Blocks follow from the problem alone."""
        return ("",)

    def build(self, problem: Problem, threads: int, variant: str = "") -> ReferencePrimitive:
        """Lay out the blocks; milliseconds at most."""
        return ReferencePrimitive(problem)


class ReferencePrimitive:
    """One problem laid out in blocks; see the module's docstring. Holds no memory."""

    resident_bytes = 4096  # this object and its small tuples, about
    predicted_cycles = 0.0  # there is no model: the work is NumPy's

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.index_sets = tuple(IndexSet.of(axis) for axis in problem.axes)
        self.kernel = tuple(index_set.kernel for index_set in self.index_sets)
        self.taps = prod(self.kernel)
        self.size = tuple(index_set.size for index_set in self.index_sets)
        self.positions = prod(self.size)
        self.padded_size = tuple(index_set.length for index_set in self.index_sets)
        self.window: Any = (..., *(index_set.window for index_set in self.index_sets))
        self.inputs: Any = (..., *(index_set.inputs for index_set in self.index_sets))
        self.used_taps: Any = (..., *(index_set.taps for index_set in self.index_sets))
        self.is_tiled = all(index_set.is_tiled for index_set in self.index_sets)
        self.dtype = problem.dtype.accumulator.numpy
        self.in_per_group = problem.in_channels // problem.groups
        self.out_per_group = problem.out_channels // problem.groups
        self.im2col = Im2col(self.index_sets)
        self.blocking = Blocking.of(
            (problem.batch, problem.groups, self.out_per_group),
            size=self.size,
            taps=self.taps,
            padded_bytes=self.dtype.itemsize * prod(self.padded_size),
            width=self.dtype.itemsize,
        )
        self.workspace_bytes = self._workspace_bytes()
        self.description = self._description()

    def pack(self, weight: Array) -> Array:
        """The weight as (G, C, F*taps) in the accumulator's type; a view where that is one."""
        if not self.positions:  # no tap is used either
            return np.empty((self.problem.groups, self.in_per_group, 0), self.dtype)
        used = self._grouped_weight(weight)[self.used_taps]
        if used.dtype != self.dtype or not used.flags.c_contiguous:
            memory.require(used.size * self.dtype.itemsize, "the packed weight")
        packed = np.ascontiguousarray(used, dtype=self.dtype)
        return packed.reshape(*packed.shape[:2], self.out_per_group * self.taps)

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
            result, operand = self._grouped(out), self._grouped(a)
            grouped_bias = None
            if bias is not None:
                grouped_bias = bias.reshape(self.problem.groups, -1).astype(self.dtype)
            extra = None if residual is None else self._grouped(residual)
            forward = self.problem.direction is Direction.FORWARD
            compute = self._forward if forward else self._input_grad
            compute(result, operand, b, grouped_bias, extra)

    # The three directions -------------------------------------------------------------------------

    def _forward(
        self, y: Array, x: Array, w: Array, bias: Array | None, residual: Array | None
    ) -> None:
        x = x[self.inputs].astype(self.dtype, copy=False)
        for block in self.blocking.blocks():
            place: Any = (block.items, block.groups, block.channels)
            rows = w[block.groups, :, self._weight_columns(block)].swapaxes(1, 2)
            start = None if bias is None else _over_space(bias[place[1:]], y.ndim)
            extra = None if residual is None else residual[place]
            self._forward_block(y[place], x, rows, block, start, extra)

    def _forward_block(
        self,
        y: Array,
        x: Array,
        rows: Array,
        block: Block,
        start: Array | None,
        residual: Array | None,
    ) -> None:
        """One block of y: on y itself where it can be the padded output."""
        in_place = self._is_padded(y) and not self.problem.accumulate
        padded = y if in_place else self._new_padded(block)
        if not self.is_tiled:
            padded[...] = 0 if start is None else start
        for box in self.blocking.boxes():
            self._col2im(padded, _product(rows, self._inputs(x, block, box)), block, box, start)
        self._finish(y, padded if in_place else padded[self.window], residual)

    def _input_grad(
        self, dx: Array, g: Array, w: Array, bias: Array | None, residual: Array | None
    ) -> None:
        for items, groups in product(self.blocking.items(), self.blocking.groups()):
            place = (items, groups)
            result = np.zeros((count(items), count(groups), *dx.shape[2:]), self.dtype)
            if bias is not None:
                result += _over_space(bias[groups], result.ndim)
            for channels in self.blocking.channels():
                block = Block(items, groups, channels)
                rows = w[groups, :, self._weight_columns(block)]
                self._input_grad_block(result[self.inputs], g, rows, block)
            self._finish(dx[place], result, None if residual is None else residual[place])
            del result  # before the next one is made

    def _input_grad_block(self, reached: Array, g: Array, rows: Array, block: Block) -> None:
        """Add what one block of output channels gives to the inputs that reach outputs."""
        padded = self._padded_gradient(g, block)
        for box in self.blocking.boxes():
            part = _product(rows, self._im2col(padded, block, box))
            part = part.reshape(*part.shape[:2], count(block.items), *box_size(box))
            place: Any = (..., *box)
            reached[place] += np.moveaxis(part, 2, 0)
            del part  # before the next one is made

    def _weight_grad(self, dw: Array, g: Array, x: Array) -> None:
        g = self._grouped(g)
        x = self._grouped(x)[self.inputs].astype(self.dtype, copy=False)
        dw = self._grouped_weight(dw)
        if not self.problem.accumulate:
            dw[...] = 0  # taps that reach nothing
        for groups, channels in product(self.blocking.groups(), self.blocking.channels()):
            columns = count(channels) * self.taps
            total = np.zeros((count(groups), self.in_per_group, columns), self.dtype)
            for items in self.blocking.items():
                self._weight_grad_block(total, g, x, Block(items, groups, channels))
            place = dw[groups, :, channels][self.used_taps]
            if self.positions:
                self._store(place, total.reshape(place.shape))
            del total  # before the next one is made

    def _weight_grad_block(self, total: Array, g: Array, x: Array, block: Block) -> None:
        """Add what one block gives to the gradient of its part of the weight."""
        padded = self._padded_gradient(g, block)
        for box in self.blocking.boxes():
            columns = self._im2col(padded, block, box)
            total += _product(self._inputs(x, block, box), columns.swapaxes(1, 2))
            del columns  # before the next ones are made

    # Im2col and padded output ---------------------------------------------------------------------

    def _col2im(
        self, padded: Array, columns: Array, block: Block, box: Box, start: Array | None
    ) -> None:
        """Add every column to the positions its taps lie at, or set them where each is met once."""
        columns = columns.reshape(self.im2col.shape(block.counts, box))
        for view, values in self.im2col.views(padded, columns, box):
            if not self.is_tiled:
                view += values
            elif start is None:
                view[...] = values
            else:
                np.add(values, self._like_columns(start), out=view)

    def _im2col(self, padded: Array, block: Block, box: Box) -> Array:
        """The (G, F*taps, N*P) columns of a box, gathered from the padded output."""
        columns = np.empty(self.im2col.shape(block.counts, box), self.dtype)
        for view, values in self.im2col.views(padded, columns, box):
            values[...] = view
        items, groups, channels = block.counts
        positions = items * prod(box_size(box))
        return columns.reshape(groups, channels * self.taps, positions)

    def _like_columns(self, per_channel: Array) -> Array:
        """(1, G, F, 1...) seen as (G, F, *taps, N, *inputs)."""
        groups, channels = per_channel.shape[1:3]
        return per_channel.reshape(groups, channels, *[1] * (2 * len(self.size) + 1))

    def _new_padded(self, block: Block) -> Array:
        return np.empty((*block.counts, *self.padded_size), self.dtype)

    def _padded_gradient(self, g: Array, block: Block) -> Array:
        """The block's part of g, zero around it; g itself where that is the same."""
        part = g[block.items, block.groups, block.channels]
        if self._is_padded(g):
            return part
        padded = self._new_padded(block)
        padded[...] = 0
        padded[self.window] = part
        return padded

    def _is_padded(self, y: Array) -> bool:
        """Whether y or g can be the padded output: nothing cut or added, the type to compute in."""
        return y.dtype == self.dtype and y.shape[3:] == self.padded_size and bool(self.positions)

    # Results --------------------------------------------------------------------------------------

    def _finish(self, out: Array, result: Array, residual: Array | None) -> None:
        """Residual, activation, and into `out`."""
        if residual is not None:
            np.add(result, residual, out=result, casting="unsafe")
        epilogue = self.problem.epilogue
        apply(epilogue.activation, epilogue.slope, result)
        self._store(out, result)

    def _store(self, out: Array, result: Array) -> None:
        if self.problem.accumulate:
            np.add(out, result, out=out, casting="unsafe")
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

    def _weight_columns(self, block: Block) -> slice:
        return slice(block.channels.start * self.taps, block.channels.stop * self.taps)

    def _inputs(self, x: Array, block: Block, box: Box) -> Array:
        """The block's x as (G, C, N*P), copied only where its positions do not lie in a row."""
        place: Any = (block.items, block.groups, slice(None), *box)
        part = np.moveaxis(x[place], 0, 2)
        positions: Array = part.reshape(*part.shape[:2], prod(part.shape[2:]))
        return positions

    def _description(self) -> str:
        (items, groups, channels), box = self.blocking.steps, self.blocking.box
        return (
            f"matrix products on blocks of {items} batch items x {groups} groups x {channels}"
            f" output channels, boxes of {'x'.join(map(str, box))} inputs"
        )

    def _workspace_bytes(self) -> int:
        """An upper bound of what one run allocates at a time, activations' scratch included."""
        problem, positions = self.problem, prod(self.blocking.box)
        items, groups, channels = self.blocking.steps
        columns = items * groups * channels * self.taps * positions
        padded = items * groups * channels * prod(self.padded_size)
        inputs = items * groups * self.in_per_group * positions
        elements = columns + padded + inputs
        if problem.dtype.accumulator is not problem.dtype:
            elements += prod(problem.x_shape)  # 16-bit x in the accumulator's type
        if problem.direction is Direction.INPUT_GRAD:
            elements += items * groups * self.in_per_group * prod(problem.size)
        if problem.direction is Direction.WEIGHT_GRAD:
            elements += 2 * groups * self.in_per_group * channels * self.taps
        plain = problem.epilogue.activation is Activation.NONE
        return self.dtype.itemsize * elements + (0 if plain else SCRATCH_BYTES)


def _product(a: Array, b: Array) -> Array:
    """a @ b for stacks of matrices; a sum of one product needs no BLAS call per matrix."""
    result: Array = a * b if a.shape[-1] == 1 else np.matmul(a, b)
    return result


def _over_space(per_channel: Array, ndim: int) -> Array:
    """(G, F) as (1, G, F, 1, ...) of `ndim` axes."""
    return per_channel.reshape(1, *per_channel.shape, *[1] * (ndim - 3))
