"""Instructions for arithmetic, vectors and memory: methods that append a line of LLVM IR."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .cpu import Cpu
from .values import (
    BFLOAT,
    BYTES,
    I1,
    I16,
    I32,
    I64,
    PTR,
    Number,
    Operand,
    Value,
    as_value,
    compared,
    listed,
    mangled,
    spelled,
    split,
    vector,
)


class Instructions:
    """The lines of a function's code, and the names of their results."""

    def __init__(self, declare: Callable[[str], None], cpu: Cpu | None) -> None:
        self._declare, self._cpu = declare, cpu
        self._lines: list[str] = ["entry:"]
        self._allocas: list[str] = []
        self._count = 0

    def _fresh(self, stem: str = "v") -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def _do(self, kind: str, text: str) -> Value:
        value = Value(kind, f"%{self._fresh()}", self._do)
        self._lines.append(f"  {value.name} = {text}")
        return value

    def _declared(self, result: str, name: str, *operands: Value) -> str:
        """Declare an intrinsic, and return the IR of a call to it."""
        self._declare(f"declare {result} @{name}({', '.join(v.type for v in operands)})")
        return f"call {result} @{name}({listed(operands)})"

    def append(self, instruction: str) -> None:
        """Append an instruction without a result, as text."""
        self._lines.append(f"  {instruction}")

    # Arithmetic ---------------------------------------------------------------------------------

    def compare(self, relation: str, a: Value, b: Number) -> Value:
        """Compare integers (eq, ne, ult, uge) or floating-point numbers (olt, ogt, uno), or vectors
        lane by lane."""
        return compared(relation, a, b)

    def select(self, condition: Value, a: Number, b: Number) -> Value:
        """Return a if `condition` (one bit, or one per lane) holds, else b."""
        kind = next((operand.type for operand in (a, b) if isinstance(operand, Value)), I64)
        yes, no = (f"{kind} {spelled(kind, operand)}" for operand in (a, b))
        return self._do(kind, f"select {condition.type} {condition.name}, {yes}, {no}")

    def min(self, a: Operand, b: Operand) -> Value:
        """Return the smaller of two integers."""
        return self.select(compared("slt", a, b), a, b)

    def max(self, a: Operand, b: Operand) -> Value:
        """Return the larger of two integers."""
        return self.select(compared("sgt", a, b), a, b)

    def constant(self, kind: str, number: float) -> Value:
        """Return a constant; for a vector type it is in every lane."""
        return Value(kind, spelled(kind, number), self._do)

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """Return a * b + c, rounded once if the processor has the instruction, else twice: to round
        once, LLVM would call the C library."""
        return self.fma(a, b, c) if self._cpu is None or self._cpu.fused else a * b + c

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return a * b + c, rounded once."""
        return self.intrinsic("llvm.fma", a, b, c)

    def dots(self, total: Value, a: Value, b: Value) -> Value:
        """Return total + a[2i+1] * b[2i+1] + a[2i] * b[2i] in each lane i (AVX512-BF16).

        a and b are vectors of total's type that hold two bfloat16 for each float32. Both sums are
        rounded to nearest even; subnormal operands and results become zero.
        """
        lanes = split(total.type)[1]
        a, b = (self.convert("bitcast", operand, vector(BFLOAT, 2 * lanes)) for operand in (a, b))
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
        return self._do(total.type, self._declared(total.type, name, total, a, b))

    def narrow(self, low: Value, high: Value) -> Value:
        """Convert two vectors of 16 float32 to 32 bfloat16 with an AVX512-BF16 instruction. It
        rounds to nearest even, and subnormal numbers to zero."""
        result, name = vector(BFLOAT, 32), "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
        return self._do(result, self._declared(result, name, high, low))

    def intrinsic(self, stem: str, *operands: Value) -> Value:
        """Call an LLVM intrinsic whose operands and result have the same type."""
        kind = operands[0].type
        return self._do(kind, self._declared(kind, f"{stem}.{mangled(kind)}", *operands))

    def called(self, kind: str, name: str) -> Value:
        """Call a function without parameters that the module declares."""
        return self._do(kind, f"call {kind} {name}()")

    def convert(self, op: str, value: Value, kind: str) -> Value:
        """Convert by fpext, fptrunc, bitcast, sext, zext, trunc, sitofp or fptosi."""
        return self._do(kind, f"{op} {value.type} {value.name} to {kind}")

    # Vectors ------------------------------------------------------------------------------------

    def broadcast(self, scalar: Value, lanes: int) -> Value:
        """Return a vector with a scalar in every lane."""
        kind = vector(scalar.type, lanes)
        one = self._do(kind, f"insertelement {kind} poison, {scalar.type} {scalar.name}, i64 0")
        return self._do(
            kind, f"shufflevector {kind} {one.name}, {kind} poison, <{lanes} x i32> zeroinitializer"
        )

    def shuffle(self, a: Value, b: Value | None, order: Sequence[int]) -> Value:
        """Select lanes of a and b by number; b's lanes are numbered after a's."""
        element, _ = split(a.type)
        mask = ", ".join(f"i32 {i}" for i in order)
        second = b.name if b is not None else "poison"
        return self._do(
            vector(element, len(order)),
            f"shufflevector {a.type} {a.name}, {a.type} {second}, <{len(order)} x i32> <{mask}>",
        )

    def lanes_below(self, count: Operand, lanes: int) -> Value:
        """Return a mask of the first `count` lanes."""
        kind = vector(I32, lanes)
        short = self.convert("trunc", as_value(count), I32)
        limit = self.broadcast(short, lanes)
        numbers = ", ".join(f"i32 {i}" for i in range(lanes))
        return self._do(vector(I1, lanes), f"icmp sgt {kind} {limit.name}, <{numbers}>")

    def integer(self, number: int) -> Value:
        """Return a 64-bit constant."""
        return Value(I64, str(number), self._do)

    # Memory -------------------------------------------------------------------------------------

    def at(self, base: Value, index: Operand, element: str) -> Value:
        """Return the address of base[index], for elements of a type."""
        if not isinstance(index, Value) and index == 0:
            return base
        offset = f"i64 {spelled(I64, index)}"
        return self._do(PTR, f"getelementptr inbounds {element}, ptr {base.name}, {offset}")

    def word(self, base: Value, index: Operand = 0) -> Value:
        """Load base[index], a 64-bit integer."""
        return self.load(I64, self.at(base, index, I64))

    def load(self, kind: str, address: Value) -> Value:
        """Load the value at an address, which need only be aligned to an element."""
        return self._do(kind, f"load {kind}, ptr {address.name}, align {BYTES[split(kind)[0]]}")

    def store(self, value: Value, address: Value, *, past: bool = False) -> None:
        """Write to an address, which need only be aligned to an element.

        `past` bypasses the caches; it needs an address aligned to a vector, and `drain` afterwards.
        """
        align, how = BYTES[split(value.type)[0]], ""
        if past and self._cpu:
            align, how = self._cpu.vector_bytes, ", !nontemporal !0"
        self.append(f"store {value.type} {value.name}, ptr {address.name}, align {align}{how}")

    def drain(self) -> None:
        """Make all earlier writes visible to other threads before any later write."""
        self.append("fence seq_cst")

    def load_lanes(self, kind: str, address: Value, mask: Value) -> Value:
        """Load the lanes that a mask selects; the others are zero, and their memory is not read."""
        element, count = split(kind)
        if BYTES[element] == 2 and element != I16:
            # As integers: without 16-bit float instructions, LLVM calls a library per number.
            bits = self.load_lanes(vector(I16, count), address, mask)
            return self.convert("bitcast", bits, kind)
        align, others = Value(I32, str(BYTES[element])), Value(kind, "zeroinitializer")
        name = f"llvm.masked.load.{mangled(kind)}.p0"
        return self._do(kind, self._declared(kind, name, address, align, mask, others))

    def store_lanes(self, value: Value, address: Value, mask: Value) -> None:
        """Write the lanes that a mask selects; the others' memory is not touched."""
        element, count = split(value.type)
        if BYTES[element] == 2 and element != I16:
            value = self.convert("bitcast", value, vector(I16, count))
        align, name = Value(I32, str(BYTES[element])), f"llvm.masked.store.{mangled(value.type)}.p0"
        self.append(self._declared("void", name, value, address, align, mask))

    def load_some(self, kind: str, address: Value, count: Value | None) -> Value:
        """Load a vector, or its first `count` lanes; the others are zero."""
        if count is None:
            return self.load(kind, address)
        return self.load_lanes(kind, address, self.lanes_below(count, split(kind)[1]))

    def store_some(self, value: Value, address: Value, count: Value | None) -> None:
        """Write a vector, or its first `count` lanes."""
        if count is None:
            self.store(value, address)
        else:
            self.store_lanes(value, address, self.lanes_below(count, split(value.type)[1]))

    def prefetch(self, address: Value, *, write: bool = False, near: bool = False) -> None:
        """Prefetch the cache line at an address, which need not be mapped: for writing, or for
        reading into the second-level cache (`near`: the first)."""
        access = (1, 3, 1) if write else (0, 3, 1) if near else (0, 2, 1)
        numbers = (Value(I32, str(number)) for number in access)
        self.append(self._declared("void", "llvm.prefetch.p0", address, *numbers))

    def take(self, address: Value) -> Value:
        """Atomically return the number at an address and add 1 to it. The caller then sees all that
        earlier callers have written."""
        return self._do(I64, f"atomicrmw add ptr {address.name}, i64 1 acq_rel")

    def observe(self, address: Value, order: str = "acquire") -> Value:
        """Load a number that other threads write."""
        return self._do(I64, f"load atomic i64, ptr {address.name} {order}, align 8")

    def publish(self, value: Operand, address: Value, order: str = "release") -> None:
        """Write a number that other threads observe."""
        self.append(f"store atomic i64 {spelled(I64, value)}, ptr {address.name} {order}, align 8")

    def exchange(self, op: str, address: Value, value: Operand) -> Value:
        """Return the number at an address, and atomically set it (xchg) or add to it (add)."""
        return self._do(
            I64, f"atomicrmw {op} ptr {address.name}, i64 {spelled(I64, value)} seq_cst"
        )

    def replace(self, address: Value, old: Value, new: Value) -> Value:
        """Atomically replace `old` at an address by `new`; return whether `old` was there."""
        change = f"i64 {old.name}, i64 {new.name} seq_cst seq_cst"
        pair = self._do("{ i64, i1 }", f"cmpxchg ptr {address.name}, {change}")
        return self._do(I1, f"extractvalue {pair.type} {pair.name}, 1")

    def relax(self, triple: str) -> None:
        """Tell the processor that this is an iteration of a waiting loop.

        It uses intrinsics: inline assembly would need LLVM's assembler, which is not initialized.
        """
        if triple.startswith(("x86_64", "i686", "amd64")):
            self.append(self._declared("void", "llvm.x86.sse2.pause"))
        elif triple.startswith(("aarch64", "arm64")):
            self.append(self._declared("void", "llvm.aarch64.hint", Value(I32, "1")))  # yield

    def order(self) -> None:
        """Keep later reads after this point: LLVM would load more than registers can hold."""
        self.append('fence syncscope("singlethread") seq_cst')

    def scratch(self, nbytes: int) -> Value:
        """Reserve memory on this function's stack, aligned to 64 bytes."""
        value = Value(PTR, f"%{self._fresh('scratch')}", self._do)
        self._allocas.append(f"  {value.name} = alloca [{nbytes} x i8], align 64")
        return value
