"""Arrays in the form that kernels read and write, copied where needed; and the base class of all
kernels' primitives.

With channels first, kernels accept any strides of images and channels, and expect all other axes
to be contiguous. A residual is read with the strides of y. A copy is scratch memory that depends
on the call's arrays, not on its problem. So this file allocates it, and `workspace_bytes` does not
include it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import EngineError
from ...problem import DataLayout
from ...properties import cached_property
from ..addresses import address_of
from ..base import Array, Maybe
from ..copies import laid_out
from ..workspace import Workspace
from .compile import Code
from .correlation import Correlation
from .cpu import host
from .kernel_arguments import Block, Blocks
from .packing import Numbers
from .replay import Replay
from .steps import Launch, Step
from .values import LINE
from .walk import walk_code


@dataclass(slots=True, eq=False)  # a frozen class would take four times as long to create per call
class Operands:
    """A kernel's arrays.

    `copies` pairs each caller's array with the array to copy into it. If a kernel cannot write to
    `out` and `second`, then `y` and `other` are separate memory. `second` is the distance in bytes
    from y to `other`, or 0.
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
        """Return a call's arrays, copied if kernels cannot access them."""
        whole = x.ndim == correlation.rank + 2
        if whole and residual is None and second is None and have_no_gaps(out, x):
            return cls((), out, x, None)  # the fast path for most calls
        y, other, layout = out, second, correlation.layout
        beside = [array for array in (residual, second) if array is not None]
        if not is_accessible(out, layout) or not all(_alike(array, out) for array in beside):
            y = laid_out("the result", out, filled=correlation.accumulate)
            residual = None if residual is None else laid_out("the residual", residual)
            if second is not None:
                other = laid_out("the second result", second, filled=False)
        x = as_accessible("x", x, layout)
        copies = tuple(
            (array, copy)
            for array, copy in ((out, y), (second, other))
            if array is not None and copy is not None and copy is not array
        )
        if x.ndim > correlation.rank + 2:  # views, since the merged axes have no gaps
            shape = correlation.result_shape
            x, y = x.reshape(correlation.operand_shape), y.reshape(shape)
            residual, other = (None if v is None else v.reshape(shape) for v in (residual, other))
        second_offset = 0 if other is None else address_of(other) - address_of(y)
        return cls(copies, y, x, residual, other, second_offset)

    @classmethod
    def in_place(
        cls, correlation: Correlation, out: Array, x: Array, residual: Maybe, second: Maybe = None
    ) -> Operands:
        """Return a step's arrays; none may be a copy, since a step is bound to addresses."""
        operands = cls.of(correlation, out, x, residual, second)
        used = operands.x, operands.y, operands.residual, operands.other
        for array, passed in zip(used, (x, out, residual, second), strict=True):
            if array is not None and passed is not None and address_of(array) != address_of(passed):
                words = "A step must be able to access its arrays in place"
                raise EngineError(f"{words}: make a copy first.")
        return operands

    def deliver(self) -> None:
        """Copy the results to the caller's arrays."""
        for array, copy in self.copies:
            array[...] = copy


def have_no_gaps(out: Array, x: Array) -> bool:
    """Whether these arrays are contiguous, so that kernels can use them in place."""
    return x.flags.c_contiguous and out.flags.c_contiguous


def _alike(first: Array, second: Array) -> bool:
    """Whether two arrays of equal shape have equal strides along all axes longer than 1."""
    if first.strides == second.strides:
        return True
    steps = zip(first.shape, first.strides, second.strides, strict=True)
    return all(size < 2 or a == b for size, a, b in steps)


def as_accessible(what: str, array: Array, layout: DataLayout) -> Array:
    """Return an operand that kernels can read: the array itself, or a copy."""
    return array if is_accessible(array, layout) else laid_out(what, array)


def is_accessible(array: Array, layout: DataLayout) -> bool:
    """Whether kernels can access an array in place: it is contiguous, or has gaps only between
    images and between channels that come first."""
    if array.flags.c_contiguous or layout is DataLayout.NXC:
        return array.flags.c_contiguous
    step = array.itemsize
    for size, stride in zip(array.shape[:1:-1], array.strides[:1:-1], strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def strides(name: str, array: Array, layout: DataLayout) -> dict[str, int]:
    """Return an operand's address, and its image, channel and position strides in bytes."""
    first, item = layout is DataLayout.NCX, array.itemsize
    channel, position = (array.strides[1], item) if first else (item, array.shape[-1] * item)
    steps = {"image": array.strides[0], "channel": channel, "position": position}
    return {name: address_of(array), **{f"{name}_{dimension}": n for dimension, n in steps.items()}}


class Kernel:
    """A correlation computed by one kernel, which has its own order of weights and biases.

    Subclasses define `_launches`: the launches that a call runs in order, with the values to bind.
    """

    correlation: Correlation
    schedule: Any
    workspace_bytes: int
    order: Any  # the packer of weights
    _pack_threads: int
    _no_bias: Array
    _bias_order: Numbers | None = None
    """The channel of each bias that the code reads; None means each channel once."""
    packs_in_call = True
    """Whether `run_once` works: `order` packs with code that a walk can call."""
    _slab = 0
    """Bytes of a thread's slab of weights, if each thread packs just the weights that it needs; 0
    if a call packs the whole weight first."""

    @property
    def description(self) -> str:
        """The schedule in one line."""
        return str(self.schedule)

    @cached_property
    def _replays(self) -> dict[tuple[bool, bool], Replay | None]:
        return {}

    @cached_property
    def _packing_launches(self) -> dict[Blocks, tuple[Launch, Code]]:
        return {}

    def pack(self, weight: Array) -> Any:
        """Return the weight in the order in which the kernel uses it."""
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
        biases = self._by_channel(bias, slopes)
        plain = residual is None and second is None and have_no_gaps(out, a)
        with Workspace(self.workspace_bytes) as scratch:
            addresses, replay = self._replay(plain, (out, a, b, biases), scratch)
            if replay is not None:
                replay.run(addresses)
                return
            operands = Operands.of(self.correlation, out, a, residual, second)
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
        """Pack a weight and compute into `out`, which is left invalid if this raises `NonFinite`.

        One native call does both, since after each call Python's code and data are out of cache."""
        biases = self._by_channel(bias, slopes)
        plain = residual is None and have_no_gaps(out, a)
        b, packing, _read = self._begin(weight)
        with Workspace(self.workspace_bytes) as scratch:
            addresses, replay = self._replay(plain, (out, a, b, biases), scratch, packing)
            if replay is not None:
                replay.run(addresses)
            else:
                operands = Operands.of(self.correlation, out, a, residual)
                launches = self._launches(operands, b, biases, scratch)
                for launch, values in self._packing(launches, packing):
                    launch.blocks.run(launch.work, launch.threads, **values)
                operands.deliver()
        self.order.end(packing)

    def _begin(self, weight: Array) -> tuple[Array, Block, Array]:
        """Return memory for a call's packed weight, packing arguments, and the array they read."""
        nbytes = self._slab * self._pack_threads
        begun: tuple[Array, Block, Array] = self.order.begin(weight, nbytes)
        return begun

    def _packing(
        self, launches: Iterable[tuple[Launch, dict[str, int]]], packing: Block
    ) -> Iterable[tuple[Launch, dict[str, int]]]:
        """Return the same launches, except that the first one packs the weight: before its phases,
        or in parts if there are slabs."""
        (first, values), *others = launches
        if first.blocks not in self._packing_launches:
            launch, code = first, walk_code(host())
            if self._slab:
                code = self.order.pieces_code()
                packs = {"pack_pieces": code.addresses["pack_pieces"], "gaps": self.order.has_gaps}
                blocks = Blocks(first.blocks.bound(packs | {"slab": self._slab}))
                launch = first._replace(blocks=blocks)
            else:
                launch = first.after_packing(self.order.work, code)
            self._packing_launches[first.blocks] = launch, code
        values["pack_args"] = packing.address
        return (self._packing_launches[first.blocks][0], values), *others

    def _replay(
        self, plain: bool, arrays: tuple[Array, Array, Any, Array], scratch: int,
        packing: Block | None = None,
    ) -> tuple[tuple[int, ...], Replay | None]:  # fmt: skip
        """Return a call's array addresses, and the replay recorded by the first such call, if the
        arrays are `plain`. `packing` is the argument block if the call packs a weight first."""
        if not plain:
            return (), None
        beside = (0, 0) if packing is None else (packing.address, packing.nbytes)
        addresses = *map(address_of, arrays), scratch, beside[0]
        aligned = addresses[1] % LINE == 0  # kernels may read aligned operands in another way
        key = aligned, packing is not None
        if key not in self._replays:
            out, a, b, biases = arrays
            operands = Operands.of(self.correlation, out, a, None)
            launches = self._launches(operands, b, biases, scratch)
            if packing is not None:
                launches = self._packing(launches, packing)
            sizes = *(array.nbytes for array in arrays), self.workspace_bytes, beside[1]
            self._replays[key] = Replay.of(launches, addresses, sizes)
        return addresses, self._replays[key]

    def steps(
        self, out: Array, a: Array, b: Any, bias: Maybe, residual: Maybe, scratch: int,
        slopes: Maybe = None, second: Maybe = None,
    ) -> list[Step]:  # fmt: skip
        """Return the steps of `run`, bound to accessible arrays and to scratch memory."""
        operands = Operands.in_place(self.correlation, out, a, residual, second)
        biases = self._by_channel(bias, slopes)
        weight = self._read(b)
        return [
            launch.step(values, weight, biases, self)
            for launch, values in self._launches(operands, weight, biases, scratch)
        ]

    def _read(self, packed: Any) -> Array:
        """Return the part of a packed weight that the code reads."""
        array: Array = packed
        return array

    def _launches(
        self, operands: Operands, w: Array, biases: Array, scratch: int
    ) -> Iterable[tuple[Launch, dict[str, int]]]:
        raise NotImplementedError

    def _by_channel(self, bias: Maybe, slopes: Maybe) -> Array:
        """Return the biases, then PReLU's slopes, in the order in which the code reads them."""
        biases = self._no_bias if bias is None else self._ordered(bias, self._bias_order)
        if slopes is None:
            return biases
        # For channels-first data `finish` reads the slopes, one per channel.
        order = self._bias_order if self.correlation.layout is DataLayout.NXC else None
        return np.concatenate((biases, self._ordered(slopes, order)))

    def _ordered(self, numbers: Array, order: Numbers | None) -> Array:
        """Return per-channel numbers in an order, or padded, since code may read past the last."""
        if order is not None:
            return numbers.take(order).astype(self._no_bias.dtype, copy=False)
        padded = self._no_bias.copy()
        padded[: len(numbers)] = numbers
        return padded

    def close(self) -> None:
        """Do nothing: the primitive has nothing to free."""
