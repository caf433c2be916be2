"""A session in ONNX Runtime's C library, with upconv's operators.

ONNX Runtime runs here on threads for which the caller waits (`interrupts`). Python handles signals
only in its main thread, so Ctrl-C ends the waiting but never interrupts an operator, whose error
could not be passed on to ONNX Runtime. The interpreter waits for these threads at exit.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from ctypes import c_char_p, c_int64
from ctypes import c_void_p as pointer
from typing import Any

import numpy as np
import onnx_ir as ir

from ... import interrupts
from ...arrays import Array
from .abi import library
from .operators import Kernel, array_at, domain


class Native:
    """A model on the processor; raises `EngineError` if ONNX Runtime refuses it.

    model: the bytes of a file, or its path.
    """

    def __init__(self, model: bytes | str, threads: int, kernels: Sequence[Kernel] = ()) -> None:
        self._kernels = kernels  # nodes refer to them by number
        self._session = interrupts.call(_created, model, threads)
        weakref.finalize(self, library().release, "Session", self._session).atexit = False

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Return the named outputs, which the caller owns; feeds: all inputs, C-contiguous."""
        return interrupts.call(self._run, names, feeds)

    @property
    def refused(self) -> dict[str, str]:
        """A part's name -> why it could not compute the shapes of a run."""
        return {kernel.name: kernel.refused for kernel in self._kernels if kernel.refused}

    def _run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        api, held = library(), list[int]()
        results = (pointer * len(names))()
        try:
            held.extend(map(_value, feeds.values()))
            fed = _names(feeds), (pointer * len(held))(*held), len(held)
            api.call("Run", self._session, None, *fed, _names(names), len(names), results)
        finally:
            for value in held:
                api.release("Value", value)
        return [_result(value) for value in results if value]


def _created(model: bytes | str, threads: int) -> int:
    api = library()
    options = api.output("CreateSessionOptions")
    try:
        api.call("SetIntraOpNumThreads", options, threads)
        api.call("SetInterOpNumThreads", options, 1)
        api.call("SetSessionLogSeverityLevel", options, 4)
        api.call("AddCustomOpDomain", options, domain())
        if isinstance(model, str):
            wide = sys.platform == "win32"
            path = ctypes.c_wchar_p(model) if wide else c_char_p(os.fsencode(model))
            return api.output("CreateSession", api.environment, path, options)
        return api.output("CreateSessionFromArray", api.environment, model, len(model), options)
    finally:
        api.release("SessionOptions", options)


def _names(names: Any) -> Any:
    held = [name.encode() for name in names]
    return ctypes.cast((c_char_p * len(held))(*held), ctypes.POINTER(pointer))


def _value(array: Array) -> int:
    """Return an array as an ONNX Runtime tensor that shares its memory."""
    api, kind = library(), int(ir.DataType.from_numpy(array.dtype))
    sizes = (c_int64 * array.ndim)(*array.shape)
    tensor = array.ctypes.data, array.nbytes, sizes, array.ndim, kind
    return api.output("CreateTensorWithDataAsOrtValue", api.memory, *tensor)


def _result(value: int) -> Array:
    """Return an ONNX Runtime tensor as an array; release it when no array needs it any more."""
    api = library()
    code, shape = api.described(value)
    array = array_at(value, shape, np.dtype(ir.DataType(code).numpy()))
    if array.base is None:  # NumPy keeps no memory for an empty array
        api.release("Value", value)
    else:
        weakref.finalize(array.base, api.release, "Value", value).atexit = False
    return array
