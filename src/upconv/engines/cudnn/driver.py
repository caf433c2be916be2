"""The CUDA driver, which loads PTX kernels into a device's context and launches them on streams.

The driver's library is part of the system, so no package has to be installed. A
module belongs to the primary context of its device, which PyTorch and CuPy use too.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from functools import lru_cache, partial
from typing import Any

from ...errors import EngineError, EngineMissing

_POINTER, _SIZE, _END = 1, 2, 0  # markers in a launch's argument list
_OTHER_CONTEXT = 201, 400  # errors: no context, or a handle from another context
_CAPABILITY = 75, 76  # device attributes: major and minor

Kernel = Callable[[int, int, int, bytes], None]
"""A loaded kernel. A call launches it with a number of blocks, threads per block, a stream and
packed arguments. Its module stays loaded, since there are few kernel classes."""

_lock = threading.Lock()


@lru_cache(maxsize=1)
def driver() -> Driver:
    """Return the driver, created once per process; raise `EngineMissing` without driver or GPU."""
    return Driver()


class Driver:
    """The libcuda functions that upconv calls."""

    def __init__(self) -> None:
        try:
            self._library: Any = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise EngineMissing("this system has no NVIDIA driver (libcuda.so.1)") from None
        self._call("cuInit", c_uint(0))
        count = c_int()
        self._call("cuDeviceGetCount", byref(count))
        if not count.value:
            raise EngineMissing("the NVIDIA driver found no GPU")
        self.count = count.value
        self._contexts: dict[int, c_void_p] = {}
        # Declared types avoid needless conversions in each launch.
        self._library.cuLaunchKernel.argtypes = [
            c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p,
        ]  # fmt: skip

    def name(self, device: int) -> str:
        """Return the device's name, such as "NVIDIA H200"."""
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, c_int(256), self._device(device))
        return text.value.decode()

    def capability(self, device: int) -> tuple[int, int]:
        """Return the device's compute capability, such as (9, 0)."""
        values = []
        for attribute in _CAPABILITY:
            value = c_int()
            self._call("cuDeviceGetAttribute", byref(value), c_int(attribute), self._device(device))
            values.append(value.value)
        return values[0], values[1]

    @contextmanager
    def context(self, device: int) -> Iterator[None]:
        """Make the device's primary context current in this thread."""
        context = self._contexts.get(device)
        if context is None:
            context = c_void_p()
            self._call("cuDevicePrimaryCtxRetain", byref(context), self._device(device))
            self._contexts[device] = context
        self._call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", byref(c_void_p()))

    def kernel(self, device: int, ptx: str, name: str) -> Kernel:
        """Load the kernel with a name from PTX code."""
        with _lock, self.context(device):
            module, function = c_void_p(), c_void_p()
            self._call("cuModuleLoadData", byref(module), c_char_p(ptx.encode()))
            self._call("cuModuleGetFunction", byref(function), module, c_char_p(name.encode()))
        return partial(self._launch, device, function)

    def _launch(
        self, device: int, function: c_void_p, blocks: int, threads: int, stream: int, packed: bytes
    ) -> None:
        size = c_size_t(len(packed))
        listed = (c_void_p * 5)(
            _POINTER, ctypes.cast(c_char_p(packed), c_void_p), _SIZE,
            ctypes.cast(byref(size), c_void_p), _END,
        )  # fmt: skip
        launch = self._library.cuLaunchKernel
        call = function, blocks, 1, 1, threads, 1, 1, 0, stream, None, listed
        code = launch(*call)
        if code in _OTHER_CONTEXT:  # rare: the thread has not used this device before
            with self.context(device):
                code = launch(*call)
        if code:
            self._fail("cuLaunchKernel", code)

    def _device(self, ordinal: int) -> c_int:
        device = c_int()
        self._call("cuDeviceGet", byref(device), c_int(ordinal))
        return device

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            self._fail(name, code)

    def _fail(self, name: str, code: int) -> None:
        text = c_char_p()
        self._library.cuGetErrorString(c_int(code), byref(text))
        reason = text.value.decode() if text.value else "unknown"
        if name == "cuInit":
            raise EngineMissing(f"the NVIDIA driver cannot start: {reason}")
        raise EngineError(f"The CUDA driver's {name} failed with error {code}: {reason}.")
