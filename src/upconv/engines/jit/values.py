"""Values in LLVM IR: types as LLVM spells them, registers and constants."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...problem import DType

I1, I8, I16, I32, I64, PTR = "i1", "i8", "i16", "i32", "i64", "ptr"
HALF, BFLOAT, FLOAT, DOUBLE = "half", "bfloat", "float", "double"
LINE = 64
"""Bytes in a cache line; on processors with other lines, this assumption costs little."""
STORED = {
    DType.FLOAT16: HALF, DType.BFLOAT16: BFLOAT, DType.FLOAT32: FLOAT, DType.FLOAT64: DOUBLE,
}  # fmt: skip
BYTES = {I8: 1, I16: 2, I32: 4, I64: 8, PTR: 8, HALF: 2, BFLOAT: 2, FLOAT: 4, DOUBLE: 8}


_FLOATS = (HALF, BFLOAT, FLOAT, DOUBLE)


def _appends(integers: str, numbers: str = "", neutral: int | None = None) -> Operator:
    """Return an operator that appends an instruction, unless an operand is its neutral constant."""

    def operator(self: Value, other: Number) -> Value:
        if neutral is not None and not isinstance(other, Value) and other == neutral:
            return self
        if self.type == PTR and self.do:
            offset = spelled(I64, other)
            return self.do(PTR, f"getelementptr inbounds i8, ptr {self.name}, i64 {offset}")
        return _binary(numbers if numbers and is_float(self.type) else integers, self, other)

    return operator


def _before(integers: str) -> Operator:
    """Return the reflected operator, with an integer constant on the left."""
    return lambda self, other: _binary(integers, other, self)


def _compares(relation: str) -> Operator:
    return lambda self, other: compared(relation, self, other)


@dataclass(frozen=True, slots=True)
class Value:
    """A typed LLVM value: a register or a constant.

    Operators append an instruction to a value's code: for integers, floats, and vectors of either,
    lane by lane. Adding an integer to an address counts bytes. `/` is for floats; `//`, `%` and
    `>>` are for nonnegative integers. A vector's constant operand is in every lane.
    """

    type: str
    name: str
    do: Callable[[str, str], Value] | None = field(default=None, repr=False, compare=False)

    __add__, __radd__ = _appends("add nsw", "fadd", 0), _before("add nsw")
    __sub__, __rsub__ = _appends("sub nsw", "fsub"), _before("sub nsw")
    __mul__, __truediv__ = _appends("mul nsw", "fmul", 1), _appends("fdiv")
    __floordiv__, __mod__ = _appends("udiv"), _appends("urem")
    __and__, __or__, __xor__ = _appends("and"), _appends("or"), _appends("xor")
    __lshift__, __rlshift__, __rshift__ = _appends("shl"), _before("shl"), _appends("lshr")
    __lt__, __le__ = _compares("slt"), _compares("sle")
    __gt__, __ge__ = _compares("sgt"), _compares("sge")


Operand = Value | int
Number = Value | float
Operator = Callable[[Value, Number], Value]


def _binary(op: str, a: Number, b: Number, result: str = "") -> Value:
    kind = next(operand.type for operand in (a, b) if isinstance(operand, Value))
    do = next(operand.do for operand in (a, b) if isinstance(operand, Value) and operand.do)
    return do(result or kind, f"{op} {kind} {spelled(kind, a)}, {spelled(kind, b)}")


def is_float(kind: str) -> bool:
    """Whether a type is a floating-point type, or a vector of one."""
    return split(kind)[0] in _FLOATS


def compared(relation: str, a: Number, b: Number) -> Value:
    """Compare two integers (slt, ult, uge, eq, ne ...), two floating-point numbers (olt, ueq,
    uno ...), or two vectors lane by lane."""
    kind = next(operand.type for operand in (a, b) if isinstance(operand, Value))
    element, lanes = split(kind)
    op = "fcmp" if element in _FLOATS else "icmp"
    return _binary(f"{op} {relation}", a, b, vector(I1, lanes) if lanes else I1)


def spelled(kind: str, operand: Number) -> str:
    """Spell an operand of a type in IR; a vector constant has the number in every lane.

    A float is rounded to its type, and written as the bits of the equal double, as LLVM expects.
    """
    if isinstance(operand, Value):
        return operand.name
    element, lanes = split(kind)
    text = str(operand)
    if element in _FLOATS:
        rounded = operand if element == DOUBLE else ctypes.c_float(operand).value
        text = f"0x{struct.unpack('>Q', struct.pack('>d', rounded))[0]:016X}"
    return f"splat ({element} {text})" if lanes else text


def vector(element: str, lanes: int) -> str:
    """Return the LLVM vector type."""
    return f"<{lanes} x {element}>"


def split(kind: str) -> tuple[str, int]:
    """Return a type's element and its number of lanes, 0 for a scalar."""
    if not kind.startswith("<"):
        return kind, 0
    lanes, element = kind[1:-1].split(" x ")
    return element, int(lanes)


def nbytes_of(kind: str) -> int:
    """Return the bytes of a value of a type."""
    element, lanes = split(kind)
    return BYTES[element] * (lanes or 1)


def whole_lines(nbytes: int) -> int:
    """Round a number of bytes up to entire cache lines."""
    return -(-nbytes // LINE) * LINE


def mangled(kind: str) -> str:
    """Spell a type as in intrinsics' names."""
    element, lanes = split(kind)
    spelled = {HALF: "f16", BFLOAT: "bf16", FLOAT: "f32", DOUBLE: "f64"}.get(element, element)
    return f"v{lanes}{spelled}" if lanes else spelled


def as_value(operand: Operand, do: Callable[[str, str], Value] | None = None) -> Value:
    """Return an operand as a value; an integer becomes a constant."""
    return operand if isinstance(operand, Value) else Value(I64, str(operand), do)


def listed(operands: Iterable[Value]) -> str:
    """Spell operands as a call's arguments."""
    return ", ".join(f"{operand.type} {operand.name}" for operand in operands)
