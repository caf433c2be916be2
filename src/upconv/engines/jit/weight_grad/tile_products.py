"""Panels for a weight gradient on tile registers: packing both operands as bfloat16, and one tap's
products.

A panel of g has a row per channel. A panel of x has pairs of positions for 16 channels: pairs that
begin at even positions, and in a second panel, if needed, pairs that begin at odd positions. Data
stored as bfloat16 is read as 16-bit integers.
"""

from __future__ import annotations

from itertools import product

from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module, signature
from ..tiles.operations import (
    REGISTERS,
    ROW_BYTES,
    ROWS,
    TILE_BYTES,
    TileRegisters,
    emit_product,
)
from ..transpose import as_bits, paired, transposed
from ..values import BFLOAT, I16, I32, Value, vector

PACK = signature(
    "dst* src* active length zeros"  # `length` numbers per channel, and zeros after them
    " line step"  # bytes from one channel to the next, and from one number to the next
    " dst_row"  # bytes from one channel of g to the next, or from 16 channels of x to the next
    " head"  # for x: numbers that the first pair lacks
)
PRODUCTS = signature(
    "a* a_row b* b_block chunks"  # g and x, in chunks of 32 positions
    " sums* sums_row sums_a sums_b fresh"  # fresh: 1 if sums begin at zero
    " registers*"
)
REGISTER_BYTES = REGISTERS * TILE_BYTES
_UNROLLED = 16  # maximum stride for which shuffles pick numbers from vectors


@compiled("products", kept=8)
def products_code(module: Module, rows: int, columns: int, cpu: Cpu) -> None:
    """Emit sums += a b for `rows` blocks of channels of g by `columns` blocks of x, one or two."""
    emit_product(module)
    with module.function("products", PRODUCTS) as f:
        tiles = TileRegisters(f, module, f["registers"])
        sums = [
            (2 * i + j, f["sums"] + f["sums_a"] * i + f["sums_b"] * j)
            for i, j in product(range(rows), range(columns))
        ]
        with f.when(f["fresh"] > 0):
            for tile, _ in sums:
                tiles.zero(tile)
        with f.unless(f["fresh"] > 0):
            for tile, address in sums:
                tiles.load(tile, address, f["sums_row"])
        with f.loop(0, f["chunks"], carried=[f["a"], f["b"]]) as loop:
            a, b = loop.carried
            for j in range(columns):
                tiles.load(6 + j, b + f["b_block"] * j, ROW_BYTES)
            for i in range(rows):
                tiles.load(4 + i, a + f["a_row"] * (ROWS * i), f["a_row"])
                for j in range(columns):
                    tiles.multiply_add(2 * i + j, 4 + i, 6 + j)
            loop.next([a + ROW_BYTES, b + TILE_BYTES])
        for tile, address in sums:
            tiles.store(tile, address, f["sums_row"])


# Rows of g ----------------------------------------------------------------------------------------


@compiled("pack", kept=16)
def rows_code(module: Module, stored: str, stride: int, cpu: Cpu) -> None:
    """Emit the packing of channels-first g, which takes every `stride`-th number of each row."""
    lanes = cpu.lanes(2) if stride <= _UNROLLED else 1
    with module.function("pack", PACK) as f, f.loop(0, f["active"]) as channel:
        src = f["src"] + channel.index * f["line"]
        dst = f["dst"] + channel.index * f["dst_row"]
        with f.loop(0, f["length"] + f["zeros"], lanes) as loop:
            rest = f["length"] - loop.index
            number, to = f.at(src, loop.index * stride, stored), f.at(dst, loop.index, I16)
            # A full load reads past the last number that it picks, up to where the next begins.
            is_full = rest >= lanes + (1 < stride <= _UNROLLED)
            with f.when(is_full):
                f.store(_picked(f, stored, stride, lanes, number, None), to)
            with f.unless(is_full):
                count = (rest - 1) * stride + 1
                f.store(_picked(f, stored, stride, lanes, number, count), to)


def _picked(
    f: Function, stored: str, stride: int, lanes: int, src: Value, count: Value | None
) -> Value:
    """Pick every `stride`-th number as bfloat16 bits, from the first `count` numbers if given; the
    others are zeros."""
    kind, picked = vector(stored, lanes), f.constant(vector(I16, lanes), 0)
    if lanes == 1:
        return as_bits(f, f.load(stored, src), BFLOAT) if count is None else Value(I16, "0")
    for i in range(0, stride * lanes, lanes):
        if count is None:
            line = f.load(kind, f.at(src, i, stored))
        else:
            # The address stays inside, because masked loads of unmapped pages are very slow.
            at = f.at(src, f.select(count > i, f.integer(i), 0), stored)
            line = f.load_lanes(kind, at, f.lanes_below(count - i, lanes))
        line = as_bits(f, line, BFLOAT)
        indices = [n * stride - i for n in range(lanes)]
        order = [lanes + k if 0 <= k < lanes else n for n, k in enumerate(indices)]
        picked = line if stride == 1 else f.shuffle(picked, line, order)
    return picked


@compiled("pack", kept=8)
def columns_code(module: Module, stored: str, cpu: Cpu) -> None:
    """Emit the packing of channels-last g, which transposes pairs of positions as 32-bit words."""
    lanes = cpu.lanes(4)
    kind = vector(stored, lanes)
    with module.function("pack", PACK) as f:
        stop = f["length"] + f["zeros"]
        with f.loop(0, stop, 2 * lanes) as loop, f.loop(0, f["active"], lanes) as channel:
            rest, active = f["length"] - loop.index, f["active"] - channel.index
            src = f.at(f["src"] + loop.index * f["step"], channel.index, stored)
            dst = f.at(f["dst"] + channel.index * f["dst_row"], loop.index, I16)

            def load(i: int) -> Value:
                return f.load(kind, src + f["step"] * i)

            def load_some(i: int) -> Value:
                mask = f.lanes_below(f.select(rest > i, active, 0), lanes)
                number = f.max(f.min(f.integer(i), rest - 1), 0)
                return f.load_lanes(kind, src + f["step"] * number, mask)

            is_full = f.select(active >= lanes, rest, 0) >= 2 * lanes
            for holds, read in ((True, load), (False, load_some)):
                with f.when(is_full, holds=holds):
                    lines = [paired(f, read(2 * i), read(2 * i + 1)) for i in range(lanes)]
                    for i, line in enumerate(transposed(f, lines, lanes)):
                        f.store(line, dst + f["dst_row"] * i)


# Pairs of x ---------------------------------------------------------------------------------------


@compiled("pack", kept=8)
def pairs_first_code(module: Module, stored: str, cpu: Cpu) -> None:
    """Emit the packing of channels-first x, which transposes pairs of positions as 32-bit words."""
    lanes = cpu.lanes(4)
    kind, words = vector(stored, 2 * lanes), vector(I32, lanes)
    with module.function("pack", PACK) as f:
        pairs = (f["head"] + f["length"] + f["zeros"] + 1) // 2
        with f.loop(0, f["active"], lanes) as channel, f.loop(0, pairs, lanes) as loop:
            active, low = f["active"] - channel.index, loop.index * 2 - f["head"]
            rest = f["length"] - low
            src = f.at(f["src"] + channel.index * f["line"], low, stored)
            dst = _pairs_of(f, channel.index, loop.index)
            mask = f.lanes_below(rest, 2 * lanes) ^ f.lanes_below(0 - low, 2 * lanes)

            def load(i: int) -> Value:
                return f.load(kind, src + f["line"] * i)

            def load_some(i: int) -> Value:
                # The values in columns without a channel do not matter.
                address = src + f["line"] * f.min(f.integer(i), active - 1)
                return f.load_lanes(kind, address, mask)

            is_full = f.select(f.min(active, low + lanes) >= lanes, rest, 0) >= 2 * lanes
            for holds, read in ((True, load), (False, load_some)):
                with f.when(is_full, holds=holds):
                    bits = [as_bits(f, read(i), BFLOAT) for i in range(lanes)]
                    lines = [f.convert("bitcast", each, words) for each in bits]
                    for i, line in enumerate(transposed(f, lines, lanes)):
                        f.store(line, dst + i * ROW_BYTES)


@compiled("pack", kept=8)
def pairs_last_code(module: Module, stored: str, cpu: Cpu) -> None:
    """Emit the packing of channels-last x, which interleaves two positions."""
    lanes = cpu.lanes(4)
    kind = vector(stored, lanes)
    with module.function("pack", PACK) as f:
        pairs = (f["head"] + f["length"] + f["zeros"] + 1) // 2
        with f.loop(0, pairs) as loop:
            low = loop.index * 2 - f["head"]
            src, inside = f["src"] + low * f["step"], f.select(low < 0, 0, f["length"] - low)
            first = f.select(inside > 0, f["active"], 0)
            second = f.select(low + 1 < f["length"], f["active"], 0)
            both = f.min(first, second)
            with f.loop(0, f["active"], lanes) as channel:
                address = f.at(src, channel.index, stored)
                dst = _pairs_of(f, channel.index, loop.index)
                is_full = both - channel.index >= lanes
                with f.when(is_full):
                    here, beside = f.load(kind, address), f.load(kind, address + f["step"])
                    f.store(paired(f, here, beside), dst)
                with f.unless(is_full):
                    masks = (f.lanes_below(n - channel.index, lanes) for n in (first, second))
                    here = f.load_lanes(kind, address, next(masks))
                    beside = f.load_lanes(kind, address + f["step"], next(masks))
                    f.store(paired(f, here, beside), dst)


def _pairs_of(f: Function, channel: Value, pair: Value) -> Value:
    """Return the address of a channel's pair."""
    block = f["dst"] + channel // ROWS * f["dst_row"]
    return block + pair * ROW_BYTES + channel % ROWS * 4
