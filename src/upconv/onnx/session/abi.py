"""ONNX Runtime's C interface: the functions that a session with upconv's operators needs.

ONNX Runtime's wheels contain its C library (from 1.20 on). `OrtApi` is a table of functions. Later
versions only append to it, and ONNX Runtime's source asserts its size for each version, so the
indices below are valid for all versions.

Short calls keep the interpreter's lock: a thread that released it might wait to reacquire it.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t
from ctypes import c_void_p as pointer
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import EngineError, EngineMissing, MemoryLimitError

VERSION = 20  # of the interface, as in ONNX Runtime 1.20

_OUT, _SIZES = POINTER(pointer), POINTER(c_int64)

# name -> (index in OrtApi, whether the call releases the lock, arguments)
_FUNCTIONS: dict[str, tuple[int, bool, tuple[Any, ...]]] = {
    "CreateStatus": (0, False, (c_int, c_char_p)),
    "CreateEnv": (3, True, (c_int, c_char_p, _OUT)),
    "CreateSession": (7, True, (pointer, pointer, pointer, _OUT)),
    "CreateSessionFromArray": (8, True, (pointer, c_char_p, c_size_t, pointer, _OUT)),
    "Run": (9, True, (pointer, pointer, _OUT, _OUT, c_size_t, _OUT, c_size_t, _OUT)),
    "CreateSessionOptions": (10, False, (_OUT,)),
    "SetSessionLogSeverityLevel": (22, False, (pointer, c_int)),
    "SetIntraOpNumThreads": (24, False, (pointer, c_int)),
    "SetInterOpNumThreads": (25, False, (pointer, c_int)),
    "CreateCustomOpDomain": (26, False, (c_char_p, _OUT)),
    "CustomOpDomain_Add": (27, False, (pointer, pointer)),
    "AddCustomOpDomain": (28, False, (pointer, pointer)),
    "CreateTensorWithDataAsOrtValue": (
        49,
        False,
        (pointer, pointer, c_size_t, _SIZES, c_size_t, c_int, _OUT),
    ),
    "GetTensorMutableData": (51, False, (pointer, _OUT)),
    "GetTensorElementType": (60, False, (pointer, POINTER(c_int))),
    "GetDimensionsCount": (61, False, (pointer, POINTER(c_size_t))),
    "GetDimensions": (62, False, (pointer, _SIZES, c_size_t)),
    "GetTensorTypeAndShape": (65, False, (pointer, _OUT)),
    "CreateCpuMemoryInfo": (69, False, (c_int, c_int, _OUT)),
    "KernelInfoGetAttribute_int64": (86, False, (pointer, c_char_p, _SIZES)),
    "KernelContext_GetInput": (90, False, (pointer, c_size_t, _OUT)),
    "KernelContext_GetOutput": (91, False, (pointer, c_size_t, _SIZES, c_size_t, _OUT)),
    "KernelContext_ParallelFor": (274, True, (pointer, pointer, c_size_t, c_size_t, pointer)),
}
_GET_MESSAGE = 2
_RELEASES = {"Status": 93, "Session": 95, "Value": 96, "Shape": 99, "SessionOptions": 100}
_OUT_OF_MEMORY = ("Failed to allocate memory", "bad_alloc", "MemoryError", "MemoryLimitError")
_SILENT = 4  # log only fatal errors
_ARENA, _DEFAULT_MEMORY = 1, 0


class Library:
    """The library, its environment, and the memory that all sessions share."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        # OrtApiBase begins with the function GetApi.
        library.OrtGetApiBase.restype = POINTER(ctypes.CFUNCTYPE(pointer, ctypes.c_uint32))
        api = library.OrtGetApiBase()[0](VERSION)
        if not api:
            raise EngineError(f"{path.name} does not have version {VERSION} of its interface.")
        table = ctypes.cast(api, _OUT)

        def function(index: int, slow: bool, *types: Any) -> Any:
            return (ctypes.CFUNCTYPE if slow else ctypes.PYFUNCTYPE)(*types)(table[index])

        self._calls = {
            name: function(index, slow, pointer, *arguments)
            for name, (index, slow, arguments) in _FUNCTIONS.items()
        }
        self._message = function(_GET_MESSAGE, False, c_char_p, pointer)
        self._release = {
            name: function(index, name == "Session", None, pointer)
            for name, index in _RELEASES.items()
        }
        self.environment = self.output("CreateEnv", _SILENT, b"upconv")
        self.memory = self.output("CreateCpuMemoryInfo", _ARENA, _DEFAULT_MEMORY)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status; raise `EngineError` if that is not null."""
        status = self.status(name, *arguments)
        if status:
            message = " ".join(self._message(status).decode(errors="replace").split())[:500]
            self._release["Status"](status)
            if any(word in message for word in _OUT_OF_MEMORY):
                raise MemoryLimitError(f"ONNX Runtime's {name} needs too much memory: {message}")
            raise EngineError(f"ONNX Runtime's {name} failed: {message}")

    def output(self, name: str, *arguments: Any) -> int:
        """Call a function whose last argument is an output; return the output's value."""
        output = pointer()
        self.call(name, *arguments, byref(output))
        return output.value or 0

    def status(self, name: str, *arguments: Any) -> int:
        """Call a function that returns a status; 0 means success."""
        return self._calls[name](*arguments) or 0

    def release(self, kind: str, handle: int) -> None:
        """Release a handle of this kind."""
        self._release[kind](handle)

    def described(self, value: int) -> tuple[int, tuple[int, ...]]:
        """Return a tensor's element type, as ONNX numbers it, and its shape."""
        shape = self.output("GetTensorTypeAndShape", value)
        try:
            kind, count = c_int(), c_size_t()
            self.call("GetTensorElementType", shape, byref(kind))
            self.call("GetDimensionsCount", shape, byref(count))
            sizes = (c_int64 * count.value)()
            self.call("GetDimensions", shape, sizes, count.value)
        finally:
            self.release("Shape", shape)
        return kind.value, tuple(sizes)


@lru_cache(maxsize=1)
def library() -> Library:
    """Return the C library of the installed onnxruntime; raise `EngineMissing` if it has none."""
    import onnxruntime

    names = {"win32": "onnxruntime.dll", "darwin": "libonnxruntime*.dylib"}
    name = names.get(sys.platform, "libonnxruntime.so*")
    paths = sorted(Path(onnxruntime.__file__).parent.glob(f"capi/{name}"))
    if not paths:
        raise EngineMissing(
            f"onnxruntime {onnxruntime.__version__} comes without its C library:"
            " pip install 'onnxruntime>=1.20'"
        )
    return Library(paths[0])
