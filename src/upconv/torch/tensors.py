"""Tensors and NumPy arrays of the same memory: which tensors are taken, and in what layout.

Taken: dense tensors in main memory, of any strides, float16, bfloat16, float32 or float64. Nothing
is copied. Refused in words: tensors on other devices, sparse, quantised, complex and integer ones.

What lives here: what a tensor is. What never does: what is computed from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import threads
from ..problem import DType
from .addresses import View
from .refusals import TensorTypeError

Tensor = Any
"""`torch.Tensor`: PyTorch is not there when types are checked."""

DTYPES = {
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
}

# bfloat16 is not here: its package may be missing, and is asked for when it is needed.
_NUMPY = {kind: DTYPES[kind].numpy for kind in DTYPES if kind is not torch.bfloat16}

# Which axes of a tensor have the smallest strides, from the smallest on, in channels-last formats.
_CHANNELS_LAST_ORDER = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}
_CHANNELS_LAST_FORMAT = {4: torch.channels_last, 5: torch.channels_last_3d}


def array(tensor: Tensor) -> NDArray[Any]:
    """The tensor's memory as a NumPy array of its shape and strides; bfloat16 is ml_dtypes'.

    Raises `EngineMissing` for bfloat16 where the package ml_dtypes is not installed.

    >>> t = torch.zeros(2, 3)
    >>> array(t)[1, 2] = 5
    >>> t[1, 2].item()
    5.0
    """
    if tensor.is_neg():  # lazily: its memory holds the opposite
        tensor = tensor.resolve_neg()
    return view(tensor).on(tensor)


def view(tensor: Tensor, order: tuple[int, ...] | None = None) -> View:
    """How tensors like this one are seen as arrays, their axes in another order if one is given."""
    return View.of(tensor.shape, tensor.stride(), numpy_dtype(tensor.dtype), order)


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """NumPy's dtype, or that of ml_dtypes, for one of PyTorch's.

    >>> numpy_dtype(torch.float16)
    dtype('float16')
    """
    return _NUMPY.get(dtype) or DTYPES[dtype].numpy


def channels_last(tensor: Tensor) -> bool:
    """Whether PyTorch takes the tensor for a channels-last one, by its strides alone.

    Only tensors of 4 or 5 axes can be. Where sizes of 1 leave it open the answer is PyTorch's, so
    that results have the format that its own operator gives them.

    >>> x = torch.zeros(2, 3, 4, 4)
    >>> channels_last(x), channels_last(x.to(memory_format=torch.channels_last))
    (False, True)
    """
    return has_channels_last(tensor.shape, tensor.stride())


def has_channels_last(shape: Any, strides: Any) -> bool:
    """`channels_last` of a tensor's shape and strides.

    >>> has_channels_last((2, 3, 4, 4), (48, 1, 12, 3))
    True
    """
    order = _CHANNELS_LAST_ORDER.get(len(shape))
    if order is None:
        return False
    for entry in (*shape, *strides):
        if type(entry) is not int and _unbacked(shape, strides):
            return _known_channels_last(shape, strides, order)
    if strides[1] == 0:
        return False
    least: Any = 0
    for axis in order:
        if shape[axis] == 0 or strides[axis] < least:
            return False
        if axis == 0 and least == strides[1]:  # one channel, one position: nothing is last
            return False
        least = strides[axis] * shape[axis] if shape[axis] > 1 else strides[axis]
    return True


def _unbacked(shape: Any, strides: Any) -> bool:
    """Whether a compiler may not ask how large a size is, not even while it traces."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols((*shape, *strides)))


def _known_channels_last(shape: Any, strides: Any, order: tuple[int, ...]) -> bool:
    """Whether a tensor is dense and channels-last whatever its sizes are."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    expected: Any = 1
    for axis in order:
        if not statically_known_true(strides[axis] == expected):
            return False
        expected = expected * shape[axis]
    return True


def result_last(role: str, x: Any, x_strides: Any, weight: Any, weight_strides: Any) -> bool:
    """Whether PyTorch's y ("g"), dx ("x") or dw ("w") is channels-last, by shapes and strides.

    All three are if x or the weight is, a weight of one spatial axis being looked at as one of two,
    and x then not at all. With an empty batch y is contiguous and a gradient is as its tensor.

    >>> result_last("g", (2, 3, 4), (12, 4, 1), (3, 5, 2), (10, 1, 5))
    True
    """
    batch = x[0] if len(x) else 1
    empty = type(batch) is int and batch == 0
    x_last = len(x) > 3 and has_channels_last((1, *x[1:]) if empty else x, x_strides)
    if len(weight) == 3:
        size, step = weight[2], weight_strides[2]
        weight, weight_strides = (*weight[:2], 1, size), (*weight_strides[:2], step * size, step)
    weight_last = has_channels_last(weight, weight_strides)
    if empty:
        return (role == "x" and x_last) or (role == "w" and weight_last)
    return x_last or weight_last


def dense_strides(shape: Any, last: bool) -> tuple[int, ...]:
    """The strides, in elements, of a new tensor, contiguous or channels-last.

    >>> dense_strides((2, 3, 4, 5), last=True)
    (60, 1, 15, 3)
    """
    order = (1, *range(len(shape) - 1, 1, -1), 0) if last else range(len(shape) - 1, -1, -1)
    strides, step = [1] * len(shape), 1
    for axis in order:
        strides[axis] = step
        step *= max(1, shape[axis])
    return tuple(strides)


def in_order(shape: Any, strides: Any, others: Any) -> bool:
    """Whether the axes of a tensor, but for those of one entry, lie as others do.

    >>> in_order((1, 2, 3), (9, 3, 1), (6, 3, 1)), in_order((1, 2, 3), (6, 1, 2), (6, 3, 1))
    (True, False)
    """
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    inward = sorted(axes, key=lambda axis: others[axis], reverse=True)
    steps = [strides[axis] for axis in inward]
    return all(one > other for one, other in zip(steps, [*steps[1:], 0], strict=True))


def new_result(shape: Any, like: Tensor, last: bool) -> Tensor:
    """An uninitialised tensor, contiguous or channels-last, of the dtype and device of another."""
    kind = {"dtype": like.dtype, "device": like.device}
    if last and len(shape) == 3:  # PyTorch has no name for this format
        return torch.empty((shape[0], shape[2], shape[1]), **kind).transpose(1, 2)
    form = _CHANNELS_LAST_FORMAT[len(shape)] if last else torch.contiguous_format
    return torch.empty(shape, memory_format=form, **kind)


def require(name: str, tensor: Tensor) -> None:
    """Raise `TensorTypeError` unless upconv computes on the tensor (or PyTorch only imagines it).

    >>> require("input", torch.zeros(3, dtype=torch.int64))
    Traceback (most recent call last):
    upconv.torch.refusals.TensorTypeError: input.dtype is torch.int64; expected float16, bfloat16,
    float32 or float64. Integers are not computed on: convert with .float().
    """
    if not isinstance(tensor, torch.Tensor):
        got, remedy = f"of type {type(tensor).__name__}", "Make one with torch.as_tensor."
        raise TensorTypeError(name, got, "a torch.Tensor", remedy)
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout)
        remedy = "Convert it with .to_dense(), or use torch.nn.functional."
        raise TensorTypeError(name, f"a tensor of layout {kind}", "a dense tensor", remedy)
    if tensor.device.type not in ("cpu", "meta"):
        got, remedy = (
            f"on device {tensor.device}",
            "Use torch.nn.functional there, or .cpu() first.",
        )
        raise TensorTypeError(name, got, "a tensor on the CPU, where upconv computes", remedy)
    if tensor.dtype not in DTYPES:
        expected = "float16, bfloat16, float32 or float64"
        raise TensorTypeError(f"{name}.dtype", str(tensor.dtype), expected, _remedy(tensor))


def _remedy(tensor: Tensor) -> str:
    if tensor.is_quantized:
        return "Call .dequantize() first."
    if tensor.is_complex():
        return "The operator is linear: pass .real and .imag one after the other."
    if tensor.dtype.is_floating_point:
        return "Convert with .float()."
    return "Integers are not computed on: convert with .float()."


def same_kind(first: str, tensor: Tensor, second: str, other: Tensor) -> None:
    """Raise `TensorTypeError` unless two tensors have one dtype and device."""
    if tensor.dtype is not other.dtype:
        expected = f"{tensor.dtype}, the dtype of {first}"
        remedy = "Convert one of them, or run under torch.autocast('cpu')."
        raise TensorTypeError(f"{second}.dtype", str(other.dtype), expected, remedy)
    if tensor.device != other.device:
        expected = f"{tensor.device}, the device of {first}"
        raise TensorTypeError(f"{second}.device", str(other.device), expected, "Move one of them.")


def thread_count() -> int:
    """As many threads as PyTorch uses, unless upconv was told a number of its own.

    >>> thread_count() == torch.get_num_threads()
    True
    """
    count = threads.asked_for()
    return int(torch.get_num_threads()) if count is None else count
