"""NumPy arrays that share tensors' memory, and tensors' memory formats."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor as Tensor

from .. import threads
from ..engines.addresses import MEMORY
from ..problem import DType

DTYPES = {
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
}

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class View(NamedTuple):
    """Shape, strides and dtype of the NumPy views of tensors with one shape and strides.

    `Tensor.numpy()` would permanently mark the tensor's memory as not resizable. So the array uses
    the tensor's address, and keeps the tensor alive.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: Any,
        axes: tuple[int, ...] | None = None,
    ) -> View:
        """Return the view of tensors with this shape, strides and dtype, with permuted axes."""
        kind = DTYPES[dtype].numpy
        order = range(len(shape)) if axes is None else axes
        sizes = tuple(shape[axis] for axis in order)
        steps = tuple(strides[axis] * kind.itemsize for axis in order)
        return View(sizes, steps, kind)

    def on(self, tensor: Tensor) -> NDArray[Any]:
        """Return an array on a tensor's memory; raise `RuntimeError` if that was freed."""
        pointer = tensor.data_ptr()
        if not pointer:
            raise RuntimeError("The tensor's storage was freed: it has no memory to compute on.")
        memory = MEMORY.from_address(pointer)
        memory.owner = tensor  # the array holds the memory, and the memory holds the tensor
        return np.ndarray(self.shape, self.dtype, memory, 0, self.strides)


def array(tensor: Tensor, axes: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Return the tensor's memory as an array; bfloat16 has ml_dtypes' type."""
    return View.of(tensor.shape, tensor.stride(), tensor.dtype, axes).on(tensor)


def channels_last(tensor: Tensor) -> bool:
    """Whether a tensor of 4 or 5 axes is dense with its channels last, and not also contiguous."""
    form = _CHANNELS_LAST.get(tensor.dim())
    if form is None or tensor.is_contiguous():
        return False
    return bool(tensor.is_contiguous(memory_format=form))


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """Return the axes of a tensor, which may be fake, outermost in memory first."""
    axes = tuple(range(tensor.dim()))
    if tensor.is_contiguous():
        return axes
    if channels_last(tensor):
        return (0, *axes[2:], 1)
    strides = tensor.stride()
    if any(type(step) is not int and step.node.hint is None for step in strides):
        return axes  # it depends on data
    steps = numbers(strides)
    return tuple(sorted(axes, key=lambda axis: -steps[axis]))


def numbers(sizes: Any) -> tuple[int, ...]:
    """Return sizes or strides as numbers; a symbol has its value from the trace."""
    return tuple(size if type(size) is int else int(size.node.hint) for size in sizes)


def new_result(shape: Any, like: Tensor, last: bool) -> Tensor:
    """Return an uninitialized tensor of another's dtype and device, channels-last or contiguous."""
    form = _CHANNELS_LAST[len(shape)] if last else torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=form)


def dense_strides(shape: tuple[int, ...], last: bool) -> tuple[int, ...]:
    """Return the strides that `new_result` gives a tensor, without allocating it."""
    order = (0, *range(2, len(shape)), 1) if last else range(len(shape))
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis] if last else max(1, shape[axis])  # as in PyTorch for empty tensors
    return tuple(strides)


def thread_count() -> int:
    """Return upconv's number of threads if one was set, else PyTorch's."""
    count = threads.asked_for()
    return int(torch.get_num_threads()) if count is None else count


def arrays_of(values: Iterable[Any]) -> list[NDArray[Any]]:
    """Return the tensors among some values as arrays to compare."""
    return [_compared(value.detach()) for value in values if isinstance(value, torch.Tensor)]


def _compared(tensor: Tensor) -> NDArray[Any]:
    tensor = tensor.resolve_conj().resolve_neg()
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        tensor = tensor.to_dense().cpu()
    return array(tensor) if tensor.dtype in DTYPES and tensor.numel() else tensor.numpy()
