"""PyTorch as the library of GPU arrays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import numpy as np

from ..errors import DTypeError
from ..problem import DType
from .arrays import DeviceArray, Native, dtype_named

_HERE = nullcontext()


class Torch:
    """PyTorch's CUDA tensors."""

    name = "torch"

    def __init__(self) -> None:
        self.torch: Any = import_module("torch")
        names = (*(kind.value for kind in DType), "uint8")
        self._types = {name: getattr(self.torch, name) for name in names}
        self._names = {dtype: name for name, dtype in self._types.items()}
        self._devices = [
            self.torch.device("cuda", number) for number in range(self.torch.cuda.device_count())
        ]
        cuda = self.torch.cuda
        # Kernel compilers use this raw handle; a stream object would take a microsecond.
        self._stream = getattr(self.torch._C, "_cuda_getCurrentRawStream", None) or (
            lambda device: cuda.current_stream(device).cuda_stream
        )

    def array(self, argument: str, native: Native) -> DeviceArray:  # noqa: D102 (as above)
        if native.requires_grad and self.torch.is_grad_enabled():
            expected = "a tensor without gradient tracking"
            remedy = "Detach it, or call upconv.torch, whose functions are differentiable."
            raise DTypeError(argument, "a tensor that requires grad", expected, remedy)
        dtype = native.dtype
        kind = dtype_named(argument, self._names.get(dtype) or str(dtype).removeprefix("torch."))
        shape, strides, device = tuple(native.shape), native.stride(), native.device.index
        return DeviceArray(self, native, shape, strides, kind, native.data_ptr(), device)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: int) -> Native:  # noqa: D102
        kind, where = self._types[dtype.name], self._devices[device]
        return self.torch.empty(shape, dtype=kind, device=where)

    def address(self, native: Native) -> int:  # noqa: D102
        return int(native.data_ptr())

    def contiguous(self, native: Native) -> bool:  # noqa: D102
        return bool(native.is_contiguous())

    def copy(self, native: Native) -> Native:  # noqa: D102
        return native.clone(memory_format=self.torch.contiguous_format)

    def permuted(self, native: Native, axes: tuple[int, ...]) -> Native:  # noqa: D102
        return native.permute(axes)

    def cast(self, native: Native, dtype: np.dtype[Any]) -> Native:  # noqa: D102
        return native.to(self._types[dtype.name])

    def sums(self, native: Native, axes: tuple[int, ...]) -> Native:  # noqa: D102
        return native.sum(axes, dtype=self.torch.float64)

    def stream(self, device: int) -> int:  # noqa: D102
        return int(self._stream(device))

    def capturing(self, device: int) -> bool:  # noqa: D102
        with self.on(device):
            return bool(self.torch.cuda.is_current_stream_capturing())

    def on(self, device: int) -> Any:  # noqa: D102
        cuda = self.torch.cuda
        return _HERE if cuda.current_device() == device else cuda.device(device)

    def from_host(self, array: np.ndarray[Any, Any], device: int) -> Native:  # noqa: D102
        if array.dtype.name == DType.BFLOAT16.value:
            bits = self.torch.from_numpy(array.view(np.int16).copy()).to(f"cuda:{device}")
            return bits.view(self.torch.bfloat16)
        return self.torch.from_numpy(np.array(array)).to(f"cuda:{device}")

    def seconds(self, run: Callable[[], object], count: int, device: int) -> float:  # noqa: D102
        with self.on(device):
            before, after = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            for _ in range(count):
                run()
            after.record()
            after.synchronize()
            return float(before.elapsed_time(after)) / 1e3 / count

    def is_out_of_memory(self, error: Exception) -> bool:  # noqa: D102
        return isinstance(error, self.torch.cuda.OutOfMemoryError)
