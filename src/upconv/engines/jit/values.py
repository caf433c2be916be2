"""The values that code is made of: types as LLVM spells them, registers and constants."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ...problem import DType

I1, I8, I16, I32, I64, PTR = "i1", "i8", "i16", "i32", "i64", "ptr"
HALF, BFLOAT, FLOAT, DOUBLE = "half", "bfloat", "float", "double"
LINE = 64
"""Bytes of a cache line: a guess for processors that have others, which costs them little."""
STORED = {
    DType.FLOAT16: HALF, DType.BFLOAT16: BFLOAT, DType.FLOAT32: FLOAT, DType.FLOAT64: DOUBLE,
}  # fmt: skip
BYTES = {I8: 1, I16: 2, I32: 4, I64: 8, PTR: 8, HALF: 2, BFLOAT: 2, FLOAT: 4, DOUBLE: 8}


@dataclass(frozen=True, slots=True)
class Value:
    """A typed LLVM value: a register or a constant."""

    type: str
    name: str


Operand = Value | int


def vector(element: str, lanes: int) -> str:
    """The LLVM vector type."""
    return f"<{lanes} x {element}>"


def split(kind: str) -> tuple[str, int]:
    """A type's element and lanes; no lanes for a scalar."""
    if not kind.startswith("<"):
        return kind, 0
    lanes, element = kind[1:-1].split(" x ")
    return element, int(lanes)


def mangled(kind: str) -> str:
    """A type as the names of intrinsics spell it."""
    element, lanes = split(kind)
    spelled = {HALF: "f16", BFLOAT: "bf16", FLOAT: "f32", DOUBLE: "f64"}.get(element, element)
    return f"v{lanes}{spelled}" if lanes else spelled


def as_value(operand: Operand) -> Value:
    """An integer as a constant."""
    return operand if isinstance(operand, Value) else Value(I64, str(operand))


def name_of(operand: Operand) -> str:
    """An operand as text."""
    return operand.name if isinstance(operand, Value) else str(operand)


def double_bits(number: float) -> str:
    """A number as LLVM writes constants: the bits of the double it equals."""
    return f"0x{struct.unpack('>Q', struct.pack('>d', number))[0]:016X}"
