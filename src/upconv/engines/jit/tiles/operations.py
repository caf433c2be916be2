"""Operations on AMX's eight tile registers, which have 16 rows of 64 bytes.

A tile holds 16 x 16 sums in float32 or 16 x 32 numbers in bfloat16. The second operand of a product
has pairs: row k holds inputs 2k and 2k + 1 of 16 outputs. A product D += A B sums the even and the
odd inputs separately, each from zero with one rounding per input. Then it adds the two sums, and
adds the result to D. Subnormal operands and sums are zero (102,400 random results on a Xeon agree).

There are two lowerings: AMX instructions, and vector code on a block of memory, which gives the
same bits on every processor that fuses multiply-adds. Without fusing, subnormal products are also
rounded. Tests run the vector code on every processor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..cpu import AMX
from ..emit import Function, Module, signature
from ..values import FLOAT, I32, Operand, Value, vector

ROWS, ROW_BYTES, TILE_BYTES = 16, 64, 1024
PAIRS = 32
"""Maximum inputs of a product."""
CONFIGURATION_BYTES = 64
REGISTERS = 8
_TINY = float(np.finfo(np.float32).tiny)


def configuration(
    inputs: Sequence[int] = (), weights: Sequence[int] = (), width: int = PAIRS
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return the table that configures registers with 16 rows of 64 bytes (palette 1). Registers
    of `inputs` have rows of `width` numbers; those of `weights` have half as many rows of pairs."""
    table = np.zeros(CONFIGURATION_BYTES, np.uint8)
    row_bytes, rows = table[16:32:2], table[48:56]
    table[0], row_bytes[:], rows[:] = 1, ROW_BYTES, ROWS
    row_bytes[list(inputs)], rows[list(weights)] = 2 * width, width // 2
    return table


class TileRegisters:
    """A function's tile registers; vector code keeps them in memory at `block`."""

    def __init__(self, f: Function, module: Module, block: Value) -> None:
        self._f, self._module, self._block = f, module, block
        self._native = module.cpu is not None and module.cpu.tiles == AMX

    def _call(self, name: str, *operands: Value | str) -> None:
        kinds = ["i8 immarg" if isinstance(v, str) else v.type for v in operands]
        self._module.declare(f"declare void @llvm.x86.{name}({', '.join(kinds)})")
        listed = [f"i8 {v}" if isinstance(v, str) else f"{v.type} {v.name}" for v in operands]
        self._f.append(f"call void @llvm.x86.{name}({', '.join(listed)})")

    def configure(self, table: Value) -> None:
        """Configure the registers of this thread."""
        if self._native:
            self._call("ldtilecfg", table)

    def release(self) -> None:
        """Release the registers, so that other code on this thread may configure them."""
        if self._native:
            self._call("tilerelease")

    def zero(self, tile: int) -> None:
        """Set a tile to zero."""
        if self._native:
            self._call("tilezero", str(tile))
            return
        self._copy(self._register(tile), ROW_BYTES, None, 0)

    def load(self, tile: int, address: Value, stride: Operand, width: int = PAIRS) -> None:
        """Load rows that are `stride` bytes apart: with AMX as many as configured, with vector code
        16 rows of `width` numbers."""
        if self._native:
            self._call("tileloadd64", str(tile), address, _integer(self._f, stride))
            return
        self._copy(self._register(tile), ROW_BYTES, address, stride, width // 2)

    def store(self, tile: int, address: Value, stride: Operand) -> None:
        """Store 16 rows of 64 bytes, `stride` bytes apart."""
        if self._native:
            self._call("tilestored64", str(tile), address, _integer(self._f, stride))
            return
        self._copy(address, stride, self._register(tile), ROW_BYTES)

    def multiply_add(self, total: int, a: int, b: int) -> None:
        """Emit total += a b."""
        if self._native:
            self._call("tdpbf16ps", str(total), str(a), str(b))
            return
        self._f.call(_PRODUCT, *(self._register(tile) for tile in (total, a, b)))

    def _register(self, tile: int) -> Value:
        return self._block + tile * TILE_BYTES

    def _copy(
        self, to: Value, to_row: Operand, src: Value | None, src_row: Operand, pairs: int = ROWS
    ) -> None:
        """Copy rows of `pairs` pairs, padded with zeros; without `src`, everything is zero."""
        f, lanes = self._f, _lanes(self._module)
        with f.loop(0, ROWS) as row:
            for part in range(0, ROWS, lanes):
                kind = vector(I32, lanes)
                value = f.constant(kind, 0)
                if src is not None:
                    mask = f.lanes_below(pairs - part, lanes)
                    value = f.load_lanes(kind, src + row.index * src_row + 4 * part, mask)
                f.store(value, to + row.index * to_row + 4 * part)


_PRODUCT = "tile_product"


def emit_product(module: Module) -> None:
    """Emit the vector code's product, unless the processor has tiles."""
    if module.cpu is not None and module.cpu.tiles == AMX:
        return
    lanes = _lanes(module)
    with module.function(_PRODUCT, signature("total* a* b*"), exported=False) as f:
        zero = f.constant(vector(FLOAT, lanes), 0.0)
        with f.loop(0, ROWS) as row:
            for part in range(0, ROWS, lanes):
                with f.loop(0, ROWS, carried=[zero, zero]) as loop:
                    pair = f.load(I32, f["a"] + (row.index * ROW_BYTES + loop.index * 4))
                    others = f.load(vector(I32, lanes), f["b"] + (loop.index * 64 + 4 * part))
                    factors = zip(
                        _halves(f, f.broadcast(pair, lanes)), _halves(f, others), strict=True
                    )
                    loop.next([
                        _flushed(f, f.multiply_add(_flushed(f, a), _flushed(f, b), total))
                        for (a, b), total in zip(factors, loop.carried, strict=True)
                    ])  # fmt: skip
                place = f["total"] + (row.index * ROW_BYTES + 4 * part)
                total = _flushed(f, f.load(vector(FLOAT, lanes), place))
                even, odd = loop.results
                f.store(_flushed(f, total + _flushed(f, even + odd)), place)


def _halves(f: Function, pairs: Value) -> tuple[Value, Value]:
    """Return the first and the second number of each pair of bfloat16, as float32."""
    kind = pairs.type.replace(I32, FLOAT)
    return f.convert("bitcast", pairs << 16, kind), f.convert("bitcast", pairs & -65536, kind)


def _flushed(f: Function, value: Value) -> Value:
    """Replace subnormal numbers by zeros of the same sign."""
    bits = f.convert("bitcast", value, value.type.replace(FLOAT, I32))
    zero = f.convert("bitcast", bits & -(1 << 31), value.type)
    return f.select(f.compare("olt", f.intrinsic("llvm.fabs", value), _TINY), zero, value)


def _integer(f: Function, number: Operand) -> Value:
    return number if isinstance(number, Value) else f.integer(number)


def _lanes(module: Module) -> int:
    return min(ROWS, module.cpu.lanes(4)) if module.cpu else ROWS
