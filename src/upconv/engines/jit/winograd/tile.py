"""The inner loops of Winograd's algorithm: transforms, and matrix products between them.

    input(...)      transforms windows of a block's packed operands into V[point][tile][reduction]
    products(...)   Z[point] = V[point] U[point], a matrix product for one point
    inverse(...)    transforms columns of Z back, adds the bias, and writes rows of results

Their data is in the thread's memory, in its second-level cache. Vectors run along channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product

import numpy as np

from ..activation import ActivationEpilogue, activated
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module, signature
from ..packing import Numbers
from ..packing_code import report_nonfinite
from ..values import BYTES, I64, Value, vector
from .transforms import Matrix

Matrices = tuple[tuple[Matrix, ...], ...]
_INPUT = signature(
    "src* dst*"
    " tiles* count"  # offset of each tile's window
    " vectors step_0 step_1"  # bytes between a window's positions along the outer axes
    " point row"  # bytes from one point to the next, and from one tile
)
_PRODUCTS = signature(
    "v* u* z*"
    " pieces*"  # this point's count of pieces, and their numbers
    " shifts*"  # for each piece, bytes from the computed tile to the tile that it reads
    " piece_bytes panel_bytes"  # of a panel's piece, of a panel
    " channels panels z_row"
    " groups*"  # counts of groups by number of rows
)
_INVERSE = signature(
    "src* dst*"
    " tiles* count"  # offsets of each tile's products and results
    " vectors bias* step_0 step_1 step_2"  # step_2: bytes from one q to the next on the last axis
    " point bad*"  # `bad` is set to 1 if a result is not finite
    " slopes"  # bytes from a bias to its PReLU slope, if there is one
)


@dataclass(frozen=True, slots=True)
class Products:
    """A class of register tiles: one for each number in `rows`, by `vectors` vectors. Rows of V are
    `row_stride` bytes apart. `pieces` says that some sums have several pieces."""

    element: str
    lanes: int
    rows: tuple[int, ...]
    vectors: int
    row_stride: int
    pieces: bool


@dataclass(frozen=True, slots=True)
class Inverse:
    """An inverse transform's class: each axis's matrices, and the activations."""

    element: str
    matrices: Matrices
    epilogue: ActivationEpilogue


@compiled("products", kept=64)
def products_code(module: Module, kind: Products, cpu: Cpu) -> None:
    """Emit `products` for a class.

    A panel's groups prefetch the next panel together, each a part, so that all their products hide
    the wait. When the first group prefetched all of it, it waited for memory: layers with 16 tiles
    whose weights no cache holds took 1.3 times as long (Xeon, 2026-11-27).
    """
    with module.function("products", _PRODUCTS) as f:
        counts = [f.word(f["groups"], i) for i in range(len(kind.rows))]
        groups = f.max(sum(counts[1:], counts[0]), 1)
        step = f.integer(kind.lanes * BYTES[kind.element]) // groups
        part = step * f["channels"] * kind.vectors
        with f.loop(0, f["panels"]) as panel:
            first, ahead = f.integer(0), f["panel_bytes"]
            for rows, count in zip(kind.rows, counts, strict=True):
                with f.loop(0, count, carried=[ahead]) as group:
                    start, (ahead,) = first + group.index * rows, group.carried
                    _emit_group(f, kind, rows, (panel.index, start), (ahead, step))
                    group.next([ahead + part])
                first, ahead = first + count * rows, group.results[0]


@lru_cache(maxsize=64)
def group_table(rows: tuple[int, ...], vectors: int, most: int) -> Numbers:
    """Return, for each number of tiles up to `most`, the fastest counts of groups by their rows. A
    group takes at least as long as eight sums, because multiply-adds wait for the previous one."""
    times = [max(20 * n, 160 // vectors) + 7 for n in rows]
    best = [(0, (0,) * len(rows))]
    for tiles in range(1, most + 1):
        options = []
        for i, (n, time) in enumerate(zip(rows, times, strict=True)):
            before, counts = best[max(0, tiles - n)]
            options.append((before + time, (*counts[:i], counts[i] + 1, *counts[i + 1 :])))
        best.append(min(options))
    return np.array([counts for _, counts in best], np.int64)


def _emit_group(
    f: Function, kind: Products, rows: int, which: tuple[Value, Value], ahead: tuple[Value, Value]
) -> None:
    """Emit all pieces' sums for a group of rows, and store them in Z.

    `which`: the panel and the first row. `ahead`: bytes from the weights to those to prefetch, and
    from one prefetch to the next.
    """
    (panel, first), (distance, step) = which, ahead
    line, size = vector(kind.element, kind.lanes), BYTES[kind.element]
    zeros = [Value(line, "zeroinitializer")] * (rows * kind.vectors)
    at_panel = f["u"] + panel * f["panel_bytes"]
    at_rows = f["v"] + first * kind.row_stride
    if kind.pieces:
        with f.loop(0, f.word(f["pieces"], 0), carried=zeros) as piece:
            index = f.word(f["pieces"], piece.index + 1)
            u = at_panel + index * f["piece_bytes"]
            v = at_rows + f.word(f["shifts"], index)
            piece.next(_product(f, kind, rows, step, [u, v, u + distance, *piece.carried]))
        sums = piece.results
    else:
        carried = [at_panel, at_rows, at_panel + distance, *zeros]
        sums = _product(f, kind, rows, step, carried)
    z = f["z"] + panel * (kind.vectors * kind.lanes * size) + first * f["z_row"]
    for r in range(rows):
        for i in range(kind.vectors):
            f.store(sums[r * kind.vectors + i], z + i * kind.lanes * size)
        z = z + f["z_row"]


def _product(
    f: Function, kind: Products, rows: int, step: Value, carried: list[Value]
) -> list[Value]:
    """Emit one piece's products; return the register tile's sums.

    `carried` are the addresses of weights, rows and weights to prefetch, and the earlier sums. For
    each vector of weights there is one prefetch, `step` bytes after the last one.
    """
    line, size = vector(kind.element, kind.lanes), BYTES[kind.element]
    with f.loop(0, f["channels"], carried=carried) as loop:
        u, v, ahead, *sums = loop.carried
        for _ in range(kind.vectors):
            f.prefetch(ahead)
            ahead = ahead + step
        weights = [f.load(line, u + i * kind.lanes * size) for i in range(kind.vectors)]
        for r in range(rows):
            value = f.load(kind.element, v + r * kind.row_stride)
            factor = f.broadcast(value, kind.lanes)
            for i, weight in enumerate(weights):
                number = r * kind.vectors + i
                sums[number] = f.multiply_add(factor, weight, sums[number])
        loop.next([u + kind.vectors * kind.lanes * size, v + size, ahead, *sums])
    return loop.results[3:]


@compiled("input", kept=64)
def input_code(module: Module, element: str, matrices: Matrices, step: int, cpu: Cpu) -> None:
    """Emit `input` for a class, with `step` bytes between positions along the last axis."""
    lanes = cpu.lanes(BYTES[element])
    line, nbytes = vector(element, lanes), lanes * BYTES[element]
    *outer, last = (len(stages[0][0]) for stages in matrices)
    with module.function("input", _INPUT) as f, f.loop(0, f["count"]) as tile:
        window = f["src"] + f.word(f["tiles"], tile.index)
        dst = f["dst"] + tile.index * f["row"]
        with f.loop(0, f["vectors"], carried=[window, dst]) as loop:
            src, to = loop.carried
            numbers = {}
            for position, start in _lines(f, src, outer):
                for i in range(last):
                    numbers[(*position, i)] = f.load(line, start + i * step)
            for value in _transformed(f, numbers, matrices).values():
                f.store(value, to)
                to = to + f["point"]
            loop.next([src + nbytes, loop.carried[1] + nbytes])


@compiled("inverse", kept=64)
def inverse_code(module: Module, kind: Inverse, cpu: Cpu) -> None:
    """Emit `inverse` for a class."""
    lanes = cpu.lanes(BYTES[kind.element])
    line, nbytes = vector(kind.element, lanes), lanes * BYTES[kind.element]
    points = [len(stages[0][0]) for stages in kind.matrices]
    *outer, last = (len(stages[-1]) for stages in kind.matrices)
    zero = Value(line, "zeroinitializer")
    with module.function("inverse", _INVERSE) as f:
        with f.loop(0, f["count"], carried=[zero]) as tile:
            entry = f.at(f["tiles"], tile.index * 2, I64)
            src = f["src"] + f.load(I64, entry)
            dst = f["dst"] + f.word(entry, 1)
            starts = [src, dst, f["bias"], tile.carried[0]]
            with f.loop(0, f["vectors"], carried=starts) as loop:
                src, dst, bias, bad = loop.carried
                numbers, of_point = {}, src
                for point in product(*map(range, points)):
                    numbers[point] = f.load(line, of_point)
                    of_point = of_point + f["point"]
                results = _transformed(f, numbers, kind.matrices)
                start, slopes = f.load(line, bias), kind.epilogue.slopes
                slope = f.load(line, bias + f["slopes"]) if slopes else kind.epilogue.slope
                for rows, to in _lines(f, dst, outer):
                    for i in range(last):
                        value = results[(*rows, i)]
                        bad = f.multiply_add(value, zero, bad)
                        value = value + start
                        f.store(activated(f, kind.epilogue.activation, slope, value), to)
                        to = to + f["step_2"]
                moved = [address + nbytes for address in loop.carried[:3]]
                loop.next([*moved, bad])
            tile.next([loop.results[3]])
        report_nonfinite(f, tile.results[0], f["bad"])


def _lines(f: Function, start: Value, outer: Sequence[int]) -> list[tuple[tuple[int, ...], Value]]:
    """Return all tuples of positions along the 0 to 2 outer axes, with their addresses."""
    steps = ("step_0", "step_1")[2 - len(outer) :] if outer else ()
    lines: list[tuple[tuple[int, ...], Value]] = [((), start)]
    for count, step in zip(outer, steps, strict=True):
        longer = []
        for position, address in lines:
            for i in range(count):
                longer.append(((*position, i), address))
                address = address + f[step]
        lines = longer
    return lines


Vectors = dict[tuple[int, ...], Value]


def _transformed(f: Function, numbers: Vectors, matrices: Sequence[Sequence[Matrix]]) -> Vectors:
    """Multiply vectors, which have an index along each axis, by each axis's matrices."""
    for axis in reversed(range(len(matrices))):
        for matrix in matrices[axis]:
            products = {}
            for before, after in dict.fromkeys((at[:axis], at[axis + 1 :]) for at in numbers):
                column = [numbers.get((*before, i, *after)) for i in range(len(matrix[0]))]
                for i, row in enumerate(matrix):
                    terms = [(c, v) for c, v in zip(row, column, strict=True) if c and v]
                    if terms:  # points that no tap needs have none
                        products[(*before, i, *after)] = _combined(f, terms)
            numbers = products
    return dict(sorted(numbers.items()))


def _combined(f: Function, terms: list[tuple[Fraction, Value]]) -> Value:
    """Return a sum of vectors times factors."""
    terms = sorted(terms, key=lambda term: term[0] != 1)  # a vector with factor 1 comes first
    factor, total = terms[0]
    if factor != 1:
        total = total * f.constant(total.type, float(factor))
    for factor, value in terms[1:]:
        if abs(factor) == 1:
            total = total + value if factor > 0 else total - value
        else:
            total = f.multiply_add(value, f.constant(value.type, float(factor)), total)
    return total
