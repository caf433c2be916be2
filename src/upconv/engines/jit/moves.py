"""Data movement as native code: transposing matrices, and splitting channels into positions.

windows.py uses the same tables. They list the input rows from which each row of the result is
computed (`ROW`, `TAP`), the part that each job computes (`PART`), and where images begin
(`IMAGE`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .compile import compiled
from .cpu import Cpu
from .emit import Function, Module, signature
from .kernel_arguments import ArgumentLayout, Record, record
from .transpose import TRANSPOSE, as_bits
from .values import BYTES, I64, Value, split, vector
from .walk import COUNTERS, JOB, NUMBERS

WINDOWS = (
    "x* y* rows* taps* line_rows* line_taps*"  # arrays; tables for the other axes and for the last
    " width kernel dilation scale*"  # positions of an input row, of a window, and between taps; and
    # the factors of sums along the row
    " segment channels x_step y_step parts*"  # bytes of a line; channels last: bytes of positions
    " fill*"  # the value of positions outside the input
    " code* "  # a function that a job calls
)
LAYOUT = ArgumentLayout(NUMBERS + WINDOWS, counters=COUNTERS)


ROW = record("to tap taps")
"""A row of the result: its first byte in an image, and its taps."""
TAP = np.dtype([("offset", np.int64), ("weight", np.float64)])
PART = record("row rows column columns first count")
"""The rows and columns that a job computes. They need `count` input positions from `first` on, some
of which may be outside the input's row."""
IMAGE = record("src dst")
TURN = record("src dst rows columns src_row dst_row")
COPY = record("dst src lines")
"""A copy of entire lines of `COPY_BYTES`: byte offsets in two memory blocks, and a line count."""
COPY_BYTES = 64


def every(f: Function, vectors: Sequence[Value], first: int, lanes: int) -> Value:
    """Return the elements first, first + n, first + 2n ... of n adjacent vectors."""
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
    """Emit a function `TRANSPOSE` for a `src` with exactly `columns` columns."""
    lanes = cpu.lanes(BYTES[computed])
    kind = vector(stored, lanes)
    with module.function("transpose", TRANSPOSE) as f:

        def move(first: Value, rest: Value | None) -> None:
            src = f.at(f["src"], first * columns, stored)
            vectors = _loaded(f, kind, src, columns, rest, computed)
            for i in range(columns):
                values = vectors[0] if columns == 1 else every(f, vectors, i, lanes)
                f.store_some(values, f.at(f["dst"] + f["dst_row"] * i, first, computed), rest)

        in_vectors(f, f["rows"], lanes, move)


def _loaded(
    f: Function, kind: str, src: Value, count: int, rest: Value | None, computed: str
) -> list[Value]:
    """Load `count` adjacent vectors, or only their first `count * rest` numbers, as `as_bits`."""
    element, lanes = split(kind)
    vectors = []
    for first in range(0, count * lanes, lanes):
        left = None if rest is None else rest * count - first
        # Converted at once: with AVX2 each masked load has separate blocks, and bfloat16 must not
        # cross from one block into another.
        vectors.append(as_bits(f, f.load_some(kind, f.at(src, first, element), left), computed))
    return vectors


def in_vectors(
    f: Function, count: Value, lanes: int, body: Callable[[Value, Value | None], None]
) -> None:
    """Emit `body(first, None)` for each full vector, and `body(first, rest)` for the remainder."""
    full = count // lanes * lanes
    with f.loop(0, full, lanes) as loop:
        body(loop.index, None)
    with f.when(full < count):
        body(full, count - full)


@compiled("split", kept=16)
def split_code(module: Module, factor: int, stored: str, cpu: Cpu) -> None:
    """Emit the job `split(args, mine, part, image)`: channel c * factor + i goes to channel c of
    another position of the result, `parts[i]` bytes after the position for i = 0."""
    lanes = cpu.lanes(BYTES[stored])
    kind = vector(stored, lanes)
    with module.function("split", JOB) as f:
        a = LAYOUT.reader(f)
        part, image = Record(f, f["inner"], PART), Record(f, f["outer"], IMAGE)
        x, y = a["x"] + image["src"], a["y"] + image["dst"]
        channels = a["channels"]
        with (
            f.loop(part["row"], part["row"] + part["rows"]) as loop,
            f.loop(part["column"], part["column"] + part["columns"]) as position,
        ):
            row = Record.of(f, a["rows"], loop.index, ROW)
            src = x + (f.word(a["taps"] + row["tap"] * TAP.itemsize) + position.index * a["x_step"])
            dst = y + (row["to"] + position.index * a["y_step"])

            def move(first: Value, rest: Value | None) -> None:
                vectors = _loaded(f, kind, f.at(src, first * factor, stored), factor, rest, stored)
                for i in range(factor):
                    to = f.at(dst + f.word(a["parts"], i), first, stored)
                    f.store_some(every(f, vectors, i, lanes), to, rest)

            in_vectors(f, channels, lanes, move)


@compiled("turn", kept=2, opt=0)
def turn_code(module: Module, cpu: Cpu) -> None:
    """Emit the job `turn(args, mine, turn, image)`, which calls code that transposes a matrix."""
    del cpu
    with module.function("turn", JOB) as f:
        a = LAYOUT.reader(f)
        turn, image = Record(f, f["inner"], TURN), Record(f, f["outer"], IMAGE)
        src, dst = a["x"] + (image["src"] + turn["src"]), a["y"] + (image["dst"] + turn["dst"])
        names = tuple(TRANSPOSE)[2:]
        f.call(a["code"], dst, src, *(turn[name] for name in names))


@compiled("copies", kept=2)
def copies_code(module: Module, cpu: Cpu) -> None:
    """Emit the function `copies(dst, src, table, count)`, which makes all copies in a table."""
    lanes = min(COPY_BYTES, cpu.vector_bytes) // BYTES[I64]
    kind, numbers = vector(I64, lanes), COPY_BYTES // BYTES[I64]
    parameters = signature("dst* src* table* count")
    with module.function("copies", parameters) as f, f.loop(0, f["count"]) as loop:
        copy = Record.of(f, f["table"], loop.index, COPY)
        dst, src = f["dst"] + copy["dst"], f["src"] + copy["src"]
        with f.loop(0, copy["lines"] * numbers, lanes) as line:
            f.store(f.load(kind, f.at(src, line.index, I64)), f.at(dst, line.index, I64))
