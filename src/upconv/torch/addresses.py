"""A tensor's memory as a NumPy array, without PyTorch noticing.

`Tensor.numpy()` would do, but it marks the tensor's memory as never to be resized, for good: the
caller's `x.resize_()`, or a function that resizes its `out=`, would fail afterwards. So the array
is made from the address. It keeps the tensor alive. The tensor must be dense, in main memory and
not lazily negated, which the callers see to. That its memory is there is seen to here: a storage
can be freed or shrunk under a tensor, and a tensor of zeros may never have had one.

What lives here: pointers, and nothing else touches one.
"""

from __future__ import annotations

from ctypes import c_char
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .refusals import TensorArgumentError


@dataclass(frozen=True, slots=True)
class View:
    """How tensors of one shape and strides, in elements, are seen as arrays.

    `axes` permutes their axes, None leaves them. All that does not depend on the address is
    worked out once.

    >>> import torch
    >>> t = torch.zeros(2, 3)
    >>> View.of(t.shape, t.stride(), np.dtype(np.float32), (1, 0)).on(t)[2, 1] = 5
    >>> t[1, 2].item()
    5.0
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    block: Any
    nbytes: int

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
        axes: tuple[int, ...] | None = None,
    ) -> View:
        """The view of tensors of a shape and strides, in elements."""
        order = range(len(shape)) if axes is None else axes
        sizes = tuple(shape[axis] for axis in order)
        steps = tuple(strides[axis] * dtype.itemsize for axis in order)
        last = sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
        nbytes = last + dtype.itemsize if prod(sizes) else 0
        dense = _is_dense(sizes, steps, dtype.itemsize)
        return View(sizes, None if dense else steps, dtype, _block(nbytes), nbytes)

    @classmethod
    def dense(cls, shape: tuple[int, ...], dtype: np.dtype[Any]) -> View:
        """The view of tensors whose memory is an array of `shape` without gaps.

        >>> View.dense((2, 3), np.dtype(np.float32)).strides is None
        True
        """
        nbytes = prod(shape) * dtype.itemsize
        return cls(shape, None, dtype, _block(nbytes), nbytes)

    def on(self, tensor: Any) -> NDArray[Any]:
        """The array on a tensor's memory.

        Raises `TensorArgumentError` where the memory is not there. A tensor of zeros that never had
        any gets zeros.
        """
        pointer, nbytes = tensor.data_ptr(), tensor.untyped_storage().nbytes()
        offset = tensor.storage_offset() * self.dtype.itemsize
        if (nbytes < offset + self.nbytes or pointer == offset) and self.nbytes:
            return self._missing(tensor, nbytes)
        return self.at(pointer, tensor)

    def at(self, pointer: int, owner: Any) -> NDArray[Any]:
        """The array at an address where there is memory, which its owner holds."""
        if self.block is None:
            return np.empty(self.shape, self.dtype)
        memory = self.block.from_address(pointer)
        memory.owner = owner  # the array holds the memory, and the memory this
        return np.ndarray(self.shape, self.dtype, memory, 0, self.strides)

    def _missing(self, tensor: Any, nbytes: int) -> NDArray[Any]:
        if tensor._is_zerotensor():
            return np.zeros(self.shape, self.dtype)
        shape = tuple(tensor.shape)
        got, expected = f"of {nbytes} bytes", f"the memory of the tensor's shape {shape}"
        remedy = "It was freed or resized: give the storage its size and values back."
        raise TensorArgumentError("a tensor's storage", got, expected, remedy)


@lru_cache(maxsize=1024)
def _block(nbytes: int) -> Any:
    """The type of so many bytes, None for none; making one takes microseconds."""
    return c_char * nbytes if nbytes else None


def _is_dense(sizes: tuple[int, ...], steps: tuple[int, ...], itemsize: int) -> bool:
    """Whether the strides are those of a new array, which NumPy need not be told."""
    expected = itemsize
    for size, step in zip(reversed(sizes), reversed(steps), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True
