"""Custom operators of ONNX Runtime, the nodes that stand for layers that upconv computes.

ONNX Runtime calls `_compute` where such a node's turn comes, on the thread that called `Run`. There
is one operator per element type; a node's attribute `layer` says which `Kernel` it stands for. The
operators live as long as the process: ONNX Runtime may call them until its last session is gone.
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
from ...errors import UpconvError
from ...threads import lend
from .abi import VERSION, Library, library
from .layers import DOMAIN, OPERATOR, Known, Layer

_MOST_PLANS = 64  # of a layer, one per shape of its input; most share the packed weight
_PIECE = 1 << 15

_FIELDS = """CreateKernel GetName GetExecutionProviderType GetInputType GetInputTypeCount
    GetOutputType GetOutputTypeCount KernelCompute KernelDestroy GetInputCharacteristic
    GetOutputCharacteristic GetInputMemoryType GetVariadicInputMinArity GetVariadicInputHomogeneity
    GetVariadicOutputMinArity GetVariadicOutputHomogeneity CreateKernelV2 KernelComputeV2
    InferOutputShapeFn GetStartVersion GetEndVersion GetMayInplace ReleaseMayInplace GetAliasMap
    ReleaseAliasMap"""

_ANSWER = ctypes.CFUNCTYPE(c_int64)  # whatever it is asked
_CREATE = ctypes.CFUNCTYPE(c_int64, pointer, pointer, pointer, pointer)
_COMPUTE = ctypes.CFUNCTYPE(c_int64, c_int64, pointer)


class _CustomOp(ctypes.Structure):
    """OrtCustomOp of `VERSION`: functions, null where ONNX Runtime has a default."""

    _fields_ = (("version", ctypes.c_uint32), *((name, pointer) for name in _FIELDS.split()))


def array_at(value: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A tensor of ONNX Runtime as an array; its base lives as long as any array needs it."""
    address = library().made("GetTensorMutableData", value)
    return np.ndarray(shape, dtype, MEMORY.from_address(address))


class Kernel:
    """A layer as an operator, named by `number`; `failed`: why it has no plan for a shape."""

    def __init__(self, layer: Layer, threads: int) -> None:
        self.name = layer.name
        self._dtype, self._slopes = layer.weight.dtype, layer.slopes
        known: list[Known] = []
        self._plan = lru_cache(_MOST_PLANS)(partial(layer.plan, threads=threads, known=known))
        self.number = next(_numbers)
        self.failed: UpconvError | None = None
        _kernels[self.number] = self

    def compute(self, api: Library, context: int) -> None:
        """Compute the node of a running session."""
        value = api.made("KernelContext_GetInput", context, 0)
        _, shape = api.described(value)
        try:
            plan = self._plan(shape)
        except UpconvError as error:
            self.failed = error
            raise
        out = plan.output_shape
        sizes = (c_int64 * len(out))(*out)
        result = api.made("KernelContext_GetOutput", context, 0, sizes, len(out))
        x, y = array_at(value, shape, self._dtype), array_at(result, out, self._dtype)
        with lend(_OrtPool(api, context)):
            plan(x, out=y)
        if self._slopes is not None:
            prelu(y, self._slopes)


def prelu(y: Array, slopes: Array) -> None:
    """PRelu in place, with a slope per channel: of y, (N, C, *size), negative values times slope.

    Piece by piece, so that the data stays in cache; ONNX Runtime's takes three times as long.

    >>> y = np.array([[[-2.0, np.inf], [-2.0, 3.0]]])
    >>> prelu(y, np.array([0.0, 2.0]))
    >>> y
    array([[[ 0., inf],
            [-4.,  3.]]])
    """
    room = np.empty(min(_PIECE, y.size), y.dtype)
    with np.errstate(all="ignore"):  # infinity and NaN are results, not accidents
        for image in y:
            for plane, slope in zip(image, slopes, strict=True):
                flat = plane.reshape(-1)
                for start in range(0, flat.size, _PIECE):
                    piece = flat[start : start + _PIECE]
                    scaled = room[: piece.size]
                    # 0 times infinity is NaN, of which max would be NaN.
                    np.multiply(piece, slope, out=scaled) if slope else scaled.fill(0)
                    (np.maximum if slope <= 1 else np.minimum)(piece, scaled, out=piece)


class _OrtPool:
    """ONNX Runtime's threads, lent for the time of one operator.

    They spin between its operators: threads of ours beside them would share the processors.
    """

    def __init__(self, api: Library, context: int) -> None:
        self._api, self._context = api, context

    def awake(self) -> bool:
        """They spin while a session runs."""
        return True

    def run(self, work: int, argument: int, threads: int) -> None:
        """Have `work(argument, number of the call)` called `threads` times, on those free."""
        self._api.call("KernelContext_ParallelFor", self._context, work, threads, 0, argument)


_numbers = itertools.count(1)
_kernels: WeakValueDictionary[int, Kernel] = WeakValueDictionary()  # sessions hold theirs


def _create(op: int, api: int, info: int, kernel: int) -> int:
    """A node's kernel is the number in its attribute."""
    number = ctypes.cast(kernel, ctypes.POINTER(c_int64))
    return library().status("KernelInfoGetAttribute_int64", info, b"layer", number)


def _compute(kernel: int, context: int) -> int:
    """0, or a status that says what went wrong, and stops `Run`."""
    api = library()
    try:
        _kernels[kernel].compute(api, context)
    except Exception as error:
        return api.status("CreateStatus", 1, f"{type(error).__name__}: {error}".encode())
    return 0


@lru_cache(maxsize=1)
def domain() -> int:
    """The operators, one input and one output each, to be added to a session's options."""
    api = library()
    made = api.made("CreateCustomOpDomain", DOMAIN.encode())
    for dtype, code in {"float32": 1, "float16": 10, "float64": 11, "bfloat16": 16}.items():
        name = ctypes.create_string_buffer(OPERATOR.format(dtype).encode())
        answers = {
            "GetName": ctypes.addressof(name),
            "GetExecutionProviderType": 0,  # null: the processor
            "GetInputType": code,
            "GetInputTypeCount": 1,
            "GetOutputType": code,
            "GetOutputTypeCount": 1,
            "GetInputCharacteristic": 0,  # required
            "GetOutputCharacteristic": 0,
            "GetInputMemoryType": 0,  # the processor's
        }
        functions: dict[str, Any] = {
            "CreateKernelV2": _CREATE(_create),
            "KernelComputeV2": _COMPUTE(_compute),
            # Nothing is to be done, and Python may be gone by then.
            "KernelDestroy": ctypes.pythonapi.Py_IsInitialized,
            **{key: _ANSWER(partial(int, answer)) for key, answer in answers.items()},
        }
        addresses = {key: ctypes.cast(each, pointer) for key, each in functions.items()}
        operator = _CustomOp(version=VERSION, **addresses)
        _forever.append((name, functions, operator))
        api.call("CustomOpDomain_Add", made, ctypes.addressof(operator))
    return made


_forever: list[Any] = []  # as sessions may be
