"""Compiled row functions, which both kernels share, each class once per process.

Each is compiled when it is first needed: turning for channels-first data in the channels kernel
only, finishing once per epilogue.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

from ...activations import Activation
from ..addresses import address_of
from ..base import Array
from .compile import Code
from .cpu import Cpu, host
from .emit import Module
from .rows import Finish, emit_fill, emit_finish, emit_gather, emit_gather_pairs
from .transpose import emit_turn, emit_turn_few
from .values import DOUBLE, FLOAT, I16

_FINISH = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 7)


def plain(element: str) -> Finish:
    """Storing results as they are computed."""
    return Finish(element, element, Activation.NONE, 0.0)


@lru_cache(maxsize=64)
def finish_code(kind: Finish, cpu: Cpu) -> Code:
    """`finish` of one class."""
    module = Module(cpu.attributes)
    emit_finish(module, "finish", kind, cpu)
    return Code(module, ("finish",), cpu)


def activate(activation: Activation, slope: float, values: Array) -> None:
    """`activations.apply` with the bits of the kernels; `values` are contiguous."""
    if activation is Activation.NONE or not values.size:
        return
    element = DOUBLE if values.itemsize == 8 else FLOAT
    code = finish_code(Finish(element, element, activation, slope), host())
    place = address_of(values)
    _FINISH(code.addresses["finish"])(place, place, 0, 1, 0, 0, 1, values.size, 0, 0)


@lru_cache(maxsize=16)
def fill_code(stored: str, computed: str, cpu: Cpu) -> Code:
    """`fill` between two element types."""
    module = Module(cpu.attributes)
    emit_fill(module, "fill", stored, computed, cpu)
    return Code(module, ("fill",), cpu)


@lru_cache(maxsize=16)
def gather_code(stored: str, computed: str, cpu: Cpu) -> Code:
    """`gather` between two element types; into 16 bits it gathers pairs of input channels."""
    module = Module(cpu.attributes)
    if computed == I16:
        emit_gather_pairs(module, "gather")
    else:
        emit_gather(module, "gather", stored, computed)
    return Code(module, ("gather",), cpu)


@lru_cache(maxsize=16)
def turn_code(stored: str, computed: str, cpu: Cpu) -> Code:
    """`turn` between two element types."""
    module = Module(cpu.attributes)
    emit_turn(module, "turn", stored, computed, cpu)
    return Code(module, ("turn",), cpu)


@lru_cache(maxsize=16)
def turn_few_code(stored: str, computed: str, cpu: Cpu, rows: int) -> Code:
    """The same for exactly `rows` rows."""
    module = Module(cpu.attributes)
    emit_turn_few(module, "turn", stored, computed, cpu, rows)
    return Code(module, ("turn",), cpu)
