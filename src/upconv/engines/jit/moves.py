"""Moves as native code: transposed matrices and channels split into positions. The tables are those
of windows, too.

They say which rows of the input make a row of the result (`ROW`, `TAP`), which part of the rows a
job computes (`PART`), and where images lie (`IMAGE`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .compile import compiled
from .cpu import Cpu
from .emit import Function, Module, signature
from .kernel_arguments import ArgumentLayout, Record
from .transpose import TRANSPOSE, as_bits
from .values import BYTES, I64, Value, vector
from .walk import COUNTERS, JOB, NUMBERS

WINDOWS = (
    "x* y* rows* taps* line_rows* line_taps*"  # arrays, and tables of the other axes and the last
    " width kernel dilation scale*"  # positions of an input row, of a window, from tap to tap; and
    # the factors of sums along it
    " segment channels x_step y_step parts*"  # bytes of a line; channels last: bytes of positions
    " fill*"  # what stands where there is no position
    " code* "  # a function that a job calls
)
LAYOUT = ArgumentLayout(NUMBERS + WINDOWS, counters=COUNTERS)


def _record(names: str) -> np.dtype[np.void]:
    return np.dtype([(name, np.int64) for name in names.split()])


ROW = _record("to tap taps")
"""A row of the result: its first byte in an image, and which taps make it."""
TAP = np.dtype([("offset", np.int64), ("weight", np.float64)])
PART = _record("row rows column columns first count")
"""What a job computes: rows, and columns of them, for which it needs `count` positions of the input
from `first` on, of which some may lie beside the row."""
IMAGE = _record("src dst")
TURN = _record("src dst rows columns src_row dst_row")
COPY = _record("dst src lines")
"""A copy of whole lines of `COPY_BYTES`: byte offsets in two blocks of memory, and a count."""
COPY_BYTES = 64


def every(f: Function, vectors: Sequence[Value], first: int, lanes: int) -> Value:
    """Elements first, first + n, first + 2n ... of n vectors side by side."""
    stride = len(vectors)
    order = [first + lane * stride for lane in range(lanes)]
    result = f.shuffle(vectors[0], None, [i % lanes for i in order])
    for number in range(1, stride):
        here = [lanes + i % lanes if i // lanes == number else lane for lane, i in enumerate(order)]
        result = f.shuffle(result, vectors[number], here)
    return result


@compiled("transpose", kept=8)
def transpose_columns_code(
    module: Module, stored: str, computed: str, columns: int, cpu: Cpu
) -> None:
    """A function of `TRANSPOSE` for the `columns` columns that `src` has."""
    lanes = cpu.lanes(BYTES[computed])
    kind = vector(stored, lanes)
    with module.function("transpose", TRANSPOSE) as f:
        full = f["rows"] // lanes * lanes
        rest = f["rows"] - full

        def move(first: Value, *, masked: bool) -> None:
            vectors = []
            for i in range(columns):
                src = f.at(f["src"], first * columns + i * lanes, stored)
                if masked:
                    mask = f.lanes_below(rest * columns - i * lanes, lanes)
                    vectors.append(as_bits(f, f.load_lanes(kind, src, mask), computed))
                else:
                    vectors.append(as_bits(f, f.load(kind, src), computed))
            for i in range(columns):
                values = vectors[0] if columns == 1 else every(f, vectors, i, lanes)
                dst = f.at(f["dst"] + f["dst_row"] * i, first, computed)
                if masked:
                    f.store_lanes(values, dst, f.lanes_below(rest, lanes))
                else:
                    f.store(values, dst)

        with f.loop(0, full, lanes) as row:
            move(row.index, masked=False)
        with f.when(rest > 0):
            move(full, masked=True)


@compiled("split", kept=16)
def split_code(module: Module, factor: int, stored: str, cpu: Cpu) -> None:
    """The job `split(args, mine, part, image)`: channel c * factor + i of a position goes to
    channel c of a position of the result, `parts[i]` bytes behind that of i = 0."""
    lanes = cpu.lanes(BYTES[stored])
    kind = vector(stored, lanes)
    with module.function("split", JOB) as f:
        a = LAYOUT.reader(f)
        part, image = Record(f, f["inner"], PART), Record(f, f["outer"], IMAGE)
        x, y = a["x"] + image["src"], a["y"] + image["dst"]
        channels = a["channels"]
        full = channels // lanes * lanes
        with (
            f.loop(part["row"], part["row"] + part["rows"]) as loop,
            f.loop(part["column"], part["column"] + part["columns"]) as position,
        ):
            row = Record.of(f, a["rows"], loop.index, ROW)
            src = x + (f.word(a["taps"] + row["tap"] * TAP.itemsize) + position.index * a["x_step"])
            dst = y + (row["to"] + position.index * a["y_step"])

            def move(first: Value, rest: Value | None) -> None:
                here = f.at(src, first * factor, stored)
                vectors = []
                for i in range(factor):
                    address = f.at(here, i * lanes, stored)
                    if rest is None:
                        vectors.append(f.load(kind, address))
                    else:
                        mask = f.lanes_below(rest * factor - i * lanes, lanes)
                        vectors.append(f.load_lanes(kind, address, mask))
                for i in range(factor):
                    to = f.at(dst + f.word(a["parts"], i), first, stored)
                    values = every(f, vectors, i, lanes)
                    if rest is None:
                        f.store(values, to)
                    else:
                        f.store_lanes(values, to, f.lanes_below(rest, lanes))

            with f.loop(0, full, lanes) as block:
                move(block.index, None)
            with f.when(full < channels):
                move(full, channels - full)


@compiled("turn", kept=2, opt=0)
def turn_code(module: Module, cpu: Cpu) -> None:
    """The job `turn(args, mine, turn, image)`: one call of a function that transposes a matrix."""
    del cpu
    with module.function("turn", JOB) as f:
        a = LAYOUT.reader(f)
        turn, image = Record(f, f["inner"], TURN), Record(f, f["outer"], IMAGE)
        src, dst = a["x"] + (image["src"] + turn["src"]), a["y"] + (image["dst"] + turn["dst"])
        names = tuple(TRANSPOSE)[2:]
        f.call(a["code"], dst, src, *(turn[name] for name in names))


@compiled("copies", kept=2)
def copies_code(module: Module, cpu: Cpu) -> None:
    """The function `copies(dst, src, table, count)`: all copies of a table."""
    lanes = min(COPY_BYTES, cpu.vector_bytes) // BYTES[I64]
    kind, numbers = vector(I64, lanes), COPY_BYTES // BYTES[I64]
    parameters = signature("dst* src* table* count")
    with module.function("copies", parameters) as f, f.loop(0, f["count"]) as loop:
        copy = Record.of(f, f["table"], loop.index, COPY)
        dst, src = f["dst"] + copy["dst"], f["src"] + copy["src"]
        with f.loop(0, copy["lines"] * numbers, lanes) as line:
            f.store(f.load(kind, f.at(src, line.index, I64)), f.at(dst, line.index, I64))
