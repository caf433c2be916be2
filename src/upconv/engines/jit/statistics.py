"""Means and variances for normalization as native code, in one pass over memory.

Elements form matrices of rows and columns. For each column in a part, the first row is a *shift* k
that removes large means:

    d = x - k,   mean = k + sum(d) / n,   moment = sum(d^2) - sum(d)^2 / n

A part has so few rows that float32 sums are accurate enough. `final` adds parts in double:

    mean = sum(n_i mean_i) / n,   variance = sum(moment_i + n_i (mean_i - mean)^2) / n

and writes -mean and 1 / sqrt(variance + epsilon) into tables. The first two operations of a chain
add the former and multiply by the latter. If each row or each column has separate statistics, they
are written into the tables directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import add

from .chains import PIECE
from .compile import compiled
from .cpu import Cpu
from .emit import Function, Loop, Module
from .kernel_arguments import ArgumentLayout, Arguments, Record, record
from .rows import Span, Spans, across, converted
from .values import BYTES, DOUBLE, I64, Value, split, vector
from .walk import COUNTERS, JOB, NUMBERS

STATISTICS = (
    "x* x_image x_row columns"  # the matrix: bytes between images and rows, and its columns
    " sums* sums_image plane"  # counts, means and moments of parts, and the doubles in each
    " minus_mean* inverse* table_image"  # the tables, and bytes from image to image
    " copies copy_bytes"  # of each number in the tables
    " epsilon"  # a double's bits
    " parts* merges* finals* pieces*"  # the tables of the jobs of units, and their functions
    " part_code* merge_code* final_code* piece_code* "
)
"""The numbers for normalization in an argument block, between the walk's and the chain's."""


PART = record("start rows rest slot")
"""A part: its first byte, rows, elements in a shorter row after them, and the slot of its sums."""
FINAL = record("slot slots column width to entries")
"""Columns of some slots that share a mean, and the table entries that receive it."""
MERGE = record("column width slots repeats apart to")
"""Columns to merge, of slots from 0 on, each with `repeats` columns at a distance of `apart`; and
the slot for the sum."""
UNIT = record("part parts merge merges final finals piece pieces")
"""A job that combines records of all kinds: the first record of each kind, and their count."""

Finish = Callable[[Span, Value, Value, Value], None]
Gather = Callable[[Span, Value, Value, Value], tuple[Value, Value]]
_LAYOUT = ArgumentLayout(NUMBERS + STATISTICS, counters=COUNTERS)


@compiled("part", kept=8)
def part_code(module: Module, stored: str, computed: str, cpu: Cpu) -> None:
    """Emit the job `part(args, mine, part, image)`: counts, means, moments of a part's columns."""
    with module.function("part", JOB) as f:
        a, image = _LAYOUT.reader(f), f.convert("ptrtoint", f["outer"], I64)
        part = Record(f, f["inner"], PART)
        columns = _Columns(f, a, (stored, computed), part["rows"], part["rest"], cpu)
        x = a["x"] + (image * a["x_image"] + part["start"])
        plane = a["plane"]
        sums = a["sums"] + (image * a["sums_image"] + part["slot"] * plane * (3 * BYTES[DOUBLE]))

        def finish(span: Span, count: Value, mean: Value, moment: Value) -> None:
            for number, values in enumerate((count, mean, moment)):
                f.store(values, f.at(sums, plane * number + span.start, DOUBLE))

        columns.each(x, a["columns"], finish)


@compiled("columns", kept=8)
def columns_code(module: Module, stored: str, computed: str, cpu: Cpu) -> None:
    """Emit the job `columns(args, mine, piece, image)`: the tables of a piece's columns."""
    with module.function("columns", JOB) as f:
        a, image = _LAYOUT.reader(f), f.convert("ptrtoint", f["outer"], I64)
        piece = Record(f, f["inner"], PIECE)
        columns = _Columns(f, a, (stored, computed), piece["rows"], f.integer(0), cpu)
        x = a["x"] + (image * a["x_image"] + piece["column"] * BYTES[stored])
        offset = image * a["table_image"] + piece["column"] * BYTES[computed]
        tables = a["minus_mean"] + offset, a["inverse"] + offset

        def finish(span: Span, count: Value, mean: Value, moment: Value) -> None:
            for table, values in zip(tables, _results(f, a, mean, moment / count), strict=True):
                span.write(values, table, computed)

        columns.each(x, piece["length"], finish)


@compiled("rows", kept=8)
def rows_code(module: Module, stored: str, computed: str, cpu: Cpu) -> None:
    """Emit the job `rows(args, mine, piece, image)`: the tables of a piece's rows."""
    lanes = cpu.lanes(BYTES[computed])
    kind = vector(computed, lanes)
    with module.function("rows", JOB) as f:
        a, image = _LAYOUT.reader(f), f.convert("ptrtoint", f["outer"], I64)
        piece = Record(f, f["inner"], PIECE)
        length, first = piece["length"], piece["row"]
        base = a["x"] + (image * a["x_image"] + first * a["x_row"])
        offset = image * a["table_image"] + first * BYTES[computed]
        full = length // lanes * lanes
        mask = f.lanes_below(length - full, lanes)
        zero = f.constant(kind, 0.0)
        count = f.broadcast(f.convert("sitofp", length, DOUBLE), 1)
        with f.loop(0, piece["rows"]) as row:
            x = base + row.index * a["x_row"]
            shift = f.broadcast(converted(f, f.load(stored, x), computed), lanes)
            with f.loop(0, full, lanes, [zero, zero]) as loop:
                span = Span(f, loop.index, lanes, None)
                loop.next(_summed(f, span.read(x, stored, computed), shift, loop.carried))
            span = Span(f, full, lanes, mask)
            rest = f.select(mask, span.read(x, stored, computed), shift)
            sums = [across(f, s, add) for s in _summed(f, rest, shift, loop.results)]
            wide = [converted(f, _one(f, s), DOUBLE) for s in sums]
            mean, moment = _moments(f, _one(f, shift), wide, count)
            for name, values in zip(
                ("minus_mean", "inverse"), _results(f, a, mean, moment / count), strict=True
            ):
                f.store(converted(f, values, computed), f.at(a[name] + offset, row.index, computed))


class _Columns:
    """An emitter of sums over a matrix's rows, for some vectors of columns at a time."""

    def __init__(
        self, f: Function, a: Arguments, types: tuple[str, str], rows: Value, rest: Value, cpu: Cpu
    ) -> None:
        self._f, self._types, self._rows, self._rest = f, types, rows, rest
        self._lanes = cpu.lanes(BYTES[types[1]])
        self._row_bytes = a["x_row"]

    def each(self, x: Value, columns: Value, finish: Finish) -> None:
        """Emit `finish(span, count, mean, moment)`, with doubles, for all columns."""
        blocks = Spans(self._f, columns, self._lanes, 4)
        blocks.each_block(lambda spans: self._block(spans, x, finish))

    def _block(self, spans: Sequence[Span], x: Value, finish: Finish) -> None:
        f, lanes, (stored, computed) = self._f, self._lanes, self._types
        shifts = [span.read(x, stored, computed) for span in spans]
        zeros = [f.constant(vector(computed, lanes), 0.0)] * (2 * len(spans))

        def add_row(loop: Loop, row: Value, *, shorter: bool) -> None:
            sums = []
            for i, (span, shift) in enumerate(zip(spans, shifts, strict=True)):
                if shorter:
                    mask = f.lanes_below(self._rest - span.start, lanes)
                    span = Span(f, span.start, lanes, mask)
                value = span.read(row, stored, computed)
                value = f.select(mask, value, shift) if shorter else value
                sums += _summed(f, value, shift, loop.carried[2 * i : 2 * i + 2])
            loop.next(sums)

        with f.loop(0, self._rows, 1, zeros) as loop:
            add_row(loop, x + loop.index * self._row_bytes, shorter=False)
        # The shorter row takes one iteration of a loop, or none.
        row = x + self._rows * self._row_bytes
        there = f.select(self._rest > spans[0].start, f.integer(1), 0)
        with f.loop(0, there, 1, loop.results) as again:
            add_row(again, row, shorter=True)
        rows = f.broadcast(f.convert("sitofp", self._rows, DOUBLE), lanes)
        for i, (span, shift) in enumerate(zip(spans, shifts, strict=True)):
            mask = f.lanes_below(self._rest - span.start, lanes)
            count = f.select(mask, rows + 1, rows)
            wide = [converted(f, s, DOUBLE) for s in again.results[2 * i : 2 * i + 2]]
            finish(span, count, *_moments(f, shift, wide, count))


def _summed(f: Function, value: Value, shift: Value, sums: Sequence[Value]) -> list[Value]:
    """Add one more value to the sums of d and of d^2."""
    d = value - shift
    return [sums[0] + d, f.multiply_add(d, d, sums[1])]


def _moments(f: Function, shift: Value, sums: Sequence[Value], count: Value) -> tuple[Value, Value]:
    """Return means and moments, in double."""
    mean = sums[0] / count
    return converted(f, shift, DOUBLE) + mean, sums[1] - sums[0] * mean


def _results(f: Function, a: Arguments, mean: Value, variance: Value) -> tuple[Value, Value]:
    """Return -mean and 1 / sqrt(variance + epsilon), even if rounding left a variance below 0."""
    lanes = split(mean.type)[1]
    epsilon = f.broadcast(f.load(DOUBLE, a.address("epsilon")), lanes)
    variance = f.select(f.compare("olt", variance, 0), 0, variance)
    root = f.intrinsic("llvm.sqrt", variance + epsilon)
    return mean * -1.0, f.constant(mean.type, 1.0) / root


def _planes(f: Function, span: Span, base: Value, plane: Value) -> list[Value]:
    """Load the counts, means and moments of some columns."""
    return [span.load(f.at(base, plane * i + span.start, DOUBLE), DOUBLE) for i in range(3)]


def _one(f: Function, value: Value) -> Value:
    """Return the first lane: divisions and roots take longer on full vectors."""
    return f.shuffle(value, None, [0])


@compiled("merge", kept=2)
def merge_code(module: Module, cpu: Cpu) -> None:
    """Emit the job `merge(args, mine, merge, image)`, which merges the statistics of all slots."""
    lanes = cpu.lanes(BYTES[DOUBLE])
    with module.function("merge", JOB) as f:
        a, image = _LAYOUT.reader(f), f.convert("ptrtoint", f["outer"], I64)
        merge = Record(f, f["inner"], MERGE)
        plane, column, apart = a["plane"], merge["column"], merge["apart"]
        slot_bytes = plane * (3 * BYTES[DOUBLE])
        sums = a["sums"] + image * a["sums_image"]
        first = f.at(sums, column, DOUBLE)
        to = f.at(sums + merge["to"] * slot_bytes, column, DOUBLE)
        zero = f.constant(vector(DOUBLE, lanes), 0.0)

        def added(span: Span, start: list[Value], body: Gather) -> list[Value]:
            with f.loop(0, merge["slots"], 1, start) as slot:
                base = first + slot.index * slot_bytes
                with f.loop(0, merge["repeats"], 1, slot.carried) as repeat:
                    three = _planes(f, span, f.at(base, repeat.index * apart, DOUBLE), plane)
                    values = zip(repeat.carried, body(span, *three), strict=True)
                    repeat.next([total + value for total, value in values])
                slot.next(repeat.results)
            return slot.results

        def merged(span: Span) -> None:
            count, weighted = added(span, [zero, zero], lambda _, n, mean, __: (n, n * mean))
            mean = weighted / count

            def spread(_: Span, n: Value, part: Value, moment: Value) -> tuple[Value, Value]:
                return moment, n * (part - mean) * (part - mean)

            moments = added(span, [zero, zero], spread)
            for i, values in enumerate((count, mean, moments[0] + moments[1])):
                span.store(values, f.at(to, plane * i + span.start, DOUBLE))

        Spans(f, merge["width"], lanes).each(merged)


@compiled("final", kept=8)
def final_code(module: Module, computed: str, cpu: Cpu) -> None:
    """Emit the job `final(args, mine, final, image)`: table entries of columns in all parts."""
    lanes = cpu.lanes(BYTES[DOUBLE])
    with module.function("final", JOB) as f:
        a, image = _LAYOUT.reader(f), f.convert("ptrtoint", f["outer"], I64)
        final = Record(f, f["inner"], FINAL)
        plane = a["plane"]
        slot_bytes = plane * (3 * BYTES[DOUBLE])
        first = a["sums"] + (image * a["sums_image"] + final["slot"] * slot_bytes)
        first = f.at(first, final["column"], DOUBLE)
        slots = final["slots"]
        spans = Spans(f, final["width"], lanes)
        zero = f.constant(vector(DOUBLE, lanes), 0.0)
        stage = f.scratch(2 * lanes * BYTES[DOUBLE])
        sums = [stage, f.at(stage, lanes, DOUBLE)]

        def gathered(body: Gather) -> list[Value]:
            """Return sums over all columns of the two values that `body` returns."""
            for address in sums:
                f.store(zero, address)
            with f.loop(0, slots) as slot:
                base = first + slot.index * slot_bytes

                def take(span: Span) -> None:
                    three = _planes(f, span, base, plane)
                    for address, value in zip(sums, body(span, *three), strict=True):
                        f.store(f.load(value.type, address) + value, address)

                spans.each(take)
            return [across(f, f.load(zero.type, address), add) for address in sums]

        count, weighted = gathered(lambda _, n, mean, __: (n, n * mean))
        mean = weighted / count

        def spread(_: Span, n: Value, part_mean: Value, moment: Value) -> tuple[Value, Value]:
            d = part_mean - mean
            # In lanes beyond the width, n and all other values are 0: only a NaN mean reaches sums.
            return f.multiply_add(n * d, d, moment), n

        moment, _ = gathered(spread)
        variance = _one(f, moment) / _one(f, count)
        results = _results(f, a, _one(f, mean), variance)
        to, entries = final["to"] * BYTES[computed], final["entries"]
        out = Spans(f, entries, lanes)
        with f.loop(0, a["copies"]) as copy:
            offset = image * a["table_image"] + copy.index * a["copy_bytes"] + to
            for name, values in zip(("minus_mean", "inverse"), results, strict=True):
                narrow = f.shuffle(converted(f, values, computed), None, [0] * lanes)
                row = a[name] + offset
                out.each(partial(Span.write, value=narrow, row=row, stored=computed))


@compiled("unit", kept=2, opt=0)
def unit_code(module: Module, cpu: Cpu) -> None:
    """Emit the job `unit(args, mine, unit, image)`: records of each kind, one after another. The
    chain's pieces then find the data that parts have read in the cache."""
    with module.function("unit", JOB) as f:
        a, unit = _LAYOUT.reader(f), Record(f, f["inner"], UNIT)
        kinds = {"part": PART, "merge": MERGE, "final": FINAL, "piece": PIECE}
        for name, kind in kinds.items():
            with f.loop(0, unit[f"{name}s"]) as loop:
                record = a[f"{name}s"] + (unit[name] + loop.index) * kind.itemsize
                f.call(a[f"{name}_code"], f["args"], f["mine"], record, f["outer"])
