"""Operators of ONNX Runtime that upconv computes: the nodes that stand for its layers.

ONNX Runtime calls `_compute` where such a node's turn comes, on the thread that called `Run`, with
the node's input in memory of its own, and the layer's plan writes into the output that ONNX Runtime
made: nothing is copied. The plan's work is divided among ONNX Runtime's own threads
(`KernelContext_ParallelFor`): they spin between its operators, and threads of ours beside them
would share the processors.

There is one operator per element type; a node's attribute `layer` says which `Kernel` it stands
for. The operators and their functions live as long as the process: ONNX Runtime may call them in
any session, and until the last one is gone.

Python's functions are no good here: Ctrl-C may be raised before their first line, where nothing
catches it. ctypes then prints it, and returns whatever lies on the stack. So the answers to
questions about an operator are functions that return a constant, and `compute` hands Python a place
for its answer. Where that stays empty, the operator has failed: ONNX Runtime must not go on without
its output.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import c_int64
from ctypes import c_void_p as pointer
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ...arrays import Array
from ...engines.jit.compile import Code
from ...engines.jit.cpu import host
from ...engines.jit.emit import Module
from ...errors import UpconvError
from ...plans import Plan
from ...threads import lend
from .abi import DONE, VERSION, Library, library

DOMAIN = "upconv.session"
_MOST_PLANS = 8
"""Plans that a layer keeps, one per shape of its input; each has the weights, packed."""
_PIECE = 1 << 15

_FIELDS = """CreateKernel GetName GetExecutionProviderType GetInputType GetInputTypeCount
    GetOutputType GetOutputTypeCount KernelCompute KernelDestroy GetInputCharacteristic
    GetOutputCharacteristic GetInputMemoryType GetVariadicInputMinArity GetVariadicInputHomogeneity
    GetVariadicOutputMinArity GetVariadicOutputHomogeneity CreateKernelV2 KernelComputeV2
    InferOutputShapeFn GetStartVersion GetEndVersion GetMayInplace ReleaseMayInplace GetAliasMap
    ReleaseAliasMap"""

_COMPUTE = ctypes.CFUNCTYPE(None, pointer, pointer, ctypes.POINTER(ctypes.c_int64))

_TEXT = """
@attribute = private constant [6 x i8] c"layer\\00"
@message = private constant [12 x i8] c"interrupted\\00"

define i64 @CreateKernelV2(ptr %op, ptr %api, ptr %info, ptr %kernel) {{
  %ask = inttoptr i64 {get_attribute} to ptr
  %status = call i64 %ask(ptr %info, ptr @attribute, ptr %kernel)
  ret i64 %status
}}

define i64 @KernelComputeV2(i64 %kernel, i64 %context) {{
  %answer = alloca i64
  store i64 0, ptr %answer
  %compute = inttoptr i64 {compute} to ptr
  call void %compute(i64 %kernel, i64 %context, ptr %answer)
  %said = load i64, ptr %answer
  %nothing = icmp eq i64 %said, 0
  br i1 %nothing, label %failed, label %returned
failed:
  %create = inttoptr i64 {create_status} to ptr
  %status = call i64 %create(i32 1, ptr @message)
  ret i64 %status
returned:
  %done = icmp eq i64 %said, {done}
  %given = select i1 %done, i64 0, i64 %said
  ret i64 %given
}}

define void @KernelDestroy(i64 %kernel) {{
  ret void
}}
"""


class _CustomOp(ctypes.Structure):
    """OrtCustomOp of `VERSION`: functions, null where ONNX Runtime has a default."""

    _fields_ = (("version", ctypes.c_uint32), *((name, pointer) for name in _FIELDS.split()))


class _Text(Module):
    """Functions in LLVM's own language: these return something, which the emitter's do not."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def text(self) -> str:
        """The module."""
        return self._text


class _Operators:
    """Operators with one input and one output, whose kernels are the numbers in "layer".

    compute: called with a kernel, ONNX Runtime's context, and the place for the answer. kinds: the
    operators' names, and the element type of both values as ONNX numbers it.
    """

    def __init__(
        self, api: Library, compute: Callable[[int, int, Any], None], kinds: Mapping[str, int]
    ) -> None:
        self._compute = _COMPUTE(compute)
        text = _TEXT.format(
            get_attribute=api.address_of("KernelInfoGetAttribute_int64"),
            create_status=api.address_of("CreateStatus"),
            compute=ctypes.cast(self._compute, pointer).value,
            done=DONE,
        )
        self._names = [ctypes.create_string_buffer(name.encode()) for name in kinds]
        answers = [
            _answers(ctypes.addressof(name), code)
            for name, code in zip(self._names, kinds.values(), strict=True)
        ]
        for i, each in enumerate(answers):
            text += "".join(f"define i64 @{k}_{i}() {{ ret i64 {v} }}\n" for k, v in each.items())
        shared = ("CreateKernelV2", "KernelComputeV2", "KernelDestroy")
        own = [f"{name}_{i}" for i, each in enumerate(answers) for name in each]
        self._code = Code(_Text(text), (*shared, *own), host())
        at = self._code.addresses
        self._made = [
            _CustomOp(
                version=VERSION,
                **{name: at[name] for name in shared},
                **{name: at[f"{name}_{i}"] for name in each},
            )
            for i, each in enumerate(answers)
        ]

    @property
    def addresses(self) -> list[int]:
        """Where the operators are, for as long as this object lives."""
        return [ctypes.addressof(op) for op in self._made]


def _answers(name: int, code: int) -> dict[str, int]:
    return {
        "GetName": name,
        "GetExecutionProviderType": 0,  # null: the processor
        "GetInputType": code,
        "GetInputTypeCount": 1,
        "GetOutputType": code,
        "GetOutputTypeCount": 1,
        "GetInputCharacteristic": 0,  # required
        "GetOutputCharacteristic": 0,
        "GetInputMemoryType": 0,  # the processor's
    }


class Memory:
    """Memory of ONNX Runtime as NumPy sees it."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        plain = dtype.str if dtype.isbuiltin == 1 else f"<u{dtype.itemsize}"
        self.__array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "typestr": plain,
            "version": 3,
        }
        self.dtype = dtype

    def array(self) -> Array:
        """The memory as an array, which keeps this object alive."""
        array = np.asarray(self)
        return array if array.dtype == self.dtype else array.view(self.dtype)


class Kernel:
    """A layer as an operator: a plan per shape of its input."""

    def __init__(
        self,
        dtype: np.dtype[Any],
        plan: Callable[[tuple[int, ...]], Plan],
        slopes: Array | None = None,
    ) -> None:
        self._dtype, self._plan, self._slopes = dtype, plan, slopes
        self._plans: OrderedDict[tuple[int, ...], Plan] = OrderedDict()
        self._lock = threading.Lock()
        self.number = next(_numbers)
        """By which nodes name it."""
        self.seconds = 0.0
        """What the last call took."""
        self.failed: UpconvError | None = None
        """Why there is no plan for a shape that it was given."""
        _kernels[self.number] = self

    def compute(self, api: Library, context: int) -> None:
        """Compute the node of a running session."""
        start = time.perf_counter()
        value = api.made("KernelContext_GetInput", context, 0)
        _, shape = api.described(value)
        plan = self._plan_for(shape)
        out = plan.output_shape
        sizes = (c_int64 * len(out))(*out)
        result = api.made("KernelContext_GetOutput", context, 0, sizes, len(out))
        x = Memory(api.data(value), shape, self._dtype).array()
        y = Memory(api.data(result), out, self._dtype).array()
        with lend(_Team(api, context)):
            plan(x, out=y)
        if self._slopes is not None:
            prelu(y, self._slopes)
        self.seconds = time.perf_counter() - start

    def _plan_for(self, shape: tuple[int, ...]) -> Plan:
        with self._lock:
            plan = self._plans.get(shape)
            if plan is None:
                try:
                    plan = self._plans[shape] = self._plan(shape)
                except UpconvError as error:
                    self.failed = error
                    raise
                if len(self._plans) > _MOST_PLANS:
                    self._plans.popitem(last=False)
            else:
                self._plans.move_to_end(shape)
            return plan


def prelu(y: Array, slopes: Array) -> None:
    """PRelu in place, with a slope per channel: of y, (N, C, *size), negative values times slope.

    Piece by piece, so that the data stays in cache; ONNX Runtime's takes three times as long.

    >>> y = np.array([[[-2.0, 3.0], [-2.0, 3.0]]])
    >>> prelu(y, np.array([0.5, 2.0]))
    >>> y
    array([[[-1.,  3.],
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


class _Team:
    """ONNX Runtime's threads, lent for the time of one operator."""

    def __init__(self, api: Library, context: int) -> None:
        self._api, self._context = api, context

    def awake(self) -> bool:
        """They spin while a session runs."""
        return True

    def run(self, work: int, argument: int, threads: int) -> None:
        """Have `work(argument)` called so many times, on as many threads as are free.

        ONNX Runtime calls it with the number of the call as well, which `work` does not look at.
        """
        self._api.call("KernelContext_ParallelFor", self._context, work, threads, 0, argument)


_numbers = itertools.count(1)
_kernels: WeakValueDictionary[int, Kernel] = WeakValueDictionary()  # sessions hold theirs


class Calls(threading.local):
    """What an operator raised in the session that this thread runs."""

    error: BaseException | None = None


calls = Calls()


@contextmanager
def escaped() -> Iterator[None]:
    """Have `calls` know of errors that leave an operator where none can be caught.

    Ctrl-C may be raised before a function's first line; ctypes would print it and go on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if unraisable.object is _compute or "ctypes callback" in (unraisable.err_msg or ""):
            calls.error = unraisable.exc_value
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _compute(kernel: int, context: int, answer: Any) -> None:
    """Answer `DONE`, or a status, which stops `Run`; that then raises the error."""
    api = library()
    try:
        _kernels[kernel].compute(api, context)
    except BaseException as error:
        calls.error = error
        answer[0] = api.failure(f"{type(error).__name__}: {error}")
    else:
        answer[0] = DONE


def operator_name(dtype: np.dtype[Any]) -> str:
    """The operator of an element type.

    >>> operator_name(np.dtype("float32"))
    'Convolution_float32'
    """
    return f"Convolution_{dtype.name}"


@lru_cache(maxsize=1)
def domain() -> int:
    """The operators, to be added to a session's options."""
    api = library()
    made = api.made("CreateCustomOpDomain", DOMAIN.encode())
    for address in _operators().addresses:
        api.call("CustomOpDomain_Add", made, address)
    return made


@lru_cache(maxsize=1)
def _operators() -> _Operators:
    """They stay for as long as the process: so may sessions."""
    codes = {"float32": 1, "float16": 10, "float64": 11, "bfloat16": 16}
    return _Operators(
        library(), _compute, {f"Convolution_{dtype}": code for dtype, code in codes.items()}
    )
