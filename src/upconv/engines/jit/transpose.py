"""Matrix transposition, dst[c][r] = src[r][c], between channels-first and channels-last data.

Squares of `lanes` rows and columns are transposed in registers, with masks at the edges. Elements
in narrow edges are copied one by one.
"""

from __future__ import annotations

from .compile import compiled
from .cpu import Cpu
from .emit import Function, Module, signature
from .positions.tile import interleaved
from .rows import converted
from .values import BFLOAT, BYTES, FLOAT, I16, I32, Value, split, vector

TRANSPOSE = signature(
    "dst* src* rows columns"
    " src_row dst_row"  # bytes from one row to the next: of dst, from one column of src
)


Types = tuple[str, str, int]
"""The elements' stored and computed types, and the distance in columns between paired elements."""


@compiled("transpose", kept=16)
def transpose_code(module: Module, stored: str, computed: str, cpu: Cpu) -> None:
    """Emit a function `TRANSPOSE` from elements of type `stored` to type `computed`."""
    _emit_transpose(module, (stored, computed, 0), cpu)


@compiled("transpose", kept=16)
def transpose_pairs_code(module: Module, stored: str, beside: int, cpu: Cpu) -> None:
    """Emit a function `TRANSPOSE` that writes 32-bit pairs of bfloat16: each element and the one
    `beside` columns further, or any value if there is none."""
    _emit_transpose(module, (read_for_pairs(stored), I32, beside), cpu)


def read_for_pairs(stored: str) -> str:
    """Return the type in which pairs are read: 16-bit integers for bfloat16. Without bfloat16
    instructions, LLVM would call a missing library function for each number."""
    return I16 if stored == BFLOAT else stored


def _emit_transpose(module: Module, types: Types, cpu: Cpu) -> None:
    lanes = cpu.lanes(max(BYTES[types[1]], BYTES[FLOAT]))  # squares that registers hold
    with module.function("transpose", TRANSPOSE) as f:
        if BYTES[types[1]] * 2 * lanes > cpu.vector_bytes:
            _rectangle(f, (f.integer(0), f["rows"]), (f.integer(0), f["columns"]), types, lanes)
            return
        # Two squares fill a cache line of dst. If lines were written in halves, they would leave
        # the cache in between when columns are a power of two apart.
        rows, columns = f["rows"] // (2 * lanes) * (2 * lanes), f["columns"] // lanes * lanes
        with f.loop(0, rows, 2 * lanes) as row, f.loop(0, columns, lanes) as column:
            _square(f, row.index, column.index, types, lanes, 2)
        with f.loop(0, 2) as part:  # the rectangle below, and the one to the right
            below = f.compare("eq", part.index, 0)
            tall = f.select(below, rows, 0), f.select(below, f["rows"], rows)
            _rectangle(f, tall, (f.select(below, 0, columns), f["columns"]), types, lanes)


def _rectangle(
    f: Function, rows: tuple[Value, Value], columns: tuple[Value, Value], types: Types, lanes: int
) -> None:
    """Transpose a range of rows and columns."""
    beside, (top, bottom), (left, right) = types[2], rows, columns
    low, behind = top + _squares(bottom - top, lanes), left + _squares(right - left, lanes)
    with f.loop(top, low, lanes) as row, f.loop(left, behind, lanes) as column:
        here = bottom - row.index, right - column.index
        whole = f.min(here[0], here[1] - beside) >= lanes
        with f.when(whole):
            _square(f, row.index, column.index, types, lanes)
        with f.unless(whole):
            _edge(f, row.index, column.index, here, types, lanes)
    # Right of the squares, then below them. Rows are the inner loop: they are adjacent in dst.
    with f.loop(behind, right) as column, f.loop(top, bottom) as row:
        _one(f, row.index, column.index, types)
    with f.loop(left, f.min(behind, right)) as column, f.loop(low, bottom) as row:
        _one(f, row.index, column.index, types)


@compiled("transpose", kept=16)
def transpose_few_code(module: Module, stored: str, computed: str, rows: int, cpu: Cpu) -> None:
    """Emit a function `TRANSPOSE` for exactly `rows` rows, by interleaving their vectors."""
    lanes, types = cpu.lanes(BYTES[computed]), (stored, computed, 0)
    with module.function("transpose", TRANSPOSE) as f:
        whole = f["columns"] // lanes * lanes
        with f.loop(0, whole, lanes) as column:
            lines = []
            for row in range(rows):
                src, _ = _places(f, f.integer(row), column.index, types)
                lines.append([as_bits(f, f.load(vector(stored, lanes), src), computed)])
            dst = f.at(f["dst"], column.index * rows, computed)
            for i, line in enumerate(interleaved(f, lines, lanes)):
                f.store(line, f.at(dst, i * lanes, computed))
        with f.loop(whole, f["columns"]) as column, f.loop(0, rows) as each:
            _one(f, each.index, column.index, types)


def as_bits(f: Function, value: Value, element: str) -> Value:
    """Convert as `converted` does, but to 16-bit integers for bfloat16, since not every processor
    can shuffle it as a number. Integers are returned unchanged."""
    if split(value.type)[0] == I16:
        return value
    value = converted(f, value, element)
    if element != BFLOAT:
        return value
    lanes = split(value.type)[1]
    return f.convert("bitcast", value, vector(I16, lanes) if lanes else I16)


def _squares(count: Value, lanes: int) -> Value:
    """Return where the squares end; the last needs at least a quarter of its rows or columns."""
    return (count + (lanes - lanes // 4)) // lanes * lanes


def paired(f: Function, low: Value, high: Value) -> Value:
    """Pack two numbers, or two vectors of numbers, as bfloat16 into 32 bits."""
    lanes = split(low.type)[1]
    words = vector(I32, lanes) if lanes else I32
    first, second = (f.convert("zext", as_bits(f, v, BFLOAT), words) for v in (low, high))
    return first | second << 16


def _places(f: Function, row: Value, column: Value, types: Types) -> list[Value]:
    """Return the addresses from which an element is read and to which it is written."""
    src = f.at(f["src"] + row * f["src_row"], column, types[0])
    dst = f.at(f["dst"] + column * f["dst_row"], row, types[1])
    return [src, dst]


def _one(f: Function, row: Value, column: Value, types: Types) -> None:
    src, dst = _places(f, row, column, types)
    number, last = f.load(types[0], src), f["columns"] - 1
    if types[1] == I32:
        other, _ = _places(f, row, f.min(column + types[2], last), types)
        f.store(paired(f, number, f.load(types[0], other)), dst)
    else:
        f.store(as_bits(f, number, types[1]), dst)


def _square(
    f: Function, row: Value, column: Value, types: Types, lanes: int, count: int = 1
) -> None:
    """Transpose one square, or two, one below the other in src."""
    _, dst = _places(f, row, column, types)
    squares = [_transposed_square(f, row + i * lanes, column, types, lanes) for i in range(count)]
    for i, lines in enumerate(zip(*squares, strict=True)):
        line = f.shuffle(lines[0], lines[1], range(2 * lanes)) if count == 2 else lines[0]
        f.store(line, dst + f["dst_row"] * i)


def _transposed_square(
    f: Function, row: Value, column: Value, types: Types, lanes: int
) -> list[Value]:
    """Return a square's columns."""
    src, _ = _places(f, row, column, types)
    kind = vector(types[0], lanes)
    places = [src + f["src_row"] * i for i in range(lanes)]
    if types[1] == I32:
        others = (f.load(kind, f.at(place, types[2], types[0])) for place in places)
        lines = [paired(f, f.load(kind, place), next(others)) for place in places]
    else:
        lines = [as_bits(f, f.load(kind, place), types[1]) for place in places]
    return transposed(f, lines, lanes)


def _edge(
    f: Function, row: Value, column: Value, left: tuple[Value, Value], types: Types, lanes: int
) -> None:
    """Transpose a square that has only `left` rows and columns."""
    src, dst = _places(f, row, column, types)
    kind, (rows, columns) = vector(types[0], lanes), left
    # Addresses stay inside the matrix: masked accesses of no lanes on unmapped pages are very slow.
    across, last, last_column = f.lanes_below(columns, lanes), rows - 1, columns - 1
    beside = f.lanes_below(columns - types[2], lanes)
    lines = []
    for i in range(lanes):
        place = src + f["src_row"] * f.min(f.integer(i), last)
        line = f.load_lanes(kind, place, across)
        if types[1] == I32:
            # If there are no lanes, the address stays inside the matrix.
            other = f.at(place, f.select(columns > types[2], f.integer(types[2]), 0), types[0])
            lines.append(paired(f, line, f.load_lanes(kind, other, beside)))
        else:
            lines.append(as_bits(f, line, types[1]))
    for i, line in enumerate(transposed(f, lines, lanes)):
        to = dst + f["dst_row"] * f.min(f.integer(i), last_column)
        f.store_below(line, to, f.select(columns > i, rows, 0))


def transposed(f: Function, lines: list[Value], lanes: int) -> list[Value]:
    """Return a square's columns by interleaving lines i and i + lanes/2, log2(lanes) times.

    All steps are equal, so the code is a loop. It is as fast as unrolled code, and compiles in
    half the time.
    """
    if split(lines[0].type)[0] == I16 and lanes > 2:
        return _transposed_pairs(f, lines, lanes)
    return _interleaved(f, [lines], lanes)[0]


def _interleaved(f: Function, squares: list[list[Value]], lanes: int) -> list[list[Value]]:
    """Return the columns of several squares."""
    half = lanes // 2
    low = [i // 2 + (i % 2) * lanes for i in range(lanes)]
    high = [i + half for i in low]
    with f.loop(
        0, lanes.bit_length() - 1, carried=[line for square in squares for line in square]
    ) as loop:
        pairs = [
            (loop.carried[first + i], loop.carried[first + i + half])
            for first in range(0, len(loop.carried), lanes)
            for i in range(half)
        ]
        loop.next([f.shuffle(a, b, order) for a, b in pairs for order in (low, high)])
    return [loop.results[i : i + lanes] for i in range(0, len(loop.results), lanes)]


def _transposed_pairs(f: Function, lines: list[Value], lanes: int) -> list[Value]:
    """Return the columns of a square of 16-bit numbers: interleave neighbouring lines within every
    16 bytes, then transpose the 32-bit words in two squares of half the lanes.

    On Intel processors, shuffling 16-bit numbers across a register takes three times as long.
    """
    part, half = min(8, lanes), lanes // 2
    columns = [first + i for first in range(0, lanes, part) for i in range(part // 2)]
    squares, words = [], vector(I32, half)
    for behind in (0, part // 2):
        order = [c + behind + row * lanes for c in columns for row in (0, 1)]
        pairs = (f.shuffle(lines[i], lines[i + 1], order) for i in range(0, lanes, 2))
        squares.append([f.convert("bitcast", pair, words) for pair in pairs])
    result: dict[int, Value] = {}
    for behind, square in zip((0, part // 2), _interleaved(f, squares, half), strict=True):
        for column, line in zip(columns, square, strict=True):
            result[column + behind] = f.convert("bitcast", line, lines[0].type)
    return [result[column] for column in range(lanes)]
