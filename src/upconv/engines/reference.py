"""The reference engine, the oracle in tests: NumPy matrix products and col2im, easy to read.

Symbols: N batch, G groups, C and F input and output channels per group, T taps, P input
positions. Every array is viewed as NCX with its channels split by group; another layout is only
another view. The *padded output* is the full result of the algebra in geometry.py, extended where
a crop is negative; g and y are a *window* of it. Tap t of input i is at its position s*i + d*t.

A set of taps and inputs whose positions are all different is *conflict-free*
(`IndexSet.conflict_free`): its *columns*, one (F*T, N*P) matrix per group, are a strided view of
the padded output. With dilation 1 an axis has k/s sets. No loop runs over positions.
With the columns of all sets at once, or set by set where all would take too much memory,

    FORWARD       columns = w^T x;            padded output += columns;   y = window of it
    INPUT_GRAD    columns = padded gradient;  dx += w columns
    WEIGHT_GRAD   columns = padded gradient;  dw += x columns^T

Taps and inputs that reach no output are left out. The work is cut into blocks (batch items x groups
x output channels) whose columns and padded output fit in cache. A set's columns are no larger than
the padded output, so memory does not grow with k^n times the input. Products of 16-bit types are
summed in float32. Only BLAS may use several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import memory
from ..activations import SCRATCH_BYTES, Activation, apply
from ..errors import EngineMissing
from ..problem import Direction, Problem
from .base import Array, Maybe, tf32_refusal
from .bfloat16_rounding import rounded
from .im2col import ConflictFree, IndexSet, Sets, columns_of, combined

_MAX_RANK = (64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32) // 2 - 2
_BLOCK_BYTES = 8 << 20  # padded output or columns: a core's share of the last-level cache
_MAX_COLUMN_BYTES = 64 << 20  # all sets of one channel together
_MIN_BLOCK_BYTES = 1 << 20  # smaller blocks spend most of their time in Python
_MIN_POSITIONS = 512  # matrix products with fewer columns are slow: take more items


class ReferenceEngine:
    """NumPy for every layout, dtype and direction, and for nearly every rank; see `refuses`."""

    name = "reference"

    def fingerprint(self) -> str:
        """Return NumPy's version."""
        return f"numpy {np.__version__}"

    def refuses(self, problem: Problem) -> str | None:
        """Refuse bfloat16 without the package ml_dtypes, and more axes than NumPy supports."""
        if problem.rank > _MAX_RANK:
            return f"it supports at most {_MAX_RANK} spatial axes with NumPy {np.__version__}"
        try:
            _ = problem.dtype.numpy
        except EngineMissing as missing:
            return str(missing)
        return tf32_refusal(problem)

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """Return only the default: the problem alone determines the blocks."""
        return ("",)

    def build(self, problem: Problem, threads: int, variant: str = "") -> ReferencePrimitive:
        """Lay out the blocks; this takes a few milliseconds at most."""
        return ReferencePrimitive(problem)


class ReferencePrimitive:
    """A problem laid out in blocks (see the module's docstring). It holds no memory."""

    resident_bytes = 4096  # about the size of this object and its small tuples
    predicted_cycles = 0.0  # there is no cost model: NumPy does the work

    def __init__(self, problem: Problem) -> None:
        self.problem, self.dtype = problem, problem.dtype.accumulator.numpy
        self.index_sets = tuple(IndexSet.of(axis) for axis in problem.axes)
        self.padded_size = tuple(index_set.length for index_set in self.index_sets)
        self.window: Any = (..., *(index_set.window for index_set in self.index_sets))
        self.inputs: Any = (..., *(index_set.inputs for index_set in self.index_sets))
        self.used_taps: Any = (..., *(index_set.taps for index_set in self.index_sets))
        self.is_empty = 0 in (index_set.size for index_set in self.index_sets)
        self.is_tiled = all(index_set.is_tiled for index_set in self.index_sets)
        elements = prod(n.kernel * n.size for n in self.index_sets)
        self.columns_bytes = elements * self.dtype.itemsize  # one channel of one item
        self.together = self.columns_bytes <= _MAX_COLUMN_BYTES
        self.steps = self._steps()
        self.workspace_bytes = self._workspace_bytes()
        items, groups, channels = self.steps
        self.description = (
            f"matrix products on blocks of {items} batch items x {groups} groups x {channels}"
            " output channels"
        )

    def pack(self, weight: Array) -> Array:
        """Return the weight as (G, C, F, *taps) in the accumulator's type, a view if possible."""
        if self.problem.rounded:
            weight = rounded("the weight", weight)
        used = self._grouped_weight(weight)[self.used_taps]
        if used.dtype != self.dtype or not used.flags.c_contiguous:
            memory.require(used.size * self.dtype.itemsize, "the packed weight")
        return np.ascontiguousarray(used, dtype=self.dtype)

    def close(self) -> None:
        """Do nothing: the primitive holds no resources."""

    def run(
        self,
        out: Array,
        a: Array,
        b: Any,
        bias: Maybe = None,
        residual: Maybe = None,
        slopes: Maybe = None,
        second: Maybe = None,
    ) -> None:
        """Compute into `out`; see `Primitive.run`."""
        if self.problem.rounded:
            a = rounded("an operand", a)
            b = rounded("x", b) if self.problem.direction is Direction.WEIGHT_GRAD else b
        with np.errstate(all="ignore"):  # overflow to infinity and NaN are results, not accidents
            if self.problem.direction is Direction.WEIGHT_GRAD:
                self._weight_grad(out, a, b)
                return
            result, operand = self._grouped(out), self._grouped(a)
            by_channel = (
                None if v is None else v.reshape(self.problem.groups, -1).astype(self.dtype)
                for v in (bias, slopes)
            )  # fmt: skip
            by_element = (None if v is None else self._grouped(v) for v in (residual, second))
            forward = self.problem.direction is Direction.FORWARD
            compute = self._forward if forward else self._input_grad
            compute(result, operand, b, _End(*by_channel, *by_element))

    # The three directions -------------------------------------------------------------------------

    def _forward(self, y: Array, x: Array, w: Array, epilogue: _End) -> None:
        x = x[self.inputs].astype(self.dtype, copy=False)
        for items, groups, channels in product(*map(_slices, self._totals, self.steps)):
            block, operands = (items, groups, channels), (x[items, groups], w[groups, :, channels])
            self._forward_block(y[block], *operands, epilogue.of(*block))

    def _forward_block(self, y: Array, x: Array, w: Array, epilogue: _End) -> None:
        """Compute one block of y, in place where y can serve as the padded output."""
        start = epilogue.bias
        in_place = self._is_padded(y) and not self.problem.accumulate
        padded = y if in_place else np.empty((*y.shape[:3], *self.padded_size), self.dtype)
        if not self.is_tiled:
            padded[...] = 0 if start is None else _after_channels(start[None], padded.ndim)
        for merged, parts in self._sets():
            values = _product(_weight(w, merged).swapaxes(1, 2), _positions(x, merged))
            values = values.reshape(_shape(y.shape, merged))
            for sets in parts:
                view, some = (
                    columns_of(padded, self.index_sets, sets),
                    values[_within(merged, sets)],
                )
                if not self.is_tiled:
                    view += some
                elif start is None:
                    view[...] = some
                else:
                    np.add(some, _after_channels(start, view.ndim), out=view)
            del values, some  # free them before the next ones are allocated
        self._finish(y, padded if in_place else padded[self.window], epilogue)

    def _input_grad(self, dx: Array, g: Array, w: Array, epilogue: _End) -> None:
        for items, groups in product(*map(_slices, self._totals[:2], self.steps[:2])):
            block_index, block = (items, groups), epilogue.of(items, groups, slice(None))
            result = np.zeros(dx[block_index].shape, self.dtype)
            if block.bias is not None:
                result += _after_channels(block.bias[None], result.ndim)
            for channels in _slices(self._totals[2], self.steps[2]):
                operands = g[(*block_index, channels)], w[block_index[1], :, channels]
                self._input_grad_block(result[self.inputs], *operands)
            self._finish(dx[block_index], result, block)
            del result

    def _input_grad_block(self, reached: Array, g: Array, w: Array) -> None:
        """Add the contribution of one block of output channels to the inputs that reach outputs."""
        padded = self._padded_gradient(g)
        for merged, parts in self._sets():
            columns = self._columns(padded, merged, parts)
            inputs: Any = (..., *(one.inputs for one in merged))
            there = np.moveaxis(reached[inputs], 0, 2)
            there += _product(_weight(w, merged), columns).reshape(there.shape)
            del columns

    def _weight_grad(self, dw: Array, g: Array, x: Array) -> None:
        g, x = self._grouped(g), self._grouped(x)[self.inputs].astype(self.dtype, copy=False)
        dw = self._grouped_weight(dw)
        if not self.problem.accumulate:
            dw[...] = 0  # for taps that reach no output
        for groups, channels in product(*map(_slices, self._totals[1:], self.steps[1:])):
            block_sum = dw[groups, :, channels][self.used_taps]
            total = np.zeros(block_sum.shape, self.dtype)
            for items in _slices(self._totals[0], self.steps[0]):
                self._weight_grad_block(total, g[items, groups, channels], x[items, groups])
            if self.problem.accumulate:
                np.add(block_sum, total, out=total, casting="unsafe")
            block_sum[...] = total
            del total

    def _weight_grad_block(self, total: Array, g: Array, x: Array) -> None:
        """Add one block's contribution to the gradient of its part of the weight."""
        padded = self._padded_gradient(g)
        for merged, parts in self._sets():
            columns = self._columns(padded, merged, parts)
            taps: Any = (..., *(one.taps for one in merged))
            part = _product(_positions(x, merged), columns.swapaxes(1, 2))
            total[taps] += part.reshape(total[taps].shape)
            del columns, part

    # Sets -----------------------------------------------------------------------------------------

    def _sets(self) -> Iterator[tuple[Sets, Iterable[Sets]]]:
        """Yield each matrix product's merged sets, and the conflict-free sets they consist of."""
        if self.together and not self.is_empty:
            every = (ConflictFree(slice(0, n.kernel), slice(0, n.size)) for n in self.index_sets)
            yield tuple(every), combined(self.index_sets)
        else:
            for sets in combined(self.index_sets):
                yield sets, (sets,)

    def _columns(self, padded: Array, merged: Sets, parts: Iterable[Sets]) -> Array:
        """Return the (G, F*T, N*P) columns of some sets, gathered from the padded gradient."""
        columns = np.empty(_shape(padded.shape, merged), self.dtype)
        for sets in parts:
            columns[_within(merged, sets)] = columns_of(padded, self.index_sets, sets)
        rows, positions = columns.shape[1 : 2 + len(merged)], columns.shape[2 + len(merged) :]
        return columns.reshape(len(columns), prod(rows), prod(positions))

    # Blocks ---------------------------------------------------------------------------------------

    @property
    def _totals(self) -> tuple[int, int, int]:
        """Numbers of batch items, groups, and output channels per group."""
        problem = self.problem
        return problem.batch, problem.groups, problem.out_channels // problem.groups

    def _steps(self) -> tuple[int, int, int]:
        """Return a block's numbers of items, groups and channels."""
        batch, groups, channels = self._totals
        item_bytes = max(1, prod(self.padded_size) * self.dtype.itemsize)
        item_bytes = max(item_bytes, self.columns_bytes if self.together else 0)
        fitting = _BLOCK_BYTES // item_bytes
        positions = max(1, prod(index_set.size for index_set in self.index_sets))
        wanted = max(-(-_MIN_POSITIONS // positions), _MIN_BLOCK_BYTES // (item_bytes * channels))
        items = _part(batch, min(wanted, fitting))
        some = _part(channels, fitting // items)
        return items, _part(groups, fitting // (items * some) if some == channels else 1), some

    def _padded_gradient(self, g: Array) -> Array:
        """Return a block of g padded with zeros, or g itself if it needs no padding."""
        if self._is_padded(g):
            return g
        padded = np.zeros((*g.shape[:3], *self.padded_size), self.dtype)
        padded[self.window] = g
        return padded

    def _is_padded(self, y: Array) -> bool:
        """Whether y or g can serve as the padded output: same size, and the accumulator's type."""
        return y.dtype == self.dtype and y.shape[3:] == self.padded_size and not self.is_empty

    # Results --------------------------------------------------------------------------------------

    def _finish(self, out: Array, result: Array, fused: _End) -> None:
        """Add the residual and `out`'s old values, activate, and store into `out` and `second`."""
        if fused.residual is not None:
            np.add(result, fused.residual, out=result, casting="unsafe")
        if self.problem.accumulate:
            np.add(out, result, out=result, casting="unsafe")
        epilogue, slope = self.problem.epilogue, self.problem.epilogue.slope
        several = None if fused.slopes is None else _after_channels(fused.slopes[None], result.ndim)
        apply(epilogue.activation, slope if several is None else several, result)
        if result is not out:
            out[...] = result
        if fused.second is not None:
            result = result.copy() if result is out else result
            apply(epilogue.second, epilogue.second_slope, result)
            fused.second[...] = result

    # Views ----------------------------------------------------------------------------------------

    def _grouped(self, data: Array) -> Array:
        """Return a view of x, y or g as (N, G, channels per group, *size)."""
        ncx = data.transpose(self.problem.layout.to_ncx(self.problem.rank))
        groups = self.problem.groups
        return ncx.reshape(ncx.shape[0], groups, ncx.shape[1] // groups, *ncx.shape[2:])

    def _grouped_weight(self, weight: Array) -> Array:
        """Return a view of w or dw as (G, C, F, *kernel)."""
        iox = weight.transpose(self.problem.weight_layout.to_iox(self.problem.rank))
        groups = self.problem.groups
        return iox.reshape(groups, iox.shape[0] // groups, *iox.shape[1:])

    def _workspace_bytes(self) -> int:
        """Return an upper bound of one run's peak memory."""
        problem, (items, groups, channels) = self.problem, self.steps
        group_inputs = problem.in_channels // problem.groups
        largest: Sets = next(self._sets(), ((), ()))[0]
        taps = prod(_count(one.taps) for one in largest)
        positions = prod(_count(one.inputs) for one in largest)
        padded = items * groups * channels * prod(self.padded_size)
        inputs = items * groups * group_inputs * positions
        elements = padded + items * groups * channels * taps * positions + inputs
        elements += 2 * groups * group_inputs * channels * taps
        if problem.dtype.accumulator is not problem.dtype:
            elements += prod(problem.x_shape)  # 16-bit x in the accumulator's type
        if problem.direction is Direction.INPUT_GRAD:
            elements += items * groups * group_inputs * prod(problem.size)
        if problem.epilogue.has_second:
            elements += items * groups * max(group_inputs, channels) * prod(self.padded_size)
        if problem.direction is Direction.WEIGHT_GRAD:
            taps = prod(index_set.kernel for index_set in self.index_sets)
            elements += groups * group_inputs * channels * taps
        plain = problem.epilogue.activation is Activation.NONE
        return self.dtype.itemsize * elements + (0 if plain else SCRATCH_BYTES)


class _End(NamedTuple):
    """The epilogue's arrays: bias and slopes as (groups, channels per group), residual and second
    result in the result's shape."""

    bias: Maybe
    slopes: Maybe
    residual: Maybe
    second: Maybe

    def of(self, items: slice, groups: slice, channels: slice) -> _End:
        """Return the parts that belong to a block of the result."""
        block = items, groups, channels
        return _End(
            *(None if v is None else v[groups, channels] for v in self[:2]),
            *(None if v is None else v[block] for v in self[2:]),
        )


def _weight(w: Array, sets: Sets) -> Array:
    """Return the taps of some sets in a packed weight, as (G, C, F*T)."""
    taps: Any = (..., *(one.taps for one in sets))
    used: Array = w[taps]
    return used.reshape(*used.shape[:2], prod(used.shape[2:]))


def _positions(x: Array, sets: Sets) -> Array:
    """Return inputs of x, (N, G, C, *size), as (G, C, N*P); copy only if strides require it."""
    inputs: Any = (..., *(one.inputs for one in sets))
    part: Array = np.moveaxis(x[inputs], 0, 2)
    return part.reshape(*part.shape[:2], prod(part.shape[2:]))


def _shape(blocks: tuple[int, ...], sets: Sets) -> tuple[int, ...]:
    """Return the shape (G, F, *taps, N, *inputs) of columns; `blocks` begins with N, G, F."""
    taps, inputs = (_count(one.taps) for one in sets), (_count(one.inputs) for one in sets)
    return (*blocks[1:3], *taps, blocks[0], *inputs)


def _within(merged: Sets, sets: Sets) -> Any:
    """Return the index of a part's columns in the merged sets' columns."""
    if sets is merged:
        return ...
    taps, inputs = (one.taps for one in sets), (one.inputs for one in sets)
    return (slice(None), slice(None), *taps, slice(None), *inputs)


def _product(a: Array, b: Array) -> Array:
    """Return a @ b for stacks of matrices, without a BLAS call per matrix for sums of one term."""
    result: Array = a * b if a.shape[-1] == 1 else np.matmul(a, b)
    return result


def _after_channels(per_channel: Array, ndim: int) -> Array:
    """Reshape per-channel values to `ndim` axes; the axes after the channels have length 1."""
    return per_channel.reshape(*per_channel.shape, *[1] * (ndim - per_channel.ndim))


def _part(total: int, most: int) -> int:
    """Return the size, from 1 to `most`, of roughly equal parts of `total`."""
    most = max(1, min(total, most))
    return max(1, -(-total // -(-total // most))) if total else 1


def _slices(total: int, step: int) -> list[slice]:
    """Cut `total` indices into slices of `step`."""
    return [slice(start, min(start + step, total)) for start in range(0, total, step)]


def _count(part: slice) -> int:
    """Return the number of indices in a slice with a start and a stop."""
    return int(part.stop - part.start)
