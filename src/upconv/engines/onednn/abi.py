"""The C interface of libdnnl version 3: prototypes, codes and owned handles.

`Library` declares every function used and raises `LibraryError` for a bad status. It returns each
object as a `Handle`, which destroys the object when closed or garbage-collected; a closed handle
raises. Codes are the numbers in dnnl_types.h, which are the same in versions 3.2 to 3.13.

Arguments that would crash the library are checked in descriptors.py, not here.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint
from ctypes import c_void_p as pointer
from enum import IntEnum
from typing import Any

from ...errors import EngineError
from ...problem import DType

MAX_DIMS = 12
DTYPE = {DType.FLOAT16: 1, DType.BFLOAT16: 2, DType.FLOAT32: 3, DType.FLOAT64: 7}

_STATUS = {
    1: "out of memory",
    2: "invalid arguments",
    3: "no implementation",
    4: "no other implementation",
    5: "run time error",
    6: "not required",
}


class Alg(IntEnum):
    """dnnl_alg_kind_t."""

    CONVOLUTION_DIRECT = 1
    DECONVOLUTION_DIRECT = 10
    RELU = 32
    TANH = 33
    BINARY_ADD = 131056


class Arg(IntEnum):
    """The codes that identify a primitive's arguments."""

    SRC = 1
    DST = 17
    WEIGHTS = 33
    BIAS = 41
    SCRATCHPAD = 80
    DIFF_DST = 145
    DIFF_WEIGHTS = 161
    POST_OP = 32768
    """The operand of post-operation i is POST_OP * (i + 1) | SRC_1."""
    SRC_1 = 2


class Query(IntEnum):
    """dnnl_query_t: queries about a primitive descriptor."""

    IMPLEMENTATION = 8
    SRC = 129
    WEIGHTS = 131
    DIFF_WEIGHTS = 132
    DST = 133
    DIFF_DST = 134
    SCRATCHPAD = 136
    EXECUTION_ARGUMENT = 255


class Threading(IntEnum):
    """The threading runtimes of dnnl_cpu_runtime_t."""

    OTHER = 0
    SEQUENTIAL = 1
    OPENMP = 2


FORWARD_INFERENCE = 96
"""dnnl_prop_kind_t."""

ANY = 1
"""The format tag that lets the library choose a layout."""


class LibraryError(EngineError):
    """The library refused or failed; `status` is the number that it returned."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(function, status)
        self.function, self.status = function, status

    def __str__(self) -> str:
        reason = _STATUS.get(self.status, f"status {self.status}")
        return f"oneDNN's {self.function} failed: {reason}"


class Argument(ctypes.Structure):
    """dnnl_exec_arg_t."""

    _fields_ = (("arg", c_int), ("memory", pointer))


class Version(ctypes.Structure):
    """dnnl_version_t."""

    _fields_ = (
        ("major", c_int), ("minor", c_int), ("patch", c_int), ("hash", c_char_p),
        ("cpu_runtime", c_uint), ("gpu_runtime", c_uint),
    )  # fmt: skip


_int, _float, _new, _dims = c_int, c_float, POINTER(pointer), POINTER(c_int64)
_SPATIAL = [_dims, _dims, _dims, _dims]  # strides, dilates, padding_l, padding_r
_FORWARD = [_new, pointer, _int, _int, pointer, pointer, pointer, pointer, *_SPATIAL, pointer]
_BY_WEIGHTS = [_new, pointer, _int, pointer, pointer, pointer, pointer, *_SPATIAL, pointer, pointer]

_CHECKED: dict[str, list[Any]] = {
    "dnnl_engine_create": [_new, _int, c_size_t],
    "dnnl_stream_create": [_new, pointer, c_uint],
    "dnnl_memory_desc_create_with_strides": [_new, _int, _dims, _int, _dims],
    "dnnl_memory_desc_create_with_tag": [_new, _int, _dims, _int, _int],
    "dnnl_memory_desc_clone": [_new, pointer],
    "dnnl_memory_create": [_new, pointer, pointer, pointer],
    "dnnl_primitive_attr_create": [_new],
    "dnnl_primitive_attr_set_scratchpad_mode": [pointer, _int],
    "dnnl_primitive_attr_set_post_ops": [pointer, pointer],
    "dnnl_post_ops_create": [_new],
    "dnnl_post_ops_append_eltwise": [pointer, _int, _float, _float],
    "dnnl_post_ops_append_sum": [pointer, _float, c_int32, _int],
    "dnnl_post_ops_append_binary": [pointer, _int, pointer],
    "dnnl_deconvolution_forward_primitive_desc_create": _FORWARD,
    "dnnl_convolution_forward_primitive_desc_create": _FORWARD,
    "dnnl_convolution_backward_weights_primitive_desc_create": _BY_WEIGHTS,
    "dnnl_reorder_primitive_desc_create": [_new, pointer, pointer, pointer, pointer, pointer],
    "dnnl_primitive_desc_query": [pointer, _int, _int, pointer],
    "dnnl_primitive_create": [_new, pointer],
    "dnnl_set_primitive_cache_capacity": [_int],
}  # fmt: skip
"""Functions that return a status, which becomes an error, with their arguments."""

_DESTROYERS = (
    "engine", "stream", "memory_desc", "memory", "primitive_attr", "post_ops", "primitive_desc",
    "primitive",
)  # fmt: skip

_QUICK: dict[str, tuple[Any, list[Any]]] = {
    "dnnl_get_effective_cpu_isa": (_int, []),
    "dnnl_memory_desc_equal": (_int, [pointer, pointer]),
    "dnnl_memory_desc_get_size": (c_size_t, [pointer]),
    "dnnl_memory_set_data_handle": (_int, [pointer, pointer]),
    "dnnl_primitive_desc_query_md": (pointer, [pointer, _int, _int]),  # borrowed from its owner
    "dnnl_primitive_desc_next_impl": (_int, [pointer]),
}
"""Functions that return quickly; they are called with the interpreter's lock held."""


class Handle:
    """A library object, destroyed once: by `close`, or when garbage-collected.

    >>> handle = Handle(4096, lambda address: None)
    >>> handle.close()
    >>> handle.address
    Traceback (most recent call last):
        ...
    upconv.errors.EngineError: This oneDNN handle is closed.
    """

    __slots__ = ("__weakref__", "_address", "_destroy")

    def __init__(self, address: int, destroy: Callable[[int], object]) -> None:
        self._address, self._destroy = address, destroy

    @property
    def address(self) -> int:
        """The address to pass to the library; raises `EngineError` once closed."""
        if not self._address:
            raise EngineError("This oneDNN handle is closed.")
        return self._address

    @property
    def _as_parameter_(self) -> int:
        """The address; ctypes reads it, and keeps the handle alive during the call."""
        return self.address

    def close(self) -> None:
        """Destroy the object; do nothing if it has been destroyed."""
        address, self._address = self._address, 0
        if address:
            self._destroy(address)

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ending():  # at exit, the engine may be destroyed before its objects
            self.close()


class Library:
    """The functions of a libdnnl.so.3, loaded privately so that it disturbs no other copy.

    Raises `OSError` if it cannot be loaded and `AttributeError` if a function is missing.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._slow, self._quick = ctypes.CDLL(path), ctypes.PyDLL(path)
        version = self.declared("dnnl_version", POINTER(Version), [])().contents
        self.version = (version.major, version.minor, version.patch)
        self.threading = _threading(version.cpu_runtime)
        if version.major != 3:
            return  # its functions take other arguments; the caller checks the version
        for name, arguments in _CHECKED.items():
            function = getattr(self._slow, name)
            function.restype, function.argtypes = c_int, arguments
            function.errcheck = _checked
        for name, (result, arguments) in _QUICK.items():
            setattr(self, name.removeprefix("dnnl_"), self.declared(name, result, arguments))
        self._destroyers = {
            kind: self.declared(f"dnnl_{kind}_destroy", c_int, [pointer]) for kind in _DESTROYERS
        }
        self.execute = self._slow.dnnl_primitive_execute
        """execute(primitive, stream, count, arguments) -> status; other threads run meanwhile."""
        self.execute.restype, self.execute.argtypes = c_int, [pointer, pointer, c_int, pointer]
        self.wait = self._slow.dnnl_stream_wait
        """wait(stream) -> status."""
        self.wait.restype, self.wait.argtypes = c_int, [pointer]

    memory_desc_equal: Callable[[Handle, Handle], int]
    memory_desc_get_size: Callable[[Handle], int]
    memory_set_data_handle: Callable[[int, int], int]
    primitive_desc_query_md: Callable[[Handle, int, int], int | None]
    primitive_desc_next_impl: Callable[[Handle], int]
    get_effective_cpu_isa: Callable[[], int]

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that creates no object; raise `LibraryError` unless it succeeds."""
        getattr(self._slow, f"dnnl_{name}")(*arguments)

    def create(self, name: str, *arguments: Any) -> Handle:
        """Return the object that `dnnl_{name}_create` creates."""
        return self._made(f"dnnl_{name}_create", name, arguments)

    def primitive_desc(self, name: str, *arguments: Any) -> Handle:
        """Return a descriptor from `dnnl_{name}_primitive_desc_create`."""
        return self._made(f"dnnl_{name}_primitive_desc_create", "primitive_desc", arguments)

    def attributes(self, *following: tuple[Any, ...]) -> Handle:
        """Return attributes with a user-managed scratchpad and post-operations, in order. Each one
        is the suffix of a function dnnl_post_ops_append_*, and the function's arguments."""
        attributes, post = self.create("primitive_attr"), self.create("post_ops")
        self.call("primitive_attr_set_scratchpad_mode", attributes, 1)
        for kind, *arguments in following:
            self.call(f"post_ops_append_{kind}", post, *arguments)
        self.call("primitive_attr_set_post_ops", attributes, post)
        return attributes

    def strided(self, dims: Sequence[int], dtype: int, strides: Sequence[int]) -> Handle:
        """Return the memory descriptor of a strided array; strides are in elements."""
        arguments = (len(dims), vector(dims), dtype, vector(strides))
        return self._made("dnnl_memory_desc_create_with_strides", "memory_desc", arguments)

    def any_layout(self, dims: Sequence[int], dtype: int) -> Handle:
        """Return a memory descriptor whose layout the library will choose."""
        arguments = (len(dims), vector(dims), dtype, ANY)
        return self._made("dnnl_memory_desc_create_with_tag", "memory_desc", arguments)

    def queried_md(self, descriptor: Handle, what: int, index: int = 0) -> Handle:
        """Query a primitive descriptor, and return an owned copy of the memory descriptor."""
        borrowed = self.primitive_desc_query_md(descriptor, what, index)
        return self._made("dnnl_memory_desc_clone", "memory_desc", (borrowed,))

    def implementation(self, descriptor: Handle) -> str:
        """Return the name of a primitive descriptor's implementation."""
        name = c_char_p()
        self.call("primitive_desc_query", descriptor.address, Query.IMPLEMENTATION, 0, byref(name))
        return (name.value or b"").decode()

    def _made(self, function: str, kind: str, arguments: tuple[Any, ...]) -> Handle:
        pointer_out = pointer()
        getattr(self._slow, function)(byref(pointer_out), *arguments)
        return Handle(pointer_out.value or 0, self._destroyers[kind])

    def declared(self, name: str, result: Any, arguments: list[Any]) -> Callable[..., Any]:
        """Return a function of this library or of one it depends on, such as its OpenMP.

        It is called with the interpreter's lock held. Raises `AttributeError` for an unknown name.
        """
        function: Any = getattr(self._quick, name)
        function.restype, function.argtypes = result, arguments
        return function  # type: ignore[no-any-return]


def _threading(runtime: int) -> Threading:
    return Threading(runtime) if runtime in tuple(Threading) else Threading.OTHER


def vector(values: Sequence[int]) -> Any:
    """Return a dnnl_dims_t."""
    return (c_int64 * MAX_DIMS)(*values)


def _checked(status: int, function: Any, arguments: tuple[Any, ...]) -> int:
    if status:
        raise LibraryError(function.__name__, status)
    return status
