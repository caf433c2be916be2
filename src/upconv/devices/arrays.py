"""The view of an array on a GPU, the interface of the library that owns it, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np

from ..errors import DTypeError, MemoryLimitError
from ..problem import DType

Native = Any
"""An array of the library's own type."""


class Library(Protocol):
    """The interface that upconv needs from a library of GPU arrays."""

    name: str

    def __hash__(self) -> int:
        """Hash the object by identity; there is one per library."""

    def array(self, argument: str, native: Native) -> DeviceArray:
        """Return a view of one of the library's arrays."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: int) -> Native:
        """Return uninitialized memory; raise the library's own error if there is too little."""

    def address(self, native: Native) -> int:
        """Return the address of the first element."""

    def contiguous(self, native: Native) -> bool:
        """Return whether the elements are contiguous in the order of the axes (C order)."""

    def copy(self, native: Native) -> Native:
        """Return a contiguous copy."""

    def permuted(self, native: Native, axes: tuple[int, ...]) -> Native:
        """Return a view with its axes in another order."""

    def cast(self, native: Native, dtype: np.dtype[Any]) -> Native:
        """Return the values in another dtype; the array itself if it already has that dtype."""

    def sums(self, native: Native, axes: tuple[int, ...]) -> Native:
        """Return sums over axes in float64."""

    def stream(self, device: int) -> int:
        """Return the handle of the library's current stream, which is the caller's."""

    def capturing(self, device: int) -> bool:
        """Return whether a CUDA graph is being captured on that stream."""

    def on(self, device: int) -> Any:
        """Return a context manager that makes a device current."""

    def from_host(self, array: np.ndarray[Any, Any], device: int) -> Native:
        """Return a copy, on the device, of an array in main memory."""

    def seconds(self, run: Callable[[], object], count: int, device: int) -> float:
        """Return the time per run between two events around `count` runs."""

    def is_out_of_memory(self, error: Exception) -> bool:
        """Return whether an error means that the device has too little memory."""


@contextmanager
def out_of_memory(library: Library, purpose: str) -> Iterator[None]:
    """Convert a library's out-of-memory error in the block to `MemoryLimitError`."""
    try:
        yield
    except Exception as error:
        raise _raised(library, purpose, error) from None


def _raised(library: Library, purpose: str, error: Exception) -> Exception:
    """Return the error to raise for a library's error."""
    if not library.is_out_of_memory(error):
        return error
    reason = " ".join(str(error).split())[:300]
    message = f"{purpose} does not fit on the GPU: {reason} Work on smaller pieces of the input."
    return MemoryLimitError(message)


@dataclass(slots=True, eq=False, repr=False)
class DeviceArray:
    """A view of an array on a GPU.

    strides: in elements. pointer: the address of the first element. device: the device number.
    given_back: converts a result to the caller's own type of array if it comes from another
    library, which `origin` names.
    """

    library: Library
    native: Native
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    pointer: int
    device: int
    given_back: Callable[[Native], Any] | None = None
    origin: str = ""

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def place(self) -> str:
        """The device as a string."""
        return f"cuda:{self.device}"

    @property
    def span(self) -> range:
        """The range of addresses from the first byte to the last."""
        if not self.size:
            return range(self.pointer, self.pointer)
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low, high = sum(min(0, step) for step in steps), sum(max(0, step) for step in steps)
        width = self.dtype.itemsize
        return range(self.pointer + low * width, self.pointer + (high + 1) * width)

    @property
    def contiguous(self) -> bool:
        """Whether the elements are contiguous in the order of the axes (C order)."""
        return self.library.contiguous(self.native)

    def __getitem__(self, index: Any) -> DeviceArray:
        return self._view(self.native[index])

    def transpose(self, axes: tuple[int, ...]) -> DeviceArray:
        """Return a view with its axes in another order."""
        return self._view(self.library.permuted(self.native, axes))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any] | None = None) -> DeviceArray:
        """Return uninitialized memory on the same device; `MemoryLimitError` without enough."""
        kind = self.dtype if dtype is None else dtype
        try:  # not `out_of_memory`, which takes two microseconds
            native = self.library.empty(shape, kind, self.device)
        except Exception as error:
            raise _raised(self.library, f"an array of shape {shape}", error) from None
        return self._view(native)

    def copy(self) -> DeviceArray:
        """Return a contiguous copy; `MemoryLimitError` if there is too little memory."""
        with out_of_memory(self.library, f"a copy of an array of shape {self.shape}"):
            return self._view(self.library.copy(self.native))

    def _view(self, native: Native) -> DeviceArray:
        view = self.library.array("an array", native)
        view.given_back = self.given_back
        return view

    def __repr__(self) -> str:
        return f"<array of {self.library.name} on {self.place}: {self.shape}, {self.dtype}>"


def dtype_named(argument: str, name: str) -> np.dtype[Any]:
    """Return the NumPy dtype with a library's dtype name; `DTypeError` if it is not supported."""
    if name not in _KNOWN:
        expected = "float16, bfloat16, float32 or float64"
        raise DTypeError(f"{argument}.dtype", name, expected, "Convert it first.")
    return _KNOWN[name].numpy


_KNOWN = {kind.value: kind for kind in DType}
