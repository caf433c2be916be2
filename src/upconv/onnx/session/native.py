"""A session of ONNX Runtime's C library, in which upconv's operators are known."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from ctypes import c_char_p, c_int64
from ctypes import c_void_p as pointer
from typing import Any

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ...errors import EngineError
from .abi import library
from .operators import Kernel, Memory, calls, deferred, domain


class _Running:
    """Which threads run something, so that the interpreter does not end in the middle of one.

    An operator of ours that wanted its lock then would have its thread ended within ONNX Runtime,
    and that the process.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads, self._ending = set[int](), False

    def __enter__(self) -> None:
        with self._changed:
            if self._ending:
                raise EngineError("The interpreter is ending: no session runs any more.")
            self._threads.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._threads.discard(threading.get_ident())
            self._changed.notify_all()

    def end(self) -> None:
        """Wait for runs of threads that nobody waits for, and let no other begin.

        Not for the thread that ends the interpreter: Ctrl-C may have come before it could leave.
        """
        with self._changed:
            self._ending = True
            self._changed.wait_for(lambda: not self._threads - {threading.get_ident()})


_running = _Running()
atexit.register(_running.end)
if hasattr(os, "register_at_fork"):  # runs of other threads do not go on in the child
    os.register_at_fork(after_in_child=_running.__init__)  # type: ignore[misc]


class Native:
    """A model on the processor, with operators for some kernels in its main graph.

    model: the bytes of a file, or its path. Raises `EngineError` where ONNX Runtime refuses it.
    """

    def __init__(self, model: bytes | str, threads: int, kernels: Sequence[Kernel] = ()) -> None:
        api = self._api = library()
        self._kernels, self._session = kernels, 0
        options = api.made("CreateSessionOptions")
        calls.error = None
        given: tuple[Any, ...]
        try:
            api.call("SetIntraOpNumThreads", options, threads)
            api.call("SetInterOpNumThreads", options, 1)
            api.call("SetSessionLogSeverityLevel", options, 4)
            api.call("AddCustomOpDomain", options, domain())
            if isinstance(model, bytes):
                how, given = "CreateSessionFromArray", (model, len(model))
            else:
                path = c_char_p(model.encode())
                how, given = "CreateSession", (path,)
                if sys.platform == "win32":
                    given = (ctypes.c_wchar_p(model),)
            with deferred():
                self._session = api.made(how, api.environment, *given, options)
            if calls.error is not None:
                raise calls.error
        finally:
            api.release("SessionOptions", options)

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of these names, the caller's own; feeds: C-contiguous arrays of all inputs.

        Raises what an operator of ours raised, `EngineError` where ONNX Runtime fails.
        """
        api = self._api
        held: list[int] = []
        made, taken = (pointer * len(names))(), False
        calls.error = None
        given, asked = _names(feeds), _names(names)
        try:
            held.extend(map(_value, feeds.values()))
            fed = given, (pointer * len(held))(*held), len(held)
            try:
                with _running, deferred():
                    api.call("Run", self._session, None, *fed, asked, len(names), made)
            except EngineError:
                if calls.error is None:
                    raise
            if calls.error is not None:
                raise calls.error from None
            taken = True
            return [_Result(value).array() for value in made if value]
        finally:
            calls.error = None  # which has the frame, and all that is in it
            for value in (*held, *(() if taken else filter(None, made))):
                api.release("Value", value)

    def __del__(self) -> None:
        if self._session:
            self._api.release("Session", self._session)


def _names(names: Any) -> Any:
    held = [name.encode() for name in names]
    return ctypes.cast((c_char_p * len(held))(*held), ctypes.POINTER(pointer))


def _value(array: Array) -> int:
    """An array as ONNX Runtime's tensor, sharing its memory."""
    api = library()
    sizes = (c_int64 * array.ndim)(*array.shape)
    return api.made(
        "CreateTensorWithDataAsOrtValue",
        api.memory,
        array.ctypes.data,
        array.nbytes,
        sizes,
        array.ndim,
        int(ir.DataType.from_numpy(array.dtype)),
    )


class _Result(Memory):
    """A tensor that ONNX Runtime made, given back when no array needs it."""

    def __init__(self, value: int) -> None:
        self._value = value
        api = library()
        code, shape = api.described(value)
        dtype = np.dtype(ir.DataType(code).numpy())
        super().__init__(api.data(value), shape, dtype)

    def __del__(self) -> None:
        library().release("Value", self._value)
