"""Functions that move rows: into the packed input, out of the stage, and into packed weights.

A *row* is a run of elements in memory. Each function is compiled once per element type (and, for
`finish`, per epilogue) when it is first needed. The kernels' drivers call it by its address.

    fill    dst[0:count] = src[0:count], dst[count:count+zeros] = 0, in the computed type, for
            each of some rows
    finish  dst = activation(src + residual + dst), from the computed type; and dst again,
            through another activation, as a second result
    gather  dst[e] = src[table[e]], or 0 if table[e] < 0, for every input channel or pair of them
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from ...activations import Activation, apply
from ...problem import DataLayout, Problem
from ..addresses import address_of
from ..base import Array
from .activation import NO_ACTIVATION, ActivationEpilogue, activated, second_of
from .compile import compiled
from .correlation import Correlation
from .cpu import Cpu, host
from .emit import Function, Module, signature
from .sum_type import computed
from .values import (
    BFLOAT,
    BYTES,
    DOUBLE,
    FLOAT,
    I1,
    I16,
    I32,
    STORED,
    Operand,
    Value,
    split,
    vector,
)

FILL = signature(
    "dst* src* count zeros rows dst_row src_row"  # and bytes from one row to the next
)
FINISH = signature(
    "src* dst*"
    " residual*"  # with dst's strides; unused if the epilogue has none
    " channels src_channel dst_channel"  # and bytes from one channel to the next
    " runs length"  # runs of `length` elements each
    " src_run dst_run"  # bytes from one run to the next
    " slopes*"  # of the first channel, or of each element of a run; unused without slopes
    " second"  # bytes from dst to the second result
)
GATHER = signature(
    "dst* src*"
    " table* entries"  # element numbers, 64 bits each
    " channels dst_channel src_channel"  # and bytes from one input channel to the next
)
_FINISH = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 9)


class Finish(NamedTuple):
    """The class of `finish`: the steps that it applies to a row, and the types.

    The layout says whether a row belongs to one channel, or has one element per channel. That
    determines which PReLU slopes a row reads, if `epilogue` has them.
    """

    computed: str
    stored: str
    epilogue: ActivationEpilogue = NO_ACTIVATION
    residual: bool = False
    accumulate: bool = False
    layout: DataLayout = DataLayout.NCX

    @classmethod
    def of(cls, problem: Problem | Correlation, layout: DataLayout) -> Finish:
        """Return the class for a problem's results; without slopes all layouts share one."""
        types, epilogue = (computed(problem.dtype), STORED[problem.dtype]), problem.epilogue
        layout = layout if epilogue.slopes else DataLayout.NCX
        activations = ActivationEpilogue.of(epilogue)
        return cls(*types, activations, epilogue.residual, problem.accumulate, layout)

    @property
    def is_cast(self) -> bool:
        """Whether results are stored unchanged, except perhaps for their type."""
        return self == Finish(self.computed, self.stored)

    @property
    def is_plain(self) -> bool:
        """Whether results are stored unchanged."""
        return self == plain(self.stored)


def plain(element: str) -> Finish:
    """Return the class that stores results unchanged."""
    return Finish(element, element)


@compiled("fill", kept=16)
def fill_code(module: Module, stored: str, computed: str, cpu: Cpu) -> None:
    """Emit `fill` from elements of type `stored` to elements of type `computed`.

    The last vector of numbers or zeros overlaps what is before it, because stores under a mask are
    slow without AVX-512. So zeros are written first.
    """
    lanes = cpu.lanes(BYTES[computed])
    with module.function("fill", FILL) as f:
        zero, count = f.constant(vector(computed, lanes), 0.0), f["count"]
        numbers, zeros = Overlapping(f, 0, count, lanes), Overlapping(f, count, f["zeros"], lanes)
        with f.loop(0, f["rows"]) as row:
            src = f["src"] + row.index * f["src_row"]
            dst = f["dst"] + row.index * f["dst_row"]
            zeros.each(lambda span: span.write(zero, dst, computed))
            numbers.each(lambda span: span.write(span.read(src, stored, computed), dst, computed))


@compiled("finish", kept=64)
def finish_code(module: Module, kind: Finish, cpu: Cpu) -> None:
    """Emit `finish` for a class."""
    lanes = cpu.lanes(BYTES[kind.computed])
    with module.function("finish", FINISH) as f:
        spans, has_slopes = Spans(f, f["length"], lanes), kind.epilogue.slopes
        with f.loop(0, f["channels"]) as channel, f.loop(0, f["runs"]) as run:
            offset = channel.index * f["dst_channel"] + run.index * f["dst_run"]
            src = f["src"] + (channel.index * f["src_channel"] + run.index * f["src_run"])
            slopes = f.at(f["slopes"], channel.index, kind.computed) if has_slopes else src
            places = {name: f[name] for name in ("dst", "residual", "second")}
            spans.each(partial(finish_span, f, kind, places, src, offset, slopes))


def activate(activation: Activation, slope: float | Array, values: Array) -> None:
    """Do as `activations.apply`, but with the kernels' bits; `values` are contiguous."""
    if activation is Activation.NONE or not values.size:
        return
    if not isinstance(slope, float):  # one product per value: NumPy's result has the same bits
        apply(activation, slope, values)
        return
    element = DOUBLE if values.itemsize == 8 else FLOAT
    code = finish_code(Finish(element, element, ActivationEpilogue(activation, slope)), host())
    address = address_of(values)
    _FINISH(code.addresses["finish"])(address, address, 0, 1, 0, 0, 1, values.size, 0, 0, 0, 0)


def finish_span(
    f: Function, kind: Finish, places: Mapping[str, Value], src: Value, offset: Value,
    slopes: Value, span: Span, *, flushes: bool = False,
) -> None:  # fmt: skip
    """Finish one vector of sums at `src`, as `finish_values` does."""
    values = span.read(src, kind.computed, kind.computed)
    finish_values(f, kind, places, values, offset, slopes, span, flushes=flushes)


def finish_values(
    f: Function, kind: Finish, places: Mapping[str, Value], values: Value, offset: Value,
    slopes: Value, span: Span, *, flushes: bool = False,
) -> None:  # fmt: skip
    """Finish one vector of sums: + residual, + the old result, activation, in the computed type.

    `places` are `dst`, `residual` and `second` as in `FINISH`; `flushes` as in `converted`."""
    types, dst = (kind.stored, kind.computed), places["dst"] + offset
    if kind.residual:
        values = values + span.read(places["residual"] + offset, *types)
    if kind.accumulate:
        values = span.read(dst, *types) + values
    slope: float | Value = kind.epilogue.slope
    if kind.epilogue.slopes and kind.layout is DataLayout.NXC:
        slope = span.read(slopes, kind.computed, kind.computed)
    elif kind.epilogue.slopes:
        slope = f.broadcast(f.load(kind.computed, slopes), split(values.type)[1])
    values = activated(f, kind.epilogue.activation, slope, values)
    span.write(values, dst, kind.stored, flushes=flushes)
    if kind.epilogue.has_second:
        second = second_of(f, kind.epilogue, values)
        span.write(second, dst + places["second"], kind.stored, flushes=flushes)


@compiled("gather", kept=16)
def gather_code(module: Module, stored: str, computed: str, cpu: Cpu) -> None:
    """Emit `gather` from elements of type `stored` to elements of type `computed`. If the latter
    has 16 bits, it gathers pairs of input channels."""
    together = 2 if computed == I16 else 1
    with module.function("gather", GATHER) as f, f.loop(0, f["channels"], together) as channel:
        src = f["src"] + channel.index * f["src_channel"]
        dst = f["dst"] + channel.index * f["dst_channel"]
        has_second = channel.index + 1 < f["channels"]
        beside = f.select(has_second, f["src_channel"], 0)
        with f.loop(0, f["entries"]) as entry:
            index = f.word(f["table"], entry.index)
            there, first = index >= 0, f.at(src, f.max(index, 0), stored)
            if computed == I16:
                to, pair = f.at(dst, entry.index * 2, I16), (first, first + beside)
                _gather_pair(f, stored, pair, to, there, has_second)
            else:
                number = converted(f, f.load(stored, first), computed)
                f.store(f.select(there, number, 0), f.at(dst, entry.index, computed))


def _gather_pair(
    f: Function, stored: str, pair: tuple[Value, Value], dst: Value, there: Value, has_second: Value
) -> None:
    """Gather an element, or 0, of two input channels as bfloat16, the first channel's first.
    `dst_channel` is half the bytes of a row of pairs."""

    loads = (converted(f, f.load(stored, address), BFLOAT) for address in pair)
    first, second = (f.convert("bitcast", number, I16) for number in loads)
    f.store(f.select(there, first, 0), dst)
    there = f.select(there, has_second, Value(I1, "false"))
    f.store(f.select(there, second, 0), f.at(dst, 1, I16))


def converted(f: Function, value: Value, element: str, *, flushes: bool = False) -> Value:
    """Convert a number or vector to another element type, rounded to nearest even. `flushes` uses
    an AVX512-BF16 instruction for 16 or 32 numbers, which turns subnormal numbers into zero."""
    source, lanes = split(value.type)
    if source == element:
        return value
    kind = vector(element, lanes) if lanes else element
    if source == BFLOAT:
        return _widened(f, value, kind)
    if element == BFLOAT and flushes:
        parts = [f.shuffle(value, None, range(i, i + 16)) for i in range(0, lanes, 16)]
        both = f.convert("bitcast", f.narrow(parts[0], parts[-1]), vector(I16, 32))
        return f.convert("bitcast", f.shuffle(both, None, range(lanes)), kind)
    if element == BFLOAT:
        return _narrowed(f, value, kind)
    return f.convert("fpext" if BYTES[source] < BYTES[element] else "fptrunc", value, kind)


def _widened(f: Function, value: Value, kind: str) -> Value:
    """Convert bfloat16, which is the upper half of a float32, to float32."""
    short, wide = _bits(value.type, I16), _bits(value.type, I32)
    bits = f.convert("zext", f.convert("bitcast", value, short), wide)
    return f.convert("bitcast", bits << 16, kind)


def _narrowed(f: Function, value: Value, kind: str) -> Value:
    """Round float32 to bfloat16 in integers: without the instruction, LLVM would call a library.
    This adds half a unit in the last place, less one if the upper half is even. NaN is made quiet
    instead, because the addition could turn it into infinity."""
    short, wide = _bits(value.type, I16), _bits(value.type, I32)
    bits = f.convert("bitcast", value, wide)
    upper = bits >> 16
    rounded = bits + ((upper & 1) + 0x7FFF)
    result = f.select(f.compare("uno", value, value), upper | 0x40, rounded >> 16)
    return f.convert("bitcast", f.convert("trunc", result, short), kind)


def _bits(kind: str, element: str) -> str:
    """Return the integer type with as many lanes as `kind`."""
    lanes = split(kind)[1]
    return vector(element, lanes) if lanes else element


def across(f: Function, value: Value, combine: Callable[[Value, Value], Value]) -> Value:
    """Combine all lanes; the result is in every lane."""
    lanes = split(value.type)[1]
    half = lanes // 2
    while half:
        value = combine(value, f.shuffle(value, None, [i ^ half for i in range(lanes)]))
        half //= 2
    return value


class Span:
    """A full vector in a row, or the row's remainder under a mask."""

    def __init__(self, f: Function, start: Value, lanes: int, mask: Value | None) -> None:
        self._f, self.start, self._lanes, self._mask = f, start, lanes, mask

    def load(self, address: Value, element: str) -> Value:
        """Load this span's elements at an address."""
        kind = vector(element, self._lanes)
        if self._mask is None:
            return self._f.load(kind, address)
        return self._f.load_lanes(kind, address, self._mask)

    def store(self, value: Value, address: Value) -> None:
        """Write this span's elements."""
        if self._mask is None:
            self._f.store(value, address)
        else:
            self._f.store_lanes(value, address, self._mask)

    def read(self, row: Value, stored: str, computed: str) -> Value:
        """Load this span's elements in a row, converted to another type."""
        return converted(self._f, self.load(self._f.at(row, self.start, stored), stored), computed)

    def write(self, value: Value, row: Value, stored: str, *, flushes: bool = False) -> None:
        """Write this span's elements in a row, in the row's type; `flushes` as in `converted`."""
        value = converted(self._f, value, stored, flushes=flushes)
        self.store(value, self._f.at(row, self.start, stored))


class Spans:
    """The spans of rows with `count` elements: blocks of vectors, single vectors, a remainder."""

    def __init__(self, f: Function, count: Value, lanes: int, vectors: int = 1) -> None:
        self._f, self._lanes, self._block = f, lanes, vectors * lanes
        self._blocks = count // self._block * self._block if vectors > 1 else 0
        self._whole = count // lanes * lanes
        self._ragged = self._whole < count
        # Emitted outside the loop over rows, because no compiler pass would hoist it.
        self._mask = f.lanes_below(count - self._whole, lanes)

    def each(self, body: Callable[[Span], None]) -> None:
        """Emit `body` for every vector of a row, and for its remainder."""

        def block(spans: list[Span]) -> None:
            for span in spans:
                body(span)

        self.each_block(block)

    def each_block(self, body: Callable[[list[Span]], None]) -> None:
        """Emit `body` for every block in a row; blocks at the end have one vector."""
        f, lanes = self._f, self._lanes
        if self._block > lanes:
            with f.loop(0, self._blocks, self._block) as loop:
                starts = range(0, self._block, lanes)
                body([Span(f, loop.index + start, lanes, None) for start in starts])
        with f.loop(self._blocks, self._whole, lanes) as loop:
            body([Span(f, loop.index, lanes, None)])
        with f.when(self._ragged):
            body([Span(f, self._whole, lanes, self._mask)])


class Overlapping:
    """The spans of elements [first, first + count) in rows. The last one is a full vector that
    overlaps earlier elements of the row, or a remainder if the row is shorter than a vector."""

    def __init__(self, f: Function, first: Operand, count: Value, lanes: int) -> None:
        self._f, self._lanes, self._first, self._stop = f, lanes, first, count + first
        self._whole = count // lanes * lanes + first
        # Emitted outside the loop over rows, because no compiler pass would hoist it.
        self._ragged, self._is_short = self._whole < self._stop, self._stop < lanes
        self._mask = f.lanes_below(self._stop - self._whole, lanes)

    def each(self, body: Callable[[Span], None]) -> None:
        """Emit `body` for every span."""
        f, lanes = self._f, self._lanes
        with f.loop(self._first, self._whole, lanes) as loop:
            body(Span(f, loop.index, lanes, None))
        with f.when(self._ragged):
            with f.when(self._is_short):
                body(Span(f, self._whole, lanes, self._mask))
            with f.unless(self._is_short):
                body(Span(f, self._stop - lanes, lanes, None))
