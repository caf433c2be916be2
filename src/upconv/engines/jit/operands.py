"""Arrays as the kernels read and write them, copied where a kernel cannot; and the base of the
primitives of all kernels.

Where channels come first, kernels take the strides of images and channels, and step along all other
axes as in a contiguous array. A residual is read with the strides of y. A copy is scratch memory
that depends on the arrays of a call, not on its problem. So this file allocates it, and
`workspace_bytes` does not include it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import EngineError
from ...problem import DataLayout
from ..addresses import address_of
from ..base import Array, Maybe
from ..copies import laid_out
from ..workspace import Workspace
from .correlation import Correlation
from .cpu import host
from .steps import Launch, Step


@dataclass(slots=True, eq=False)  # frozen takes four times as long to make, for each call
class Operands:
    """The arrays of a kernel.

    `copies` are pairs of a caller's array and the array to copy into it. Where a kernel cannot
    write the results `out` and `second`, `y` and `other` are other memory. `second` are bytes from
    y to `other`, 0 where there is none.
    """

    copies: tuple[tuple[Array, Array], ...]
    y: Array
    x: Array
    residual: Maybe
    other: Maybe = None
    second: int = 0

    @classmethod
    def of(
        cls, correlation: Correlation, out: Array, x: Array, residual: Maybe, second: Maybe = None
    ) -> Operands:
        """The arrays of a call, copied where they do not lie well."""
        plain = residual is None and x.ndim == len(correlation.lines) + 2 and second is None
        if plain and x.flags.c_contiguous and out.flags.c_contiguous:
            return cls((), out, x, None)  # most calls, with less overhead
        y, other, layout = out, second, correlation.layout
        beside = [array for array in (residual, second) if array is not None]
        if not lies_well(out, layout) or not all(_alike(array, out) for array in beside):
            y = laid_out("the result", out, filled=correlation.accumulate)
            residual = None if residual is None else laid_out("the residual", residual)
            if second is not None:
                other = laid_out("the second result", second, filled=False)
        x = lying_well("x", x, layout)
        copies = tuple(
            (array, copy)
            for array, copy in ((out, y), (second, other))
            if array is not None and copy is not None and copy is not array
        )
        if x.ndim > correlation.rank + 2:  # views: all axes but the first ones lie without gaps
            shape = correlation.result_shape
            x, y = x.reshape(correlation.operand_shape), y.reshape(shape)
            residual, other = (None if v is None else v.reshape(shape) for v in (residual, other))
        second_offset = 0 if other is None else address_of(other) - address_of(y)
        return cls(copies, y, x, residual, other, second_offset)

    @classmethod
    def in_place(
        cls, correlation: Correlation, out: Array, x: Array, residual: Maybe, second: Maybe = None
    ) -> Operands:
        """The arrays of a step, which cannot be copies: it is bound to their addresses."""
        operands = cls.of(correlation, out, x, residual, second)
        used = operands.x, operands.y, operands.residual, operands.other
        for array, passed in zip(used, (x, out, residual, second), strict=True):
            if array is not None and passed is not None and address_of(array) != address_of(passed):
                words = "A step reads and writes arrays where they lie"
                raise EngineError(f"{words}: make a copy first.")
        return operands

    def deliver(self) -> None:
        """Copy the results to the caller's arrays."""
        for array, copy in self.copies:
            array[...] = copy


def _alike(first: Array, second: Array) -> bool:
    """Whether equal steps along both arrays, which are of one shape, lead to equal elements."""
    if first.strides == second.strides:
        return True
    steps = zip(first.shape, first.strides, second.strides, strict=True)
    return all(size < 2 or a == b for size, a, b in steps)


def lying_well(what: str, array: Array, layout: DataLayout) -> Array:
    """An operand that kernels can read: the array itself, or a copy."""
    return array if lies_well(array, layout) else laid_out(what, array)


def lies_well(array: Array, layout: DataLayout) -> bool:
    """Whether the array is contiguous, along images and channels that come first perhaps not."""
    if array.flags.c_contiguous or layout is DataLayout.NXC:
        return array.flags.c_contiguous
    step = array.itemsize
    for size, stride in zip(array.shape[:1:-1], array.strides[:1:-1], strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def strides(name: str, array: Array, layout: DataLayout) -> dict[str, int]:
    """The address of an operand, and bytes from an image, channel and position to the next."""
    first, item = layout is DataLayout.NCX, array.itemsize
    channel, position = (array.strides[1], item) if first else (item, array.shape[-1] * item)
    steps = {"image": array.strides[0], "channel": channel, "position": position}
    return {name: address_of(array), **{f"{name}_{dimension}": n for dimension, n in steps.items()}}


class Kernel:
    """A correlation by one kernel: weights packed, operands laid out, biases in its own order.

    A kernel has `_launches`: the launches that a call runs in order, with the values they bind.
    """

    correlation: Correlation
    schedule: Any
    workspace_bytes: int
    order: Any  # which packs
    _pack_threads: int
    _no_bias: Array
    _packing_launch: Launch | None = None
    packs_in_call = False
    """Whether `run_once` is there."""

    @property
    def description(self) -> str:
        """The schedule in one line."""
        return str(self.schedule)

    def pack(self, weight: Array) -> Any:
        """The weight in the kernel's order of use."""
        return self.order.pack(weight, self._pack_threads)

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
        """Compute into `out`."""
        operands = Operands.of(self.correlation, out, a, residual, second)
        biases = self._by_channel(bias, slopes)
        with Workspace(self.workspace_bytes) as scratch:
            for launch, values in self._launches(operands, b, biases, scratch):
                launch.blocks.run(launch.work, launch.threads, launch.flag, **values)
        operands.deliver()

    def run_once(
        self,
        out: Array,
        a: Array,
        weight: Array,
        bias: Maybe = None,
        residual: Maybe = None,
        slopes: Maybe = None,
    ) -> None:
        """Pack a weight and compute into `out`, which is left wrong where this raises `NonFinite`.

        One native call does both: Python finds its code and data in no cache after each."""
        operands = Operands.of(self.correlation, out, a, residual)
        biases = self._by_channel(bias, slopes)
        packed, block, _read = self.order.begin(weight)
        with Workspace(self.workspace_bytes) as scratch:
            (first, values), *others = self._launches(operands, packed, biases, scratch)
            if self._packing_launch is None:
                self._packing_launch = first.after_packing(self.order.work, host())
            values["pack_args"] = block.address
            for launch, bound in ((self._packing_launch, values), *others):
                launch.blocks.run(launch.work, launch.threads, **bound)
        self.order.end(block)
        if operands.copies:
            operands.deliver()

    def steps(
        self, out: Array, a: Array, b: Any, bias: Maybe, residual: Maybe, scratch: int,
        slopes: Maybe = None, second: Maybe = None,
    ) -> list[Step]:  # fmt: skip
        """Return the steps of `run`, bound to arrays that kernels can read, and to scratch."""
        operands = Operands.in_place(self.correlation, out, a, residual, second)
        biases = self._by_channel(bias, slopes)
        weight = self._read(b)
        return [
            launch.step(values, weight, biases, self)
            for launch, values in self._launches(operands, weight, biases, scratch)
        ]

    def _read(self, packed: Any) -> Array:
        """The part of a packed weight that code reads."""
        array: Array = packed
        return array

    def _launches(
        self, operands: Operands, w: Array, biases: Array, scratch: int
    ) -> Iterable[tuple[Launch, dict[str, int]]]:
        raise NotImplementedError

    def _by_channel(self, bias: Maybe, slopes: Maybe) -> Array:
        """Biases and, right behind them, the slopes of PReLU, both as code reads them."""
        biases = self._no_bias if bias is None else self._ordered(bias)
        return biases if slopes is None else np.concatenate((biases, self._ordered_slopes(slopes)))

    def _ordered_slopes(self, slopes: Array) -> Array:
        """Slopes as code reads them: as many as biases."""
        return self._ordered(slopes)

    def _ordered(self, bias: Array) -> Array:
        """Biases as code reads them, which may read beyond the last one."""
        biases = self._no_bias.copy()
        biases[: len(bias)] = bias
        return biases

    def close(self) -> None:
        """Close the primitive, which holds nothing to free."""
