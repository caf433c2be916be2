"""The border fill as native steps, and copies of arrays that the interior's kernel cannot access.

A *box* is an array of any rank and strides. A step moves one box to another of the same shape, row
by row. `finish` (rows.py) copies a row, or writes the epilogue of biases and residual.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import memory
from ...errors import EngineError
from ...problem import DataLayout, Direction, Problem
from ...threads import useful_threads
from ..addresses import address_of
from ..base import Array, Maybe, Primitive
from ..interior import BorderFill, Interior
from . import walk
from .compile import compiled
from .cpu import Cpu, host
from .emit import Module
from .kernel_arguments import ArgumentLayout, Blocks, Record, Table, filled, offsets, record
from .operands import is_accessible
from .rows import Finish, activate, finish_code, plain
from .steps import Launch, Step
from .values import STORED

_ARGUMENTS = ArgumentLayout(
    walk.NUMBERS + "dst* src* residual* finish* runs length dst_run src_run slopes second",
    counters=walk.COUNTERS,
)
_ROW = record("dst src")
_MAX_LENGTH = 256  # positions for which a channel's bias is repeated
_WORK = 4  # multiply-adds that take as long as moving one element


@compiled("move", kept=4, opt=0)
def _box_code(module: Module, cpu: Cpu) -> None:
    """Emit the job `move`, which moves a box's runs at one index of its outer axes."""
    with module.function("move", walk.JOB) as f:
        a = _ARGUMENTS.reader(f)
        inner, outer = Record(f, f["inner"], _ROW), Record(f, f["outer"], _ROW)
        offset = inner["dst"] + outer["dst"]
        src = a["src"] + inner["src"] + outer["src"]
        f.call(
            a["finish"], src, a["dst"] + offset, a["residual"] + offset, 1, 0, 0, a["runs"],
            a["length"], a["src_run"], a["dst_run"], src + a["slopes"], a["second"],
        )  # fmt: skip


class JitBorder(BorderFill):
    """A border fill around one of this engine's kernels."""

    def __init__(
        self, problem: Problem, interior: Interior, inner: Primitive | None, threads: int
    ) -> None:
        super().__init__(problem, interior, inner, activate)
        self._threads = threads

    def steps(
        self, out: Array, a: Array, b: Any, bias: Maybe, residual: Maybe, scratch: int,
        slopes: Maybe = None, second: Maybe = None,
    ) -> list[Step]:  # fmt: skip
        """Return native steps equivalent to `run`, bound to these arrays."""
        steps: list[Step] = []
        if self._inner is not None:
            forward, interior = self._problem.direction is Direction.FORWARD, self._place
            a = a[self._interior.x if forward else self._interior.y]
            within, other = (None if v is None else v[interior] for v in (residual, second))
            steps = self._interior_steps(out[interior], a, b, bias, within, scratch, slopes, other)
        for box in self._border:
            within, other = (None if v is None else v[box] for v in (residual, second))
            steps += self._border_steps(out[box], bias, within, slopes, other)
        return steps

    def _interior_steps(
        self, out: Array, a: Array, b: Any, bias: Maybe, residual: Maybe, scratch: int,
        slopes: Maybe, second: Maybe,
    ) -> list[Step]:  # fmt: skip
        """Return the kernel's steps, between copies of arrays whose strides it cannot read.

        Each copy has separate memory; few layers need any.
        """
        inner: Any = self._inner
        before: list[Step] = []
        after: list[Step] = []
        layout = self._problem.layout
        if not is_accessible(a, layout):
            a = self._copied(a, before)
        if not is_accessible(out, layout):
            result, out = out, np.empty(out.shape, out.dtype)
            if self._problem.accumulate:
                before += self._box_steps(self._plain, out, result)
            after += self._box_steps(self._plain, result, out)
            residual = None if residual is None else self._copied(residual, before)
            if second is not None:
                result, second = second, np.empty(second.shape, second.dtype)
                after += self._box_steps(self._plain, result, second)
        steps = inner.steps(out, a, b, bias, residual, scratch, slopes, second)
        return [*before, *steps, *after]

    def _copied(self, array: Array, steps: list[Step]) -> Array:
        memory.require(array.nbytes, "a copy of part of an array")
        copy = np.empty(array.shape, array.dtype)
        steps += self._box_steps(self._plain, copy, array)
        return copy

    @property
    def _plain(self) -> Finish:
        return plain(STORED[self._problem.dtype])

    def _border_steps(
        self, out: Array, bias: Maybe, residual: Maybe, slopes: Maybe, second: Maybe
    ) -> list[Step]:
        """Return steps that write the epilogue of bias and residual to part of the border."""
        problem = self._problem
        channel_axis = 1 if problem.layout is DataLayout.NCX else out.ndim - 1
        # The slopes follow all biases, so that code reads both in the same way in either layout.
        biases = np.zeros((2, out.shape[channel_axis]), problem.dtype.accumulator.numpy)
        for row, numbers in zip(biases, (bias, slopes), strict=True):
            row[:] = 0 if numbers is None else numbers
        kind = Finish.of(problem, DataLayout.NXC)
        steps: list[Step] = []
        for part in _cut(out.shape[-1]) if channel_axis == 1 else [slice(None)]:
            box = out[..., part]
            beside = [None if v is None else v[..., part] for v in (residual, second)]
            source = biases
            if channel_axis == 1:  # repeat each bias for the length of a run
                box, beside = _folded(box), [None if v is None else _folded(v) for v in beside]
                rows = np.repeat(biases[..., None], box.shape[-1], -1)
                source = rows.reshape(*biases.shape, *[1] * (box.ndim - 3), box.shape[-1])
            repeated = np.broadcast_to(source[0], box.shape)
            steps += self._box_steps(kind, box, repeated, beside[0], beside[1], source.strides[0])
        return steps

    def _box_steps(
        self, kind: Finish, dst: Array, src: Array, residual: Maybe = None, second: Maybe = None,
        slopes: int = 0,
    ) -> list[Step]:  # fmt: skip
        """Return the step that moves one box to another, or no step for an empty box.

        slopes: bytes from an element of `src` to its slope.
        """
        if not dst.size:
            return []
        beside = [array for array in (residual, second) if array is not None]
        wide = [axis for axis, extent in enumerate(dst.shape) if extent > 1]
        if any(array.strides[i] != dst.strides[i] for array in beside for i in wide):
            words = "A step's residual and second result must have the strides of its result"
            raise EngineError(f"{words}: make a copy first.")
        if any(array.strides[-1] != array.itemsize for array in (dst, src)):
            dst, src = dst[..., None], src[..., None]  # runs of one element
            # With channels first, a run has one slope. With channels last it would have several.
            channels_last = self._problem.layout is DataLayout.NXC
            if kind.epilogue.slopes and channels_last and dst.shape[-2] > 1:
                raise EngineError("A step with PReLU needs adjacent channels: make a copy first.")
        outer, inner = _rows(dst, src, slice(0, 2)), _rows(dst, src, slice(2, None))
        code, move = finish_code(kind, host()), _box_code(host())
        threads = min(len(inner) * len(outer), useful_threads(dst.size * _WORK, self._threads))
        table = walk.phases(threads, walk.Phase(move.addresses["move"], inner, outer))
        block = _ARGUMENTS.block(
            phases=table.ctypes.data, phase_count=1, dst=address_of(dst), src=src.ctypes.data,
            residual=0 if residual is None else address_of(residual),
            second=0 if second is None else address_of(second) - address_of(dst),
            finish=code.addresses["finish"], runs=dst.shape[-2], length=dst.shape[-1],
            dst_run=dst.strides[-2], src_run=src.strides[-2], slopes=slopes,
        )  # fmt: skip
        started = walk.walk_code(host())
        launch = Launch.of_walk(Blocks(block), started.addresses["walk"], threads, table)
        kept = dst, src, residual, second, outer, inner, table, code, move, started
        return [launch.step({}, None, *kept)]


def _cut(length: int) -> list[slice]:
    """Cut a row into runs of equal lengths, and a remainder."""
    run = min(length, _MAX_LENGTH)
    stop = length // run * run if run else 0
    return [slice(0, stop), slice(stop, length)]


def _folded(box: Array) -> Array:
    """Return a view of a box with the last axis split into runs of at most `_MAX_LENGTH`."""
    run = min(box.shape[-1], _MAX_LENGTH)
    return box.reshape(*box.shape[:-1], box.shape[-1] // run, run) if run else box


def _rows(dst: Array, src: Array, axes: slice) -> Table:
    """Return both boxes' offsets at every index of some axes, chosen from all but the last two."""
    shape, *steps = (values[:-2][axes] for values in (dst.shape, dst.strides, src.strides))
    to, of = offsets(shape, *steps)
    return filled(_ROW, len(to), dst=to, src=of)
