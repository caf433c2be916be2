"""A tensor's memory as a NumPy array, without PyTorch noticing.

`Tensor.numpy()` would do, but it marks the tensor's memory as never to be resized, for good: the
caller's `x.resize_()`, or a function that resizes its `out=`, would fail afterwards. So the array
is made from the address. It keeps the tensor alive. The tensor must be dense, in main memory and
not lazily negated, which the callers see to.

What lives here: pointers, and nothing else touches one.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_char
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class View:
    """How tensors of one shape and strides, in elements, are seen as arrays.

    `order` permutes their axes, None leaves them. All that does not depend on the address is
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

    @classmethod
    def of(
        cls,
        shape: Sequence[int],
        strides: Sequence[int],
        dtype: np.dtype[Any],
        order: Sequence[int] | None = None,
    ) -> View:
        """The view of tensors of a shape and strides."""
        order = range(len(shape)) if order is None else order
        sizes = tuple(shape[axis] for axis in order)
        steps = tuple(strides[axis] * dtype.itemsize for axis in order)
        last = sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
        block = _block(last + dtype.itemsize) if prod(sizes) else None
        return cls(sizes, None if _is_dense(sizes, steps, dtype.itemsize) else steps, dtype, block)

    @classmethod
    def dense(cls, shape: tuple[int, ...], dtype: np.dtype[Any]) -> View:
        """The view of tensors whose memory is an array of `shape` without gaps.

        >>> View.dense((2, 3), np.dtype(np.float32)).strides is None
        True
        """
        count = prod(shape)
        return cls(shape, None, dtype, _block(count * dtype.itemsize) if count else None)

    def on(self, tensor: Any) -> NDArray[Any]:
        """The array on a tensor's memory."""
        if self.block is None:
            return np.empty(self.shape, self.dtype)
        memory = self.block.from_address(tensor.data_ptr())
        memory.owner = tensor  # the array holds the memory, and the memory this
        return np.ndarray(self.shape, self.dtype, memory, 0, self.strides)


@lru_cache(maxsize=1024)
def _block(nbytes: int) -> Any:
    """The type of so many bytes; making one takes microseconds."""
    return c_char * nbytes


def _is_dense(sizes: tuple[int, ...], steps: tuple[int, ...], itemsize: int) -> bool:
    """Whether the strides are those of a new array, which NumPy need not be told."""
    expected = itemsize
    for size, step in zip(reversed(sizes), reversed(steps), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True
