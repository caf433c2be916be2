"""Operators of ONNX Runtime that upconv computes: the nodes that stand for its layers.

ONNX Runtime calls `_compute` where such a node's turn comes, on the thread that called `Run`, with
the node's input in memory of its own, and the layer's plan writes into the output that ONNX Runtime
made: nothing is copied. The plan's work is divided among ONNX Runtime's own threads
(`KernelContext_ParallelFor`): they spin between its operators, and threads of ours beside them
would share the processors.

There is one operator per element type; a node's attribute `layer` says which `Kernel` it stands
for. The operators and their functions live as long as the process: ONNX Runtime may call them in
any session, and until the last one is gone.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_int64
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ...arrays import Array
from ...errors import UpconvError
from ...plans import Plan
from ...threads import lend
from .abi import DONE, Library, library
from .callbacks import Operators

DOMAIN = "upconv.session"
_MOST_PLANS = 8
"""Plans that a layer keeps, one per shape of its input; each has the weights, packed."""
_PIECE = 1 << 15


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
def _operators() -> Operators:
    """They stay for as long as the process: so may sessions."""
    codes = {"float32": 1, "float16": 10, "float64": 11, "bfloat16": 16}
    return Operators(
        library(), _compute, {f"Convolution_{dtype}": code for dtype, code in codes.items()}
    )
