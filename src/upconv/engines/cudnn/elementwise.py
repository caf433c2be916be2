"""An elementwise kernel for work outside cuDNN's graphs: a layer's epilogue, and copies.

    result[i] = activation(source[i] * scale[c] + bias[c] + residual[i] + result[i])

rounded once, for arrays with any strides; every term is optional. The source may be a window:
outside it, or without a source, its value is zero. So the same kernel crops, pads, converts, adds a
residual and computes a second result.

The JIT engine's modules emit the kernel as LLVM IR, and LLVM translates it to PTX. There is one
kernel per combination of types, terms and number of axes; sizes and strides are arguments. Tests
compile the same IR for the CPU.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from itertools import chain
from math import prod
from operator import and_
from typing import NamedTuple

import llvmlite.binding as llvm

from ...problem import DType
from ..jit.activation import ActivationEpilogue, activated
from ..jit.compile import parsing
from ..jit.emit import Function, Module
from ..jit.sum_type import computed
from ..jit.values import I32, I64, PTR, STORED, Value

THREADS, PER_THREAD = 256, 4
"""Threads per block, and elements per thread; with one element, threads would wait for memory."""

POINTERS = ("result", "second", "source", "bias", "residual", "slopes", "scale")
"""A kernel's arrays in the order of its arguments; an absent array has address 0."""

_PER_AXIS = (*(f"{name}_stride" for name in POINTERS), "begin")
_SIZES = ("size", "extent")


class Move(NamedTuple):
    """A kernel's class: its number of axes, the types of the source, the result and the per-channel
    arrays (`vectors`), and its terms."""

    axes: int
    source: DType | None
    result: DType
    vectors: DType
    windowed: bool = False
    scale: bool = False
    bias: bool = False
    residual: bool = False
    accumulate: bool = False
    epilogue: ActivationEpilogue = ActivationEpilogue()


class Row(NamedTuple):
    """An axis: its size, the stride along it of each array in `POINTERS` (0 for an array without
    this axis), and the start and length of the source's window."""

    size: int
    strides: tuple[int, ...]
    begin: int
    extent: int

    @property
    def whole(self) -> bool:
        """Whether the source covers the whole axis."""
        return self.begin == 0 and self.extent == self.size


def merged(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Merge adjacent axes that are contiguous in every array.

    >>> inner, outer = Row(4, (1,) * 7, 0, 4), Row(3, (4,) * 7, 0, 3)
    >>> merged([outer, inner]) == (Row(12, (1,) * 7, 0, 12),)
    True
    """
    kept: list[Row] = []
    for row in rows:
        if row.size == 1 and row.whole:
            continue
        if kept and row.whole and kept[-1].whole:
            outer = kept[-1]
            steps = zip(outer.strides, row.strides, strict=True)
            if all(step == inner * row.size for step, inner in steps):
                size = outer.size * row.size
                kept[-1] = Row(size, row.strides, 0, size)
                continue
        kept.append(row)
    return tuple(kept or [Row(1, (0,) * len(POINTERS), 0, 1)])


def arguments(rows: Sequence[Row]) -> bytes:
    """Return a kernel's packed arguments after the addresses."""
    words = chain.from_iterable((*row.strides, row.begin) for row in rows)
    sizes = chain.from_iterable((row.size, row.extent) for row in rows)
    total = prod(row.size for row in rows)
    return struct.pack(f"{len(_PER_AXIS) * len(rows)}q{2 * len(rows) + 1}i", *words, *sizes, total)


def parameters(axes: int) -> dict[str, str]:
    """Return a kernel's parameters and their types."""
    words = {f"{name}{axis}": I64 for axis in range(axes) for name in _PER_AXIS}
    sizes = {f"{name}{axis}": I32 for axis in range(axes) for name in _SIZES}
    return dict.fromkeys(POINTERS, PTR) | words | sizes | {"total": I32}


_Address = Callable[..., Value]


def element(f: Function, move: Move, index: Value) -> list[tuple[Value, Value]]:
    """Compute the element at a 32-bit index; return pairs of a value and its address."""
    positions = _places(f, move.axes, index)
    kind, stored = computed(move.result), STORED[move.result]

    def address(name: str, element_type: str, shift: bool = False) -> Value:
        offset = f.integer(0)
        for axis, position in enumerate(positions):
            at = position - f[f"begin{axis}"] if shift else position
            offset = offset + at * f[f"{name}_stride{axis}"]
        return f.at(f[name], offset, element_type)

    def read(name: str, dtype: DType = move.vectors) -> Value:
        of = STORED[dtype]
        return _widened(f, f.load(of, address(name, of)), kind)

    value = f.constant(kind, 0.0)
    if move.source is not None:
        value = _source(f, move.source, positions, address, kind, windowed=move.windowed)
    if move.scale:
        value = value * read("scale")
    if move.bias:
        value = value + read("bias")
    if move.residual:
        value = value + read("residual", move.result)
    if move.accumulate:
        value = value + read("result", move.result)
    slope = read("slopes") if move.epilogue.slopes else move.epilogue.slope
    value = activated(f, move.epilogue.activation, slope, value)
    written = [(_narrowed(f, value, stored), address("result", stored))]
    if move.epilogue.has_second:
        other = activated(f, move.epilogue.second, move.epilogue.second_slope, value)
        written.append((_narrowed(f, other, stored), address("second", stored)))
    return written


def _places(f: Function, axes: int, index: Value) -> list[Value]:
    """Return the 64-bit position along each axis for a flat index, last axis fastest."""
    positions = []
    for axis in reversed(range(axes)):
        if axis:
            size = f[f"size{axis}"]
            positions.append(index % size)
            index = index // size
        else:
            positions.append(index)
    return [f.convert("zext", position, I64) for position in reversed(positions)]


def _source(
    f: Function,
    dtype: DType,
    positions: list[Value],
    address: _Address,
    kind: str,
    *,
    windowed: bool,
) -> Value:
    """Return the source's element, or zero outside its window, where the code reads the first."""
    stored = STORED[dtype]
    if not windowed:
        return _widened(f, f.load(stored, address("source", stored)), kind)
    within = (
        f.compare("ult", position - f[f"begin{axis}"], f.convert("zext", f[f"extent{axis}"], I64))
        for axis, position in enumerate(positions)
    )
    inside = reduce(and_, within)
    at = f.select(inside, address("source", stored, shift=True), f["source"])
    return f.select(inside, _widened(f, f.load(stored, at), kind), 0.0)


def _widened(f: Function, value: Value, kind: str) -> Value:
    return value if value.type == kind else f.convert("fpext", value, kind)


def _narrowed(f: Function, value: Value, stored: str) -> Value:
    return value if value.type == stored else f.convert("fptrunc", value, stored)


def _kernel(module: Module, move: Move) -> None:
    with module.function("move", parameters(move.axes)) as f:
        block, size, thread = (_register(module, f, n) for n in ("ctaid", "ntid", "tid"))
        first = block * (size * PER_THREAD) + thread
        elements = []
        for number in range(PER_THREAD):  # read all elements before writing any
            index = first + size * number
            inside = f.compare("ult", index, f["total"])
            elements.append((inside, element(f, move, f.select(inside, index, 0))))
        for inside, written in elements:
            with f.when(inside):
                for value, address in written:
                    f.store(value, address)


def _register(module: Module, f: Function, name: str) -> Value:
    intrinsic = f"@llvm.nvvm.read.ptx.sreg.{name}.x"
    module.declare(f"declare i32 {intrinsic}()")
    return f.called(I32, intrinsic)


@lru_cache(maxsize=256)
def ptx(move: Move, processor: str) -> str:
    """Return a kernel in PTX for `processor`, such as "sm_90", and its successors."""
    module = Module()
    _kernel(module, move)
    ir = module.text().replace("define void @move", "define ptx_kernel void @move")
    return to_ptx(ir, processor)


def to_ptx(ir: str, processor: str) -> str:
    """Translate an LLVM IR module to PTX for `processor` and its successors."""
    with parsing() as parse:
        parsed = parse(f'target triple = "{_TRIPLE}"\n{ir}')
        return str(_machine(processor).emit_assembly(parsed))


_TRIPLE = "nvptx64-nvidia-cuda"
_VERSIONS = {"sm_70": "+ptx63", "sm_80": "+ptx70", "sm_90": "+ptx78"}


def processor_of(capability: tuple[int, int]) -> str:
    """Return the newest target processor that is compatible with a compute capability.

    >>> processor_of((9, 0)), processor_of((8, 6)), processor_of((12, 0))
    ('sm_90', 'sm_80', 'sm_90')
    """
    major = min(max(capability[0], 7), 9)
    return f"sm_{major}0"


@lru_cache(maxsize=4)
def _machine(processor: str) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(_TRIPLE)
    return target.create_target_machine(cpu=processor, features=_VERSIONS[processor], opt=3)
