"""The parts of cuDNN's C interface that upconv uses: loading, descriptors, errors, handles.

This interface is stable in cuDNN 9. Its descriptors are objects whose attributes are set before
they are finalized; each constant here has its name from cudnn_graph.h. NVIDIA's Python frontend is
not used. Its overhead is 11 to 36 microseconds per call, while PyTorch's entire convolution takes
15. It installs 600 MB of unrelated packages (1.18 and 1.32, measured on 26 November 2026).
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_bool, c_char_p, c_double, c_float, c_int, c_int64, c_void_p
from enum import IntEnum
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...errors import EngineMissing, EngineRefusal
from ...installation import install_command

_OLDEST = 90100
"""The oldest version: 9.1."""


class Descriptor(IntEnum):
    """Kinds of descriptors: cudnnBackendDescriptorType_t."""

    POINTWISE = 0
    CONVOLUTION = 1
    ENGINE = 2
    ENGINECFG = 3
    ENGINEHEUR = 4
    EXECUTION_PLAN = 5
    KNOB_CHOICE = 7
    OPERATION_CONVOLUTION_FORWARD = 10
    OPERATION_CONVOLUTION_BACKWARD_FILTER = 11
    OPERATION_CONVOLUTION_BACKWARD_DATA = 12
    OPERATION_POINTWISE = 13
    OPERATIONGRAPH = 15
    VARIANT_PACK = 16
    TENSOR = 17
    OPERATION_NORM_FORWARD = 29
    OPERATION_NORM_BACKWARD = 30


class Type(IntEnum):
    """Attribute types: cudnnBackendAttributeType_t."""

    HANDLE = 0
    DATA_TYPE = 1
    BOOLEAN = 2
    INT64 = 3
    FLOAT = 4
    DOUBLE = 5
    VOID_PTR = 6
    CONVOLUTION_MODE = 7
    HEUR_MODE = 8
    KNOB_TYPE = 9
    NUMERICAL_NOTE = 11
    POINTWISE_MODE = 14
    BACKEND_DESCRIPTOR = 15
    NORM_MODE = 27
    NORM_FWD_PHASE = 28


class Attribute(IntEnum):
    """Attribute names: cudnnBackendAttributeName_t."""

    POINTWISE_MODE = 0
    POINTWISE_MATH_PREC = 1
    POINTWISE_RELU_LOWER_CLIP_SLOPE = 5
    CONVOLUTION_COMP_TYPE = 100
    CONVOLUTION_CONV_MODE = 101
    CONVOLUTION_DILATIONS = 102
    CONVOLUTION_FILTER_STRIDES = 103
    CONVOLUTION_POST_PADDINGS = 104
    CONVOLUTION_PRE_PADDINGS = 105
    CONVOLUTION_SPATIAL_DIMS = 106
    ENGINEHEUR_MODE = 200
    ENGINEHEUR_OPERATION_GRAPH = 201
    ENGINEHEUR_RESULTS = 202
    ENGINECFG_ENGINE = 300
    ENGINECFG_KNOB_CHOICES = 302
    EXECUTION_PLAN_HANDLE = 400
    EXECUTION_PLAN_ENGINE_CONFIG = 401
    EXECUTION_PLAN_WORKSPACE_SIZE = 402
    KNOB_CHOICE_KNOB_TYPE = 600
    KNOB_CHOICE_KNOB_VALUE = 601
    # For OPERATION_CONVOLUTION_FORWARD; the gradients' attributes begin at 706 and 712.
    ALPHA = 700
    BETA = 701
    CONV_DESC = 702
    OPERATION_POINTWISE_PW_DESCRIPTOR = 750
    OPERATION_POINTWISE_XDESC = 751
    OPERATION_POINTWISE_BDESC = 752
    OPERATION_POINTWISE_YDESC = 753
    OPERATIONGRAPH_HANDLE = 800
    OPERATIONGRAPH_OPS = 801
    TENSOR_BYTE_ALIGNMENT = 900
    TENSOR_DATA_TYPE = 901
    TENSOR_DIMENSIONS = 902
    TENSOR_STRIDES = 903
    TENSOR_UNIQUE_ID = 906
    TENSOR_IS_VIRTUAL = 907
    TENSOR_IS_BY_VALUE = 908
    VARIANT_PACK_UNIQUE_IDS = 1000
    VARIANT_PACK_DATA_POINTERS = 1001
    VARIANT_PACK_WORKSPACE = 1003
    ENGINE_GLOBAL_INDEX = 1301
    ENGINE_NUMERICAL_NOTE = 1303


class Note(IntEnum):
    """Notes on how an engine treats numbers: cudnnBackendNumericalNote_t."""

    TENSOR_CORE = 0
    DOWN_CONVERT_INPUTS = 1
    REDUCED_PRECISION_REDUCTION = 2
    NONDETERMINISTIC = 4


class Mode(IntEnum):
    """Lists of engines: cudnnBackendHeurMode_t."""

    B = 1
    FALLBACK = 2
    A = 3


FLOAT, DOUBLE, HALF, BFLOAT16 = 0, 1, 2, 9
"""cudnnDataType_t."""

CROSS_CORRELATION = 1

_ELEMENTS: dict[Type, Any] = {
    Type.HANDLE: c_void_p,
    Type.BOOLEAN: c_bool,
    Type.INT64: c_int64,
    Type.FLOAT: c_float,
    Type.DOUBLE: c_double,
    Type.VOID_PTR: c_void_p,
    Type.BACKEND_DESCRIPTOR: c_void_p,
}  # all others are enums: c_int


class CudnnError(EngineRefusal):
    """Raised when the library refuses or fails; a plan that raises it cannot run."""


@lru_cache(maxsize=1)
def library() -> Library:
    """Return the library, loaded once per process; raise `EngineMissing` if there is none."""
    return Library(_loaded())


def _loaded() -> Any:
    """Load the library: a copy already in the process, else NVIDIA's package, else the system's."""
    names = ["libcudnn.so.9"]
    spec = find_spec("nvidia") and find_spec("nvidia.cudnn")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    names += [str(Path(folder) / "lib" / names[0]) for folder in folders]
    if "libcudnn" not in _mapped():  # a loaded copy must be used, or there would be two
        names.reverse()
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reason = str(error)
    raise EngineMissing(f"cuDNN cannot be loaded ({reason}): {install_command('cuda')}")


def _mapped() -> str:
    try:
        return Path("/proc/self/maps").read_text()
    except OSError:  # not Linux
        return ""


class Library:
    """The library's functions, with their argument types."""

    def __init__(self, loaded: Any) -> None:
        loaded.cudnnGetVersion.restype = ctypes.c_size_t
        self.version = int(loaded.cudnnGetVersion())
        if self.version < _OLDEST:
            raise EngineMissing(f"cuDNN 9.1 or newer is needed, but {self.version} is loaded")
        self._loaded = loaded
        signatures: dict[str, list[Any]] = {
            "cudnnCreate": [POINTER(c_void_p)],
            "cudnnDestroy": [c_void_p],
            "cudnnSetStream": [c_void_p, c_void_p],
            "cudnnBackendCreateDescriptor": [c_int, POINTER(c_void_p)],
            "cudnnBackendDestroyDescriptor": [c_void_p],
            "cudnnBackendFinalize": [c_void_p],
            "cudnnBackendSetAttribute": [c_void_p, c_int, c_int, c_int64, c_void_p],
            "cudnnBackendGetAttribute": [
                c_void_p, c_int, c_int, c_int64, POINTER(c_int64), c_void_p,
            ],
            "cudnnBackendExecute": [c_void_p, c_void_p, c_void_p],
        }  # fmt: skip
        for name, types in signatures.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = types, c_int
            setattr(self, name.removeprefix("cudnn").removeprefix("Backend").lower(), function)

    create: Any
    destroy: Any
    setstream: Any
    createdescriptor: Any
    destroydescriptor: Any
    finalize: Any
    setattribute: Any
    getattribute: Any
    execute: Any

    def check(self, code: int, what: str) -> None:
        """Raise `CudnnError` unless a status means success."""
        if code:
            text = ctypes.create_string_buffer(512)
            self._loaded.cudnnGetLastErrorString(text, ctypes.c_size_t(len(text)))
            self._loaded.cudnnGetErrorString.restype = c_char_p
            name = self._loaded.cudnnGetErrorString(c_int(code)) or b""
            reason = " ".join(text.value.decode(errors="replace").split())
            raise CudnnError(f"cuDNN's {what} failed: {name.decode()} {reason}".strip() + ".")


class Object:
    """A library descriptor, destroyed with this object."""

    __slots__ = ("address", "kept", "library")

    def __init__(self, kind: Descriptor) -> None:
        self.library, address = library(), c_void_p()
        self.library.check(
            self.library.createdescriptor(kind, byref(address)), f"descriptor {kind.name}"
        )
        self.address: int = address.value or 0
        self.kept: list[Object] = []  # the descriptors to which this one refers

    def set(self, name: int, kind: Type, *values: Any) -> Object:
        """Set an attribute to values of a type; keep descriptors alive as long as this one."""
        if kind is Type.BACKEND_DESCRIPTOR:
            self.kept += values
            values = tuple(value.address for value in values)
        array = (_ELEMENTS.get(kind, c_int) * len(values))(*values)
        code = self.library.setattribute(self.address, name, kind, len(values), array)
        self.library.check(code, f"attribute {name}")
        return self

    def finalized(self) -> Object:
        """Finalize the descriptor, after all attributes are set, and return it."""
        self.library.check(self.library.finalize(self.address), "finalizing")
        return self

    def get(self, name: int, kind: Type) -> list[Any]:
        """Return an attribute's values."""
        array = (_ELEMENTS.get(kind, c_int) * self._read(name, kind))()
        count = self._read(name, kind, array)
        return list(array)[:count]

    def objects(self, name: int, of: Descriptor) -> list[Object]:
        """Return an attribute's descriptors, which the library fills in."""
        kind = Type.BACKEND_DESCRIPTOR
        descriptors = [Object(of) for _ in range(self._read(name, kind))]
        array = (c_void_p * len(descriptors))(*(one.address for one in descriptors))
        return descriptors[: self._read(name, kind, array)]

    def _read(self, name: int, kind: Type, array: Any = ()) -> int:
        """Read an attribute's values into an array; return how many there are."""
        count, size = c_int64(), len(array)
        read = self.library.getattribute
        code = read(self.address, name, kind, size, byref(count), array if size else None)
        self.library.check(code, f"attribute {name}")
        return count.value

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "address", 0) and not _ending():
            self.library.destroydescriptor(self.address)


class _Handle:
    """A library handle and its latest stream; it is destroyed when its thread ends."""

    def __init__(self) -> None:
        address = c_void_p()
        library().check(library().create(byref(address)), "handle")
        self.address, self.stream, self._destroy = address.value or 0, -1, library().destroy

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "address", 0) and not _ending():  # at exit, the driver may be gone
            self._destroy(self.address)


class _Handles(threading.local):
    """A thread's handles by device. Each is bound to a device, and for each call to a stream."""

    def __init__(self) -> None:
        self._handles: dict[int, _Handle] = {}

    def of(self, device: int, stream: int) -> int:
        """Return the handle for the current device, set to a stream."""
        handle = self._handles.get(device)
        if handle is None:
            handle = self._handles[device] = _Handle()
        if handle.stream != stream:
            library().check(library().setstream(handle.address, stream), "stream")
            handle.stream = stream
        return handle.address


handles = _Handles()


def tensor(
    number: int, dims: Sequence[int], strides: Sequence[int], dtype: int,
    *, virtual: bool = False, by_value: bool = False,
) -> Object:  # fmt: skip
    """Return a graph tensor with these sizes, strides (in elements) and element type.

    virtual: a value between two operations. by_value: a single number in main memory.
    """
    descriptor = Object(Descriptor.TENSOR)
    descriptor.set(Attribute.TENSOR_DATA_TYPE, Type.DATA_TYPE, dtype)
    descriptor.set(Attribute.TENSOR_DIMENSIONS, Type.INT64, *dims)
    descriptor.set(Attribute.TENSOR_STRIDES, Type.INT64, *strides)
    descriptor.set(Attribute.TENSOR_UNIQUE_ID, Type.INT64, number)
    descriptor.set(Attribute.TENSOR_BYTE_ALIGNMENT, Type.INT64, 16)
    if virtual:
        descriptor.set(Attribute.TENSOR_IS_VIRTUAL, Type.BOOLEAN, True)
    if by_value:
        descriptor.set(Attribute.TENSOR_IS_BY_VALUE, Type.BOOLEAN, True)
    return descriptor.finalized()
