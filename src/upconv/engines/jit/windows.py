"""Operations on windows as native code: pooling, padding, resampling, pixel shuffle.

A *row* of a result is a run along the last axis. Tables list the input rows from which it is
computed, and their weights (`ROW`, `TAP`), so the rank and the other axes' strides and padding are
data.

    channels first    1. combine the input's rows into one line, padded at both ends
                      2. combine the line's neighbours, in vectors of positions
    channels last     taps along the last axis are tables too, and vectors run over channels
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from .chains import extreme
from .compile import compiled
from .cpu import Cpu
from .emit import Function, Module
from .kernel_arguments import Arguments, Record
from .moves import IMAGE, LAYOUT, PART, ROW, TAP, every, in_vectors
from .positions.tile import interleaved
from .rows import Span, Spans, across, converted
from .values import BYTES, DOUBLE, LINE, Value, split, vector
from .walk import JOB


@dataclass(frozen=True, slots=True)
class Line:
    """A class of code for channels first.

    reduce: "pick", "max" or "sum" of input rows. last: the step along the last axis, "copy",
    "pool", "window" (one per job), "nearest", "linear" or "shuffle"; factor: its stride or factor.
    edge: "fill", "replicate" or "reflect".
    """

    reduce: str
    last: str
    factor: int
    edge: str
    stored: str
    computed: str


@compiled("windows", kept=32)
def line_code(module: Module, line: Line, cpu: Cpu) -> None:
    """Emit the job `windows(args, mine, part, image)` for channels first."""
    lanes = cpu.lanes(BYTES[line.computed])
    with module.function("windows", JOB) as f:
        a = LAYOUT.reader(f)
        part, image = Record(f, f["inner"], PART), Record(f, f["outer"], IMAGE)
        gather = _Gather(f, a, line, part, lanes)
        columns = part["columns"]
        x, y = a["x"] + image["src"], a["y"] + image["dst"] + part["column"] * BYTES[line.stored]
        stage, segment = f["mine"] + LINE, a["segment"]
        combine = _LAST.get(line.last)
        with f.loop(part["row"], part["row"] + part["rows"]) as loop:
            row = Record.of(f, a["rows"], loop.index, ROW)
            taps = a["taps"] + row["tap"] * TAP.itemsize
            dst = y + row["to"]
            if line.last == "shuffle":
                with f.loop(0, line.factor) as phase:
                    tap = taps + phase.index * TAP.itemsize
                    gather.emit(stage + phase.index * segment, x, tap, f.integer(1), line.computed)
            elif combine is None:
                gather.emit(dst, x, taps, row["taps"], line.stored)
            else:
                gather.emit(stage, x, taps, row["taps"], line.computed)
            if combine is not None:
                combine(f, a, line, stage, dst, part["column"], columns, lanes)


class _Gather:
    """An emitter of step 1: a line of positions from input rows."""

    def __init__(self, f: Function, a: Arguments, line: Line, part: Record, lanes: int) -> None:
        self._f, self._line, self._lanes = f, line, lanes
        self._fill_value = a["fill"]
        first, count, width = part["first"], part["count"], a["width"]
        self._first, self._count, self._width = first, count, width
        self._low = f.min(f.max(f.integer(0) - first, 0), count)
        self._high = f.max(f.min(count, width - first), self._low)
        self._body = Spans(f, self._high - self._low, lanes, 4)
        self._before = Spans(f, self._low, lanes)
        self._after = Spans(f, count - self._high, lanes)
        self._all = Spans(f, count, lanes)

    def emit(self, to: Value, x: Value, taps: Value, count: Value, element: str) -> None:
        """Emit the line at an address, with elements of a type."""
        f, line = self._f, self._line
        if line.reduce == "pick":
            with f.when(count > 0):
                row = x + f.word(taps)
                src, dst = self._from(row), f.at(to, self._low, element)
                types = line.stored, element
                self._body.each(lambda span: span.write(span.read(src, *types), dst, element))
                self._edges(to, row, element)
            with f.unless(count > 0):
                self._fill(self._all, to, self._neutral(element), element)
            return
        dst = f.at(to, self._low, element)

        def combine(spans: list[Span]) -> None:
            totals = [self._neutral(element)] * len(spans)
            with f.loop(0, count, 1, totals) as loop:
                tap = taps + loop.index * TAP.itemsize
                src = self._from(x + f.word(tap))
                values = [span.read(src, line.stored, element) for span in spans]
                loop.next(_reduced(f, line.reduce, values, loop.carried, tap))
            for span, total in zip(spans, loop.results, strict=True):
                span.write(total, dst, element)

        self._body.each_block(combine)
        self._edges(to, None, element)

    def _from(self, row: Value) -> Value:
        """Return the address of the line's first existing position in an input row."""
        return self._f.at(row, self._first + self._low, self._line.stored)

    def _neutral(self, element: str) -> Value:
        return _neutral(self._f, self._line.reduce, vector(element, self._lanes), self._fill_value)

    def _edges(self, to: Value, row: Value | None, element: str) -> None:
        """Fill the positions outside the row, or repeat or mirror the row's positions there."""
        f, edge, stored = self._f, self._line.edge, self._line.stored
        after = f.at(to, self._high, element)
        if edge == "reflect" and row is not None:
            last = (self._width - 1) * 2
            for start, stop, middle in (0, self._low, 0), (self._high, self._count, last):
                with f.loop(start, stop) as loop:
                    place = f.at(row, middle - self._first - loop.index, stored)
                    value = converted(f, f.load(stored, place), element)
                    f.store(value, f.at(to, loop.index, element))
            return
        for blocks, start, number in (
            (self._before, to, self._low), (self._after, after, self._high - 1),
        ):  # fmt: skip
            if edge == "fill":
                self._fill(blocks, start, self._neutral(element), element)
                continue
            if row is None:
                value = f.load(element, f.at(to, number, element))
            else:
                edge_index = f.integer(0) if start is to else self._width - 1
                value = converted(f, f.load(stored, f.at(row, edge_index, stored)), element)
            self._fill(blocks, start, f.broadcast(value, self._lanes), element)

    def _fill(self, blocks: Spans, start: Value, value: Value, element: str) -> None:
        blocks.each(lambda span: span.write(value, start, element))


def _neutral(f: Function, reduce: str, kind: str, fill: Value | None = None) -> Value:
    """Return the result without taps: a neutral number, or the number at the address `fill`."""
    element, lanes = split(kind)
    if reduce == "pick" and fill is not None:
        return f.broadcast(f.load(element, fill), lanes)
    return f.constant(kind, float("-inf") if reduce == "max" else 0)


def _combined(f: Function, reduce: str, a: Value, b: Value) -> Value:
    return extreme(f, "ogt", a, b) if reduce == "max" else a + b


def _reduced(
    f: Function, reduce: str, values: list[Value], totals: list[Value], tap: Value,
    share: Value | None = None,
) -> list[Value]:  # fmt: skip
    """Add one more tap to the totals; its weight in a sum is multiplied by `share`."""
    if reduce == "pick":
        return values
    pairs = zip(totals, values, strict=True)
    if reduce == "max":
        return [_combined(f, reduce, total, value) for total, value in pairs]
    weight, (element, lanes) = _weight(f, tap), split(values[0].type)
    weight = share * weight if share else weight
    factor = f.broadcast(converted(f, weight, element), lanes)
    return [f.multiply_add(value, factor, total) for total, value in pairs]


def _weight(f: Function, tap: Value) -> Value:
    """Load the weight of a tap (`TAP`)."""
    return f.load(DOUBLE, f.at(tap, 1, DOUBLE))


def _pool(
    f: Function, a: Arguments, line: Line, src: Value, dst: Value, column: Value, columns: Value,
    lanes: int,
) -> None:  # fmt: skip
    """Combine the line's neighbours; results are `factor` positions apart."""
    element, kind = line.computed, vector(line.computed, lanes)
    neutral = _neutral(f, line.reduce, kind)
    scale = f.at(a["scale"], column, element)

    def combine(spans: list[Span]) -> None:
        with f.loop(0, a["kernel"], a["dilation"], [neutral] * len(spans)) as loop:
            totals = []
            for span, total in zip(spans, loop.carried, strict=True):
                at = f.at(src, span.start * line.factor + loop.index, element)
                vectors = [f.load(kind, f.at(at, i * lanes, element)) for i in range(line.factor)]
                value = vectors[0] if line.factor == 1 else every(f, vectors, 0, lanes)
                totals.append(_combined(f, line.reduce, total, value))
            loop.next(totals)
        for span, result in zip(spans, loop.results, strict=True):
            if line.reduce == "sum":
                result = result * span.read(scale, element, element)
            span.write(result, dst, line.stored)

    Spans(f, columns, lanes, 2).each_block(combine)


def _window(
    f: Function, a: Arguments, line: Line, src: Value, dst: Value, column: Value, columns: Value,
    lanes: int,
) -> None:  # fmt: skip
    """Combine all positions of the line: first its vectors, then their lanes."""
    element, kind = line.computed, vector(line.computed, lanes)
    neutral = _neutral(f, line.reduce, kind)

    combined = partial(_combined, f, line.reduce)
    f.store(neutral, f.at(src, a["kernel"], element))  # pad the last vector
    with f.loop(0, a["kernel"], lanes, [neutral]) as loop:
        loop.next([combined(loop.carried[0], f.load(kind, f.at(src, loop.index, element)))])
    total = across(f, loop.results[0], combined)
    if line.reduce == "sum":
        total = total * f.broadcast(f.load(element, f.at(a["scale"], column, element)), lanes)
    # There is one column. With a constant mask, LLVM would store too many bfloat16.
    f.store_lanes(converted(f, total, line.stored), dst, f.lanes_below(columns, lanes))


def _upsample(
    f: Function, a: Arguments, line: Line, src: Value, dst: Value, column: Value, columns: Value,
    lanes: int,
) -> None:  # fmt: skip
    """Write `factor` results for each position in the line, interleaved."""
    del column
    element, kind, factor = line.computed, vector(line.computed, lanes), line.factor

    def write(start: Value, rest: Value | None) -> None:
        lines = _phases(f, a, line, f.at(src, start, element), kind)
        for i, values in enumerate(interleaved(f, [[one] for one in lines], lanes)):
            address = f.at(dst, start * factor + i * lanes, line.stored)
            left = None if rest is None else columns - start * factor - i * lanes
            f.store_some(converted(f, values, line.stored), address, left)

    in_vectors(f, columns // factor, lanes, write)


def _phases(f: Function, a: Arguments, line: Line, at: Value, kind: str) -> list[Value]:
    """Return each phase's results for a vector of positions in the line."""
    factor = line.factor
    if line.last == "nearest":
        return [f.load(kind, at)] * factor
    if line.last == "shuffle":
        return [f.load(kind, at + a["segment"] * i) for i in range(factor)]
    # The line begins one position before the first position of the input.
    three = [f.load(kind, f.at(at, i, line.computed)) for i in range(3)]
    results = []
    for phase in range(factor):
        position = (phase + 0.5) / factor - 0.5
        left = 0 if position < 0 else 1
        share = position + 1 - left
        results.append(f.multiply_add(three[left], f.constant(kind, 1 - share),
                                      three[left + 1] * share))  # fmt: skip
    return results


_LAST: dict[str, Callable[..., None]] = {
    "pool": _pool, "window": _window,
    **dict.fromkeys(("nearest", "linear", "shuffle"), _upsample),
}  # fmt: skip


@compiled("points", kept=16)
def points_code(module: Module, reduce: str, stored: str, computed: str, cpu: Cpu) -> None:
    """Emit the job `points(args, mine, part, image)` for channels last."""
    lanes = cpu.lanes(BYTES[computed])
    element = stored if reduce == "pick" else computed
    with module.function("points", JOB) as f:
        a = LAYOUT.reader(f)
        part, image = Record(f, f["inner"], PART), Record(f, f["outer"], IMAGE)
        x, y = a["x"] + image["src"], a["y"] + image["dst"]
        blocks = Spans(f, a["channels"], lanes, 4)
        neutral = _neutral(f, reduce, vector(element, lanes), a["fill"])
        with (
            f.loop(part["row"], part["row"] + part["rows"]) as loop,
            f.loop(part["column"], part["column"] + part["columns"]) as position,
        ):
            row = Record.of(f, a["rows"], loop.index, ROW)
            line = Record.of(f, a["line_rows"], position.index, ROW)
            outer = a["taps"] + row["tap"] * TAP.itemsize
            inner = a["line_taps"] + line["tap"] * TAP.itemsize
            counts = row["taps"], line["taps"]
            dst = y + (row["to"] + line["to"])

            def combine(spans: list[Span]) -> None:
                with f.loop(0, counts[0], 1, [neutral] * len(spans)) as first:
                    tap = outer + first.index * TAP.itemsize
                    src, share = x + f.word(tap), _weight(f, tap)
                    # Two levels of sums: rounding errors grow only with the length of each level.
                    start = [neutral] * len(spans) if reduce == "sum" else first.carried
                    with f.loop(0, counts[1], 1, start) as second:
                        tap = inner + second.index * TAP.itemsize
                        here = src + f.word(tap)
                        values = [span.read(here, stored, element) for span in spans]
                        second.next(_reduced(f, reduce, values, second.carried, tap, share))
                    both = zip(first.carried, second.results, strict=True)
                    sums = reduce == "sum"
                    first.next([a + b for a, b in both] if sums else second.results)
                for span, result in zip(spans, first.results, strict=True):
                    span.write(result, dst, stored)

            blocks.each_block(combine)
