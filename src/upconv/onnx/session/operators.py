"""ONNX Runtime custom operators, for the nodes that represent upconv's parts.

ONNX Runtime calls `_compute` for such a node, on the thread that called `Run`. There is one
operator per element type; a node's attribute `part` is the number of its `Kernel`. The operators
live as long as the process, since ONNX Runtime may call them until its last session is gone.
"""

from __future__ import annotations

import ctypes
import itertools
from ctypes import c_int64
from ctypes import c_void_p as pointer
from functools import lru_cache, partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ...arrays import Array
from ...engines.addresses import MEMORY
from ...errors import ArgumentError, EngineRefusal
from ...threads import lend
from .abi import VERSION, Library, library
from .computations import Part
from .parts import DOMAIN, OPERATOR

_VARIADIC = 2  # a node may have any number of inputs and outputs

_FIELDS = """CreateKernel GetName GetExecutionProviderType GetInputType GetInputTypeCount
    GetOutputType GetOutputTypeCount KernelCompute KernelDestroy GetInputCharacteristic
    GetOutputCharacteristic GetInputMemoryType GetVariadicInputMinArity GetVariadicInputHomogeneity
    GetVariadicOutputMinArity GetVariadicOutputHomogeneity CreateKernelV2 KernelComputeV2
    InferOutputShapeFn GetStartVersion GetEndVersion GetMayInplace ReleaseMayInplace GetAliasMap
    ReleaseAliasMap"""

_ANSWER = ctypes.CFUNCTYPE(c_int64)  # ignores its arguments
_CREATE = ctypes.CFUNCTYPE(c_int64, pointer, pointer, pointer, pointer)
_COMPUTE = ctypes.CFUNCTYPE(c_int64, c_int64, pointer)


class _CustomOp(ctypes.Structure):
    """OrtCustomOp of `VERSION`: functions, or null for ONNX Runtime's default."""

    _fields_ = (("version", ctypes.c_uint32), *((name, pointer) for name in _FIELDS.split()))


def array_at(value: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an ONNX Runtime tensor as an array, whose base lives as long as any array needs it."""
    address = library().output("GetTensorMutableData", value)
    return np.ndarray(shape, dtype, MEMORY.from_address(address))


class Kernel:
    """A part as the operator with this `number`; `refused`: why it cannot compute some shapes."""

    def __init__(self, part: Part) -> None:
        self.name, self._part = part.name, part
        self._dtype = np.dtype(part.dtype)
        self.number = next(_numbers)
        self.refused = ""
        _kernels[self.number] = self

    def compute(self, api: Library, context: int) -> None:
        """Compute the node in a running session."""
        numbers = range(len(self._part.inputs))
        values = [api.output("KernelContext_GetInput", context, i) for i in numbers]
        shapes = tuple(api.described(value)[1] for value in values)
        try:
            results, run = self._part.prepared(shapes)
        except (ArgumentError, EngineRefusal) as error:
            self.refused = str(error)
            raise
        xs = [array_at(*tensor, self._dtype) for tensor in zip(values, shapes, strict=True)]
        ys = [self._result(api, context, i, shape) for i, shape in enumerate(results)]
        with lend(_OrtPool(api, context)):
            run(xs, ys)

    def _result(self, api: Library, context: int, number: int, shape: tuple[int, ...]) -> Array:
        """Return a result's array, in ONNX Runtime's memory."""
        sizes = (c_int64 * len(shape))(*shape)
        value = api.output("KernelContext_GetOutput", context, number, sizes, len(shape))
        return array_at(value, shape, self._dtype)


class _OrtPool:
    """ONNX Runtime's threads, lent for the duration of one operator.

    They spin between operators, so any additional threads would compete with them.
    """

    def __init__(self, api: Library, context: int) -> None:
        self._api, self._context = api, context

    def awake(self) -> bool:
        """Return True: the threads spin while a session runs."""
        return True

    def run(self, work: int, argument: int, threads: int) -> None:
        """Call `work(argument, number of the call)` `threads` times, on the free threads."""
        self._api.call("KernelContext_ParallelFor", self._context, work, threads, 0, argument)


_numbers = itertools.count(1)
_kernels: WeakValueDictionary[int, Kernel] = WeakValueDictionary()  # sessions hold theirs


def _create(op: int, api: int, info: int, kernel: int) -> int:
    """Create a node's kernel, which is the number in its attribute."""
    number = ctypes.cast(kernel, ctypes.POINTER(c_int64))
    return library().status("KernelInfoGetAttribute_int64", info, b"part", number)


def _compute(kernel: int, context: int) -> int:
    """Compute a node; return 0, or a status with the error, which stops `Run`."""
    api = library()
    try:
        _kernels[kernel].compute(api, context)
    except Exception as error:
        return api.status("CreateStatus", 1, f"{type(error).__name__}: {error}".encode())
    return 0


@lru_cache(maxsize=1)
def domain() -> int:
    """Return the domain of the operators, to be added to a session's options."""
    api = library()
    operators = api.output("CreateCustomOpDomain", DOMAIN.encode())
    for dtype, code in {"float32": 1, "float16": 10, "float64": 11, "bfloat16": 16}.items():
        name = ctypes.create_string_buffer(OPERATOR.format(dtype).encode())
        answers = {
            "GetName": ctypes.addressof(name),
            "GetExecutionProviderType": 0,  # null: the processor
            "GetInputType": code,
            "GetInputTypeCount": 1,
            "GetOutputType": code,
            "GetOutputTypeCount": 1,
            "GetInputCharacteristic": _VARIADIC,
            "GetOutputCharacteristic": _VARIADIC,
            # Minimum numbers of inputs and outputs, and whether all have the same type.
            **{name: 1 for name in _FIELDS.split() if name.startswith("GetVariadic")},
            "GetInputMemoryType": 0,  # the processor's
        }
        functions: dict[str, Any] = {
            "CreateKernelV2": _CREATE(_create),
            "KernelComputeV2": _COMPUTE(_compute),
            # Nothing is to be destroyed, and Python may have exited by then.
            "KernelDestroy": ctypes.pythonapi.Py_IsInitialized,
            **{key: _ANSWER(partial(int, answer)) for key, answer in answers.items()},
        }
        addresses = {key: ctypes.cast(function, pointer) for key, function in functions.items()}
        operator = _CustomOp(version=VERSION, **addresses)
        _forever.append((name, functions, operator))
        api.call("CustomOpDomain_Add", operators, ctypes.addressof(operator))
    return operators


_forever: list[Any] = []  # ONNX Runtime may call them at any time
