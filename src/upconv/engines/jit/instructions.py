"""Instructions: arithmetic, vectors and memory, each a method that appends a line and names its
result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .values import (
    BFLOAT,
    BYTES,
    I1,
    I8,
    I16,
    I32,
    I64,
    PTR,
    Operand,
    Value,
    as_value,
    double_bits,
    mangled,
    name_of,
    split,
    vector,
)


class Instructions:
    """Lines of code being appended, block after block, and the names their results have."""

    def __init__(self, declare: Callable[[str], None]) -> None:
        self._declare = declare
        self._lines: list[str] = ["entry:"]
        self._allocas: list[str] = []
        self._count = 0

    def _fresh(self, stem: str = "v") -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def _do(self, kind: str, text: str) -> Value:
        value = Value(kind, f"%{self._fresh()}")
        self._lines.append(f"  {value.name} = {text}")
        return value

    # Integers -----------------------------------------------------------------------------------

    def _binary(self, op: str, a: Operand, b: Operand) -> Value:
        kind = a.type if isinstance(a, Value) else b.type if isinstance(b, Value) else I64
        return self._do(kind, f"{op} {kind} {name_of(a)}, {name_of(b)}")

    def add(self, a: Operand, b: Operand) -> Value:
        """a + b."""
        if isinstance(a, Value) and b == 0:
            return a
        return self._binary("add nsw", a, b)

    def sub(self, a: Operand, b: Operand) -> Value:
        """a - b."""
        return self._binary("sub nsw", a, b)

    def mul(self, a: Operand, b: Operand) -> Value:
        """a * b."""
        if isinstance(a, Value) and b == 1:
            return a
        return self._binary("mul nsw", a, b)

    def div(self, a: Operand, b: Operand) -> Value:
        """a / b for a >= 0, b > 0."""
        return self._binary("udiv", a, b)

    def rem(self, a: Operand, b: Operand) -> Value:
        """a % b for a >= 0, b > 0."""
        return self._binary("urem", a, b)

    def bitwise(self, op: str, a: Operand, b: Operand) -> Value:
        """And, or, xor, shl or lshr of two integers."""
        return self._binary(op, a, b)

    def compare(self, relation: str, a: Operand, b: Operand) -> Value:
        """slt, sle, sgt, sge, eq or ne of two integers, or lane by lane of two vectors."""
        kind = a.type if isinstance(a, Value) else b.type if isinstance(b, Value) else I64
        lanes = split(kind)[1]
        result = vector(I1, lanes) if lanes else I1
        return self._do(result, f"icmp {relation} {kind} {name_of(a)}, {name_of(b)}")

    def select(self, condition: Value, a: Operand, b: Operand) -> Value:
        """a where `condition` (one bit, or one per lane) holds, else b."""
        kind = a.type if isinstance(a, Value) else b.type if isinstance(b, Value) else I64
        return self._do(
            kind,
            f"select {condition.type} {condition.name}, {kind} {name_of(a)}, {kind} {name_of(b)}",
        )

    def min(self, a: Operand, b: Operand) -> Value:
        """The smaller of two integers."""
        return self.select(self.compare("slt", a, b), a, b)

    def max(self, a: Operand, b: Operand) -> Value:
        """The larger of two integers."""
        return self.select(self.compare("sgt", a, b), a, b)

    # Numbers ------------------------------------------------------------------------------------

    def constant(self, kind: str, number: float) -> Value:
        """A floating-point constant, of a vector type in every lane."""
        element, lanes = split(kind)
        # LLVM writes a float constant as the bits of the double it equals.
        bits = double_bits(number)
        return Value(kind, bits if lanes == 0 else f"splat ({element} {bits})")

    def arithmetic(self, op: str, *operands: Value) -> Value:
        """fadd, fsub, fmul or fdiv of two values, or fneg of one."""
        names = ", ".join(v.name for v in operands)
        return self._do(operands[0].type, f"{op} {operands[0].type} {names}")

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once."""
        return self.intrinsic("llvm.fma", a, b, c)

    def dots(self, total: Value, a: Value, b: Value) -> Value:
        """total + a[2i+1] * b[2i+1] + a[2i] * b[2i] in each lane i: an instruction of AVX512-BF16.

        a and b have two bfloat16 for each float32 of total, as vectors of its type. Both sums are
        rounded to nearest even; subnormal numbers, given or made, are zero.
        """
        lanes = split(total.type)[1]
        pairs = vector(BFLOAT, 2 * lanes)
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
        self._declare(f"declare {total.type} @{name}({total.type}, {pairs}, {pairs})")
        a, b = (self.convert("bitcast", each, pairs) for each in (a, b))
        arguments = ", ".join(f"{v.type} {v.name}" for v in (total, a, b))
        return self._do(total.type, f"call {total.type} @{name}({arguments})")

    def intrinsic(self, stem: str, *operands: Value) -> Value:
        """A call of an LLVM intrinsic whose operands and result have one type."""
        kind = operands[0].type
        name = f"{stem}.{mangled(kind)}"
        self._declare(f"declare {kind} @{name}({', '.join(v.type for v in operands)})")
        arguments = ", ".join(f"{v.type} {v.name}" for v in operands)
        return self._do(kind, f"call {kind} @{name}({arguments})")

    def convert(self, op: str, value: Value, kind: str) -> Value:
        """fpext, fptrunc, bitcast, sext, zext, trunc, sitofp or fptosi."""
        return self._do(kind, f"{op} {value.type} {value.name} to {kind}")

    def fcompare(self, relation: str, a: Value, b: Value) -> Value:
        """olt, ogt, ueq, uno ... of two numbers or vectors."""
        lanes = split(a.type)[1]
        kind = I1 if lanes == 0 else vector(I1, lanes)
        return self._do(kind, f"fcmp {relation} {a.type} {a.name}, {b.name}")

    # Vectors ------------------------------------------------------------------------------------

    def broadcast(self, scalar: Value, lanes: int) -> Value:
        """A scalar in every lane."""
        kind = vector(scalar.type, lanes)
        one = self._do(kind, f"insertelement {kind} poison, {scalar.type} {scalar.name}, i64 0")
        return self._do(
            kind,
            f"shufflevector {kind} {one.name}, {kind} poison, <{lanes} x i32> zeroinitializer",
        )

    def splat(self, kind: str, number: int) -> Value:
        """An integer constant of a scalar or vector type, in every lane."""
        element, lanes = split(kind)
        return Value(kind, f"splat ({element} {number})" if lanes else str(number))

    def shuffle(self, a: Value, b: Value | None, order: Sequence[int]) -> Value:
        """Lanes of a, then of b, in the order given."""
        element, _ = split(a.type)
        mask = ", ".join(f"i32 {i}" for i in order)
        second = b.name if b is not None else "poison"
        return self._do(
            vector(element, len(order)),
            f"shufflevector {a.type} {a.name}, {a.type} {second}, <{len(order)} x i32> <{mask}>",
        )

    def lanes_below(self, count: Operand, lanes: int) -> Value:
        """A mask of the lanes whose number is less than `count`."""
        kind = vector(I32, lanes)
        short = self.convert("trunc", as_value(count), I32)
        limit = self.broadcast(short, lanes)
        numbers = ", ".join(f"i32 {i}" for i in range(lanes))
        return self._do(vector(I1, lanes), f"icmp sgt {kind} {limit.name}, <{numbers}>")

    def integer(self, number: int) -> Value:
        """A 64-bit constant."""
        return Value(I64, str(number))

    # Memory -------------------------------------------------------------------------------------

    def at(self, base: Value, index: Operand, element: str = I8) -> Value:
        """The address of base[index] in elements of a type (bytes, when none is given)."""
        if not isinstance(index, Value) and index == 0:
            return base
        return self._do(
            PTR, f"getelementptr inbounds {element}, ptr {base.name}, {I64} {name_of(index)}"
        )

    def load(self, kind: str, address: Value) -> Value:
        """What lies at an address, which need only be aligned to an element."""
        return self._do(kind, f"load {kind}, ptr {address.name}, align {BYTES[split(kind)[0]]}")

    def store(self, value: Value, address: Value) -> None:
        """Write to an address, which need only be aligned to an element."""
        align = BYTES[split(value.type)[0]]
        self._lines.append(f"  store {value.type} {value.name}, ptr {address.name}, align {align}")

    def store_past(self, value: Value, address: Value, align: int) -> None:
        """Write to an address, aligned to `align` bytes, past the caches; then comes `drain`."""
        kind, name = value.type, value.name
        self._lines.append(
            f"  store {kind} {name}, ptr {address.name}, align {align}, !nontemporal !0"
        )

    def drain(self) -> None:
        """What was written before this is seen by other threads before what comes after it."""
        self._lines.append("  fence seq_cst")

    def load_lanes(self, kind: str, address: Value, mask: Value) -> Value:
        """The lanes a mask has; the others are zero, and their memory is not touched."""
        element, count = split(kind)
        if BYTES[element] == 2 and element != I16:
            # As integers: without instructions for it, LLVM calls a library for each half.
            bits = self.load_lanes(vector(I16, count), address, mask)
            return self.convert("bitcast", bits, kind)
        lanes, align = mask.type, BYTES[element]
        name = f"llvm.masked.load.{mangled(kind)}.p0"
        self._declare(f"declare {kind} @{name}(ptr, i32, {lanes}, {kind})")
        return self._do(
            kind,
            f"call {kind} @{name}(ptr {address.name}, i32 {align}, {lanes} {mask.name},"
            f" {kind} zeroinitializer)",
        )

    def store_lanes(self, value: Value, address: Value, mask: Value) -> None:
        """Write the lanes a mask has; the memory of the others is not touched."""
        element, count = split(value.type)
        if BYTES[element] == 2 and element != I16:
            value = self.convert("bitcast", value, vector(I16, count))
        lanes, align = mask.type, BYTES[element]
        name = f"llvm.masked.store.{mangled(value.type)}.p0"
        self._declare(f"declare void @{name}({value.type}, ptr, i32, {lanes})")
        self._lines.append(
            f"  call void @{name}({value.type} {value.name}, ptr {address.name}, i32 {align},"
            f" {lanes} {mask.name})"
        )

    def prefetch(self, address: Value, *, write: bool = False, near: bool = False) -> None:
        """Ask for the line of an address, which need not exist: in the second-level cache to be
        read (`near`: in the first), or to be written."""
        self._declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        how = "i32 1, i32 3" if write else "i32 0, i32 3" if near else "i32 0, i32 2"
        self._lines.append(f"  call void @llvm.prefetch.p0(ptr {address.name}, {how}, i32 1)")

    def take(self, address: Value) -> Value:
        """The number at an address, which is raised by one for whoever comes next, and sees what
        was written before."""
        return self._do(I64, f"atomicrmw add ptr {address.name}, i64 1 acq_rel")

    def observe(self, address: Value, order: str = "acquire") -> Value:
        """The number at an address that other threads write."""
        return self._do(I64, f"load atomic i64, ptr {address.name} {order}, align 8")

    def publish(self, value: Operand, address: Value, order: str = "release") -> None:
        """Write a number that other threads observe."""
        self._lines.append(
            f"  store atomic i64 {name_of(value)}, ptr {address.name} {order}, align 8"
        )

    def exchange(self, op: str, address: Value, value: Operand) -> Value:
        """The number at an address, which becomes value (xchg) or itself + value (add) at once."""
        return self._do(I64, f"atomicrmw {op} ptr {address.name}, i64 {name_of(value)} seq_cst")

    def replace(self, address: Value, old: Value, new: Value) -> Value:
        """Whether the number at an address was `old`, and so became `new`, at once."""
        pair = self._do(
            "{ i64, i1 }",
            f"cmpxchg ptr {address.name}, i64 {old.name}, i64 {new.name} seq_cst seq_cst",
        )
        return self._do(I1, f"extractvalue {pair.type} {pair.name}, 1")

    def relax(self, triple: str) -> None:
        """Tell the processor that a turn of a waiting loop changes nothing.

        Intrinsics, not inline assembly: that would need LLVM's assembler, which is not initialised.
        """
        if triple.startswith(("x86_64", "i686", "amd64")):
            self._declare("declare void @llvm.x86.sse2.pause()")
            self._lines.append("  call void @llvm.x86.sse2.pause()")
        elif triple.startswith(("aarch64", "arm64")):
            self._declare("declare void @llvm.aarch64.hint(i32)")
            self._lines.append("  call void @llvm.aarch64.hint(i32 1)")  # yield

    def order(self) -> None:
        """What is read after this is not read before: LLVM would load more than registers hold."""
        self._lines.append('  fence syncscope("singlethread") seq_cst')

    def scratch(self, nbytes: int) -> Value:
        """Memory of this function's own, aligned to 64 bytes, for as long as it runs."""
        value = Value(PTR, f"%{self._fresh('scratch')}")
        self._allocas.append(f"  {value.name} = alloca [{nbytes} x i8], align 64")
        return value
