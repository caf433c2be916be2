"""A correlation's weight as Winograd's algorithm reads it: transformed, in the order of use.

    pack(args)   run by every thread: takes jobs, each some reduced channels of a chunk of results.
                 A job transposes their taps into T[channel][tap][made channel], which fits in
                 caches. Then it multiplies the taps by G and writes contiguous runs of rows.

Sums are computed in float64, then rounded once.
"""

from __future__ import annotations

from math import ceil, gcd, prod

import numpy as np

from .... import memory
from ...addresses import address_of
from ...base import Array
from ...copies import contiguous
from ...nonfinite import NonFinite
from ...workspace import Workspace
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module
from ..kernel_arguments import ArgumentLayout, Arguments, Blocks, jobs
from ..packing import Numbers, aligned, goes_past, threads_for
from ..packing_code import report_nonfinite, watched
from ..rows import converted, gather_code
from ..transpose import transpose_code
from ..values import DOUBLE, I64, LINE, PTR, STORED, Operand, Value, nbytes_of, split, vector
from .schedule import Form
from .transforms import Transform
from .window import Window

_ARGUMENTS = ArgumentLayout(
    "dst* src* buffer* runs* terms* factors* numbers* move* part jobs batches batch chunks channels"
    " made reduced chunk phases count row unit group src_group src_reduced src_made taps lines line"
    " element stored",  # bytes of a number in T and in the weight
    counters="next next_thread bad",
)
_RUN = 6  # operand phase, bytes in dst and in T, length, first term and end of the terms
_TOGETHER = 4  # channels that share the factors of a sum
_TAPS_BYTES = 64 << 10  # size of T, if it has several channels


class Weights:
    """The order of a transformed weight: [group][unit][point][panel][piece][reduction][panel's
    columns], where reduction is [chunk][operand phase][reduced channel in the chunk]."""

    def __init__(self, form: Form) -> None:
        item, element = form.item, form.weight.element
        stored = form.weight.dtype.itemsize
        self._dtype = np.dtype(np.float64 if item == 8 else np.float32)
        self.nbytes = form.weight.groups * form.units * form.unit_bytes
        by_group, by_reduced, by_made, *_ = (n * stored for n in form.weight.strides)
        taps, line = _Taps(form), form.padded * item
        runs, terms, factors = _runs(form, [step * line for step in taps.steps])
        step = gcd(2 * form.lanes, *(int(n) // item for n in runs[:, 2:4].ravel()))
        cpu = form.cpu
        past = goes_past(self.nbytes, cpu)
        self._code = packing_code(element, step, taps.squares, past, cpu)
        move = transpose_code if taps.squares else gather_code
        self._move = move(STORED[form.weight.dtype], element, cpu)
        self._tables = {"runs": runs, "terms": terms, "factors": factors, "numbers": taps.numbers}
        self.resident_bytes = sum(table.nbytes for table in self._tables.values())
        # Channels that are packed together, so that their taps stay in the cache.
        divisors = (n for n in range(form.chunk, 0, -1) if form.chunk % n == 0)
        batch = next(n for n in divisors if n == 1 or n * taps.lines * line <= _TAPS_BYTES)
        batches = ceil(form.reduced / batch)
        self._part = (batch * taps.lines * line + 8191) // 64 * 64
        self._blocks = Blocks(_ARGUMENTS.block(
            **{name: table.ctypes.data for name, table in self._tables.items()},
            move=self._move.address, part=self._part,
            jobs=form.weight.groups * form.chunks * batches,
            batches=batches, batch=batch, chunks=form.chunks, count=len(runs),
            channels=form.channels, made=form.made, reduced=form.reduced, chunk=form.chunk,
            phases=form.reduction // form.reduced, row=form.piece_bytes // form.reduction,
            unit=form.unit_bytes, group=form.units * form.unit_bytes, src_group=by_group,
            src_reduced=by_reduced, src_made=by_made, element=item, stored=stored, taps=taps.count,
            lines=taps.lines, line=line,
        ))  # fmt: skip

    def pack(self, weight: Array, threads: int) -> Array:
        """Return the transformed weight; raise `NonFinite` if it is not finite."""
        memory.require(self.nbytes + threads * self._part, "the transformed weight")
        weight = contiguous(weight)
        packed = aligned(self.nbytes // self._dtype.itemsize, self._dtype)
        threads = threads_for(packed, threads)
        with Workspace(threads * self._part) as buffer:
            values = {"dst": address_of(packed), "src": address_of(weight), "buffer": buffer}
            if self._blocks.run(self._code.address, threads, "bad", **values):
                raise NonFinite
        return packed


class _Taps:
    """The order of taps in T: each channel has `count` taps, with `steps` along the axes. The next
    channel begins after `lines` taps.

    Adjacent taps are transposed in `squares`; others are gathered by their `numbers`.
    """

    def __init__(self, form: Form) -> None:
        _, by_reduced, by_made, *by_tap = form.weight.strides
        # The part of the kernel that windows use along each axis.
        kernel = [
            1 + max((index for *_, index in window.taps), default=0) for window in form.windows
        ]
        self.steps, self.numbers = by_tap, np.zeros(1, np.int64)
        self.count = 1 + sum((n - 1) * step for n, step in zip(kernel, by_tap, strict=True))
        self.lines, adjacent = self.count, self.count <= by_reduced or form.reduced == 1
        self.squares = adjacent and self.count <= by_made and by_tap[-1] == 1
        if not self.squares:
            self.lines = self.count = prod(kernel)
            self.steps = [prod(kernel[i + 1 :]) for i in range(len(kernel))]
            starts = np.array(by_tap) @ np.indices(kernel).reshape(len(kernel), -1)
            self.numbers = (starts[:, None] + np.arange(form.channels) * by_made).ravel()
        elif self.count <= by_reduced <= 2 * self.count:
            self.lines = by_reduced  # channels are close, and are transposed together


def _runs(form: Form, steps: list[int]) -> tuple[Numbers, Numbers, Array]:
    """Return each channel's runs that `pack` writes (`_RUN`), and the terms of their sums: bytes
    from a channel's first tap, and factors.

    Each phase, point, piece, and part of a unit's columns within a panel has a run. `steps` are the
    bytes from one tap to the next along each axis.
    """
    taps: Array = np.zeros((1,) * 5, np.int64)
    factors: Array = np.ones((1,) * 5)
    for window, transform, step in zip(form.windows, form.transforms, steps, strict=True):
        indices, numbers = _terms(window, transform)
        taps, factors = _outer(np.add, taps, indices * step), _outer(np.multiply, factors, numbers)
    # The result phases along the last axis are adjacent, in a unit's columns.
    stride = form.windows[-1].stride
    parts = _parts(stride, form.padded, form.vectors * form.lanes)
    shape = (-1, stride, *taps.shape[1:])
    taps, factors = (
        np.moveaxis(n.reshape(shape), 1, 4)[..., parts[:, 0], :] for n in (taps, factors)
    )
    nonzero = factors != 0
    counts = nonzero.sum(-1)
    stops = counts.cumsum().reshape(counts.shape)
    g, h, point, piece, part = np.indices(counts.shape)
    dst = g * (form.chunks * form.unit_bytes) + point * form.point_bytes + piece * form.piece_bytes
    dst += parts[part, 2] * form.panel_bytes + parts[part, 3] * form.item
    sides = parts[part, 1] * form.item, parts[part, 4] * form.item
    runs = np.stack((h, dst, *sides, stops - counts, stops), -1)
    return runs.reshape(-1, _RUN), taps[nonzero], factors[nonzero]


def _parts(phases: int, padded: int, panel: int) -> Numbers:
    """Return a unit's columns, cut at the ends of phases and panels: each part's phase, first
    channel, panel, column in the panel, and number of columns."""
    end = phases * padded
    cuts = np.union1d(np.arange(0, end, padded), np.arange(0, end, panel))
    sides = *divmod(cuts, padded), *divmod(cuts, panel)
    return np.stack([*sides, np.diff(cuts, append=end)], 1)


def _terms(window: Window, transform: Transform) -> tuple[Numbers, Array]:
    """Return an axis's taps by result phase, operand phase, point and piece, and their factors,
    which may be zero."""
    count = transform.r // transform.pieces
    shape = window.stride, window.step, transform.points, transform.pieces, count
    taps, factors = np.zeros(shape, np.int64), np.zeros(shape)
    numbers = np.array(transform.g, np.float64)
    for g, h, position, index in window.taps:
        piece, tap = divmod(position, count)
        taps[g, h, :, piece, tap] = index
        factors[g, h, :, piece, tap] = numbers[:, tap]
    return taps, factors


def _outer(operation: np.ufunc, one: Array, other: Array) -> Array:
    """Apply an operation to all pairs of numbers along each axis."""
    shape = [n * m for n, m in zip(one.shape, other.shape, strict=True)]
    for axis in range(one.ndim):
        one, other = np.expand_dims(one, 2 * axis + 1), np.expand_dims(other, 2 * axis)
    pairs: Array = operation(one, other)
    return pairs.reshape(shape)


@compiled("pack", kept=16, opt=1)
def packing_code(
    module: Module, element: str, step: int, squares: bool, past: bool, cpu: Cpu
) -> None:
    """Emit `pack(args)`, for `step` numbers at a time. `squares` says that taps are adjacent, and
    `past` that the packed weight bypasses the caches."""
    kind = vector(element, step)
    past = past and nbytes_of(kind) % LINE == 0  # never parts of a line
    with module.function("pack", {"args": PTR}) as f:
        a = _ARGUMENTS.reader(f)
        taps = a["buffer"] + f.take(a.address("next_thread")) * a["part"]
        with jobs(f, a.address("next"), a["jobs"]) as job:
            number, rest = job % a["batches"], job // a["batches"]
            chunk, group = rest % a["chunks"], rest // a["chunks"]
            first, start = number * a["batch"], chunk * a["channels"]
            count = f.min(a["batch"], a["reduced"] - first)
            active = f.min(a["channels"], a["made"] - start)
            src = a["src"] + group * a["src_group"]
            src = src + first * a["src_reduced"] + start * a["src_made"]
            _emit_taps(f, a, (taps, src), (count, active), kind, squares)
            before = first // a["chunk"] * a["chunk"]
            in_chunk = f.min(a["chunk"], a["reduced"] - before)
            reduction = before * (a["phases"] - 1) + first
            dst = a["dst"] + group * a["group"] + chunk * a["unit"] + reduction * a["row"]
            with f.loop(0, a["count"]) as run:
                entry = f.at(a["runs"], run.index * _RUN, I64)
                phase, to, lane, *bounds = (f.word(entry, i) for i in range(_RUN))
                ends = dst + (to + phase * in_chunk * a["row"]), taps + lane
                _emit_sums(f, a, ends, count, bounds, kind, past)
        f.drain()


Pair = tuple[Value, Value]


def _emit_taps(
    f: Function, a: Arguments, ends: Pair, counts: Pair, kind: str, squares: bool
) -> None:
    """Emit the copy of taps to T, for `count` channels by the result channels, of which `active`
    exist; the others are zero."""
    (dst, src), (count, active), channel = ends, counts, a["lines"] * a["line"]
    zero, size = f.constant(kind, 0.0), nbytes_of(kind)
    missing = active * a["element"] < a["line"]
    with f.loop(0, f.select(missing, count * channel, 0), size) as loop:
        f.store(zero, dst + loop.index)
    if squares:
        together = f.compare("ne", a["lines"], a["taps"])
        together = together | f.compare("eq", a["src_reduced"], a["taps"] * a["stored"])
        columns = a["taps"] + f.select(together, (count - 1) * a["lines"], 0)
        with f.loop(0, f.select(together, 1, count)) as channel_loop:
            pair = dst + channel_loop.index * channel, src + channel_loop.index * a["src_reduced"]
            f.call(a["move"], *pair, active, columns, a["src_made"], a["line"])
    else:
        with f.loop(0, a["taps"]) as tap:
            numbers = f.at(a["numbers"], tap.index * a["channels"], I64)
            to = dst + tap.index * a["line"]
            f.call(a["move"], to, src, numbers, active, count, channel, a["src_reduced"])
    last = (count - 1) * channel
    with f.loop(0, last + a["taps"] * a["line"], size, [zero]) as loop:
        loop.next([watched(f, f.load(kind, dst + loop.index), loop.carried[0])])
    report_nonfinite(f, loop.results[0], a.address("bad"))


def _emit_sums(
    f: Function, a: Arguments, ends: Pair, count: Value, run: list[Value], kind: str, past: bool
) -> None:
    """Emit one run per channel: sums of taps times factors. Several channels share the factors."""
    (dst, src), (length, first, stop), channel = ends, run, a["lines"] * a["line"]
    element, step = split(kind)
    zero = f.constant(vector(DOUBLE, step), 0.0)

    def emit(start: Operand, end: Operand, together: int) -> None:
        with (
            f.loop(start, end, together) as channel_loop,
            f.loop(0, length, nbytes_of(kind)) as column,
        ):
            number = channel_loop.index
            first_tap = src + number * channel + column.index
            with f.loop(first, stop, carried=[zero] * together) as term:
                tap = first_tap + f.word(a["terms"], term.index)
                factor = f.broadcast(f.load(DOUBLE, f.at(a["factors"], term.index, DOUBLE)), step)
                sums = []
                for total in term.carried:
                    value = converted(f, f.load(kind, tap), DOUBLE)
                    sums.append(f.multiply_add(value, factor, total))
                    tap = tap + channel
                term.next(sums)
            to = dst + number * a["row"] + column.index
            for total in term.results:
                f.store(converted(f, total, element), to, past=past)
                to = to + a["row"]

    many = count // _TOGETHER * _TOGETHER
    emit(0, many, _TOGETHER)
    emit(many, count, 1)
