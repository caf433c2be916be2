"""CuPy as the library of GPU arrays."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from .arrays import DeviceArray, Native, dtype_named


class Cupy:
    """CuPy's arrays."""

    name = "cupy"

    def __init__(self) -> None:
        self.module: Any = import_module("cupy")

    def array(self, argument: str, native: Native) -> DeviceArray:  # noqa: D102
        kind = dtype_named(argument, native.dtype.name)
        strides = tuple(step // kind.itemsize for step in native.strides)
        shape, pointer, device = native.shape, native.data.ptr, native.device.id
        return DeviceArray(self, native, shape, strides, kind, pointer, device)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: int) -> Native:  # noqa: D102
        with self.on(device):
            return self.module.empty(shape, dtype)

    def address(self, native: Native) -> int:  # noqa: D102
        return int(native.data.ptr)

    def contiguous(self, native: Native) -> bool:  # noqa: D102
        return bool(native.flags.c_contiguous)

    def copy(self, native: Native) -> Native:  # noqa: D102
        with native.device:  # CuPy uses the current device, wherever the array is
            return native.copy(order="C")

    def permuted(self, native: Native, axes: tuple[int, ...]) -> Native:  # noqa: D102
        return native.transpose(axes)

    def cast(self, native: Native, dtype: np.dtype[Any]) -> Native:  # noqa: D102
        with native.device:
            return native.astype(dtype, copy=False)

    def sums(self, native: Native, axes: tuple[int, ...]) -> Native:  # noqa: D102
        with native.device:
            return native.sum(axis=axes, dtype=np.float64)

    def stream(self, device: int) -> int:  # noqa: D102
        return int(self.module.cuda.get_current_stream(device).ptr)

    def capturing(self, device: int) -> bool:  # noqa: D102
        return bool(self.module.cuda.get_current_stream(device).is_capturing())

    def on(self, device: int) -> Any:  # noqa: D102
        return self.module.cuda.Device(device)

    def from_host(self, array: np.ndarray[Any, Any], device: int) -> Native:  # noqa: D102
        with self.on(device):
            return self.module.asarray(array)

    def seconds(self, run: Callable[[], object], count: int, device: int) -> float:  # noqa: D102
        with self.on(device):
            before, after = (self.module.cuda.Event() for _ in range(2))
            before.record()
            for _ in range(count):
                run()
            after.record()
            after.synchronize()
            return float(self.module.cuda.get_elapsed_time(before, after)) / 1e3 / count

    def is_out_of_memory(self, error: Exception) -> bool:  # noqa: D102
        return isinstance(error, self.module.cuda.memory.OutOfMemoryError)
