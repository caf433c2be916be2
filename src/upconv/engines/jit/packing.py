"""Packing weights into a kernel's order of use: every weight once per use.

A packed weight is cut into *pieces* of [input channel][entries]. A table says which elements each
piece gathers. In input gradients of weights in the order IOX, entries lie far apart, while all taps
of all reduced channels are adjacent. Gathering would then read a cache line for each number, so
squares are transposed in registers (`transposed_packing_code`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from ... import memory
from ..addresses import address_of
from ..base import Array
from ..copies import contiguous
from ..nonfinite import NonFinite
from ..workspace import KEPT_BYTES, warm
from . import pool
from .compile import compiled
from .correlation import WeightForm
from .cpu import Cpu
from .emit import Function, Module
from .kernel_arguments import ArgumentLayout, Block, Blocks, jobs
from .rows import gather_code
from .transpose import transpose_code
from .values import (
    BFLOAT,
    BYTES,
    DOUBLE,
    FLOAT,
    I16,
    I32,
    I64,
    LINE,
    PTR,
    STORED,
    Value,
    split,
    vector,
)

_ARGUMENTS = ArgumentLayout(
    "dst* src* pieces* tables* gather* count channels part parts jobs element"
    " dst_group src_group src_channel src_lane stored columns taps at_once row_channels",
    counters="next bad",
)
_PIECE = 4  # numbers per piece: byte offsets in dst and src, first number in tables, entries
_PART = 8  # input channels that are packed together: their source stays in the cache
_COLUMNS = 128  # taps and input channels that are transposed at once, in scratch of at most 64 KiB
_TRANSPOSED_PART = 8  # blocks of `_COLUMNS` in a job
PAIRED_TAPS = _COLUMNS // 2
"""The largest number of taps for which pairs of input channels are transposed."""
_FEW, _WARM = 1 << 16, 1 << 20  # numbers; bytes
_SHARE = 8  # a larger weight than 1 / _SHARE of the third-level cache is written past it

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Shared = TypeVar("Shared")


_shared: WeakValueDictionary[Any, Any] = WeakValueDictionary()


def shared(make: Callable[..., Shared], *key: Hashable) -> Shared:
    """Return `make(*key)`, one object for equal keys as long as it is referenced.

    So primitives that read a weight in one order share one packer, whatever their sizes are.
    """
    value: Shared | None = _shared.get((make, key))
    if value is None:
        value = _shared.setdefault((make, key), make(*key))
    return value


class Packer:
    """Packs a weight of `groups` groups of `channels` input channels into numbers of type
    `compute`; a pair of 16-bit numbers counts as one. With `transposed_taps`, the taps of a result,
    pieces are blocks of lanes, and their third number is the count of active lanes. Pairs are
    transposed up to `PAIRED_TAPS`. A packed tap has `row_channels` input channels, the last padded.
    """

    def __init__(
        self,
        weight: WeightForm,
        compute: np.dtype[Any],
        groups: int,
        channels: int,
        group_bytes: int,
        pieces: Numbers,
        tables: Numbers,
        cpu: Cpu,
        transposed_taps: int | None = None,
        row_channels: int = 0,
    ) -> None:
        self.group_bytes, self.nbytes = group_bytes, groups * group_bytes
        self._padded = row_channels > channels + channels % 2
        self.resident_bytes = int(pieces.nbytes + tables.nbytes)
        self._compute, self._read = compute, (pieces, tables)
        stored = STORED[weight.dtype]
        kept, at_once = {2: I16, 4: FLOAT, 8: DOUBLE}[compute.itemsize], _COLUMNS
        if transposed_taps is not None:  # it may be 0, if crops leave a result no tap
            moved = BFLOAT if kept == I16 else kept
            self._move, name = transpose_code(stored, moved, cpu), "transpose"
            self._code = transposed_packing_code(kept, goes_past(self.nbytes, cpu), cpu)
            if kept == I16:
                pair = max(1, 2 * transposed_taps)
                at_once = _COLUMNS // pair * pair
            columns, part = channels * transposed_taps, _TRANSPOSED_PART * at_once
            count = len(pieces)
        else:
            self._move, name = gather_code(stored, kept, cpu), "gather"
            self._code = packing_code(kept, cpu)
            columns, part, count = channels, _PART, 1
        self.work: int = self._code.addresses["pack"]  # the code that packs
        parts, itemsize = -(-columns // part), weight.dtype.itemsize
        by_group, by_reduced, by_made = (s * itemsize for s in weight.strides[:3])
        self._blocks = Blocks(_ARGUMENTS.block(
            gather=self._move.addresses[name],
            pieces=pieces.ctypes.data, tables=tables.ctypes.data, count=len(pieces),
            channels=channels, row_channels=row_channels or channels, part=part, parts=parts,
            jobs=parts * groups * count,
            element=compute.itemsize, columns=columns, taps=transposed_taps or 0, at_once=at_once,
            dst_group=group_bytes, src_group=by_group, src_channel=by_reduced,
            src_lane=by_made, stored=itemsize,
        ))  # fmt: skip

    def pack(self, weight: Array, threads: int) -> Array:
        """Return a weight of the correlation's shape in the order of use.

        Raises `NonFinite` if it is not finite."""
        packed, block, _read = self.begin(weight)
        pool.run(self.work, block.address, threads_for(packed, threads))
        self.end(block)
        return packed

    def begin(self, weight: Array) -> tuple[Array, Block, Array]:
        """Return memory for a packed weight, the arguments of `work`, and the array it reads."""
        memory.require(self.nbytes, "the packed weight")
        if not weight.flags.c_contiguous:
            memory.require(weight.nbytes, "a copy of the weight")
            weight = contiguous(weight)
        packed = aligned(self.nbytes // self._compute.itemsize + 64, self._compute)
        if self._padded:
            packed.fill(0)
        addresses = {"dst": address_of(packed), "src": address_of(weight)}
        return packed, self._blocks.taken(addresses), weight

    def end(self, block: Block) -> None:
        """Raise `NonFinite` if the packed weight is not finite."""
        if self._blocks.given_back(block, "bad"):
            raise NonFinite


def threads_for(packed: Array, threads: int) -> int:
    """Return the number of threads worth using to pack a weight."""
    return threads if packed.size > _FEW else 1


def aligned(count: int, dtype: np.dtype[Any]) -> Array:
    """Return an uninitialised array aligned to a cache line; a large one is in warm memory.

    NumPy's arrays begin anywhere, so each load of a full vector may touch two cache lines. That
    took up to a tenth of a layer's time on a Xeon (2026-11-21). New pages took as long as packing.
    """
    if count * dtype.itemsize >= _WARM:
        return warm(count * dtype.itemsize).view(dtype)
    spare = LINE // dtype.itemsize
    array = np.empty(count + spare, dtype)
    first = -address_of(array) % LINE // dtype.itemsize
    return array[first : first + count]


def goes_past(nbytes: int, cpu: Cpu) -> bool:
    """Whether a packed weight is written past the caches, which avoids reading lines first. That is
    1.2 to 1.4 times as fast for 6 to 33 MB where the third-level cache has 32 MB (2026-11-23,
    Zen 4). New pages are in the caches already. Where that cache holds the weight until it is used,
    input gradients took 1.1 to 1.4 times as long past it (8 to 17 MB of 480, Xeon, 2026-11-27)."""
    return cpu.l3 // _SHARE <= nbytes <= KEPT_BYTES


def watched(f: Function, value: Value, bad: Value) -> Value:
    """Update `bad`: a zero of either sign, or NaN in lanes where a value was not finite.

    A bfloat16 is a 16-bit integer here; its lane of `bad` has the bit `_BAD` instead of NaN."""
    element, lanes = split(value.type)
    if element == I16:
        return bad | ((value >> 7 & _BAD - 1) + 1)
    bits = vector(I32 if element == FLOAT else I64, lanes)
    zero = value * f.constant(value.type, 0.0)
    zero, bad = (f.convert("bitcast", each, bits) for each in (zero, bad))
    return f.convert("bitcast", bad | zero, value.type)


_BAD = 1 << 8  # one more than the exponent of infinity and NaN


def report_nonfinite(f: Function, bad: Value, flag: Value) -> None:
    """Set a flag where a lane of `bad` is NaN, or has the bit `_BAD` set."""
    element, lanes = split(bad.type)
    odd = f.compare("ne", bad & _BAD, 0) if element == I16 else f.compare("uno", bad, bad)
    with f.when(f.compare("ne", f.convert("bitcast", odd, f"i{lanes}"), 0)):
        f.publish(1, flag)


@compiled("pack", kept=16, opt=1)
def transposed_packing_code(module: Module, element: str, past: bool, cpu: Cpu) -> None:
    """`pack(args)`, which every thread runs, where lanes lie far apart. A job packs some columns
    (adjacent taps and input channels) of all lanes of a block. `past` writes past the caches."""
    lanes = cpu.lanes(max(BYTES[element], BYTES[I32]))  # 16-bit numbers are stored in pairs
    kind = vector(element, lanes)
    with module.function("pack", {"args": PTR}) as f:
        a = _ARGUMENTS.reader(f)
        scratch = f.scratch(_COLUMNS * 8 * lanes * BYTES[element])
        with jobs(f, a.address("next"), a["jobs"]) as job:
            number, rest = job % a["count"], job // a["count"]
            part, group = rest % a["parts"], rest // a["parts"]
            piece = f.at(a["pieces"], number * _PIECE, I64)
            to, start, active, width = (f.word(piece, i) for i in range(_PIECE))
            dst = a["dst"] + (group * a["dst_group"] + to)
            src = a["src"] + (group * a["src_group"] + start)
            row, zero = width * a["element"], f.constant(kind, 0)
            # Lanes after the last active one are zero.
            at_once, pairs = a["at_once"], element == I16
            behind = f.select(active < width, width * at_once, 0)
            with f.loop(0, behind, lanes) as lane:
                f.store(zero, f.at(scratch, lane.index, element))
            first, taps = part * a["part"], a["taps"]
            stop = f.min(a["columns"], first + a["part"])
            # Steps from tap to tap, and from a channel's last tap to the next channel's first.
            channels = a["row_channels"]
            step, last = channels * row, taps - 1
            back = (row * 2 if pairs else row) - last * step
            tap = first % taps
            place = (tap * channels + first // taps) * row
            with f.loop(first, stop, at_once, [zero, tap, place]) as loop:
                count = f.min(stop - loop.index, at_once)
                here = src + loop.index * a["stored"]
                if past:
                    _prefetch_next(f, here, a["stored"] * at_once, active, a["src_lane"])
                f.call(a["gather"], scratch, here, active, count, a["src_lane"], row)
                if pairs:  # the last of an odd number of channels is paired with zeros
                    odd = f.select(f.compare("eq", count // taps % 2, 1), taps * width, 0)
                    with f.loop(0, odd, lanes) as lane:
                        f.store(zero, f.at(scratch + count * row, lane.index, element))
                lines = (count // taps + 1) // 2 * taps if pairs else count
                with f.loop(0, lines, 1, loop.carried) as each:
                    bad, tap, place = each.carried
                    line = scratch + each.index * row
                    if pairs:  # each channel's taps are followed by those of its partner
                        line = line + each.index // taps * taps * row
                    other = line + taps * row if pairs else None
                    bad = _pack_line(f, kind, past, (line, other), dst + place, row, bad)
                    over = f.compare("eq", tap, last)
                    tap = f.select(over, f.integer(0), tap + 1)
                    each.next([bad, tap, place + f.select(over, back, step)])
                loop.next(each.results)
            report_nonfinite(f, loop.results[0], a.address("bad"))
        f.drain()


def _pack_line(
    f: Function, kind: str, past: bool, lines: tuple[Value, Value | None], dst: Value, row: Value,
    bad: Value,
) -> Value:  # fmt: skip
    """Store a transposed line of `row` bytes, or two 16-bit lines as pairs; return `watched`."""
    (element, lanes), (line, other) = split(kind), lines
    with f.loop(0, row, lanes * BYTES[element], [bad]) as lane:
        value, to = f.load(kind, line + lane.index), dst + lane.index
        bad = watched(f, value, lane.carried[0])
        if other:
            second = f.load(kind, other + lane.index)
            bad, to = watched(f, second, bad), to + lane.index
            low, high = (f.convert("zext", v, vector(I32, lanes)) for v in (value, second))
            value = low | high << 16
        f.store(value, to, past=past)
        lane.next([bad])
    return lane.results[0]


def _prefetch_next(f: Function, here: Value, nbytes: Value, rows: Value, apart: Value) -> None:
    """Prefetch the next `nbytes` of each row, `nbytes` after `here`. Rows are too short for the
    processor's own prefetcher."""
    with f.loop(0, rows) as row, f.loop(nbytes, nbytes * 2, LINE) as line:
        f.prefetch(here + row.index * apart + line.index)


@compiled("pack", kept=16, opt=1)
def packing_code(module: Module, element: str, cpu: Cpu) -> None:
    """The function `pack(args)`, which every thread runs."""
    with module.function("pack", {"args": PTR}) as f:
        a = _ARGUMENTS.reader(f)
        with jobs(f, a.address("next"), a["jobs"]) as job:
            part, group = job % a["parts"], job // a["parts"]
            first = part * a["part"]
            count = f.min(a["part"], a["channels"] - first)
            dst = a["dst"] + group * a["dst_group"]
            src = group * a["src_group"] + first * a["src_channel"]
            src = a["src"] + src
            with f.loop(0, a["count"]) as loop:
                piece = f.at(a["pieces"], loop.index * _PIECE, I64)
                to, start, table, lanes = (f.word(piece, i) for i in range(_PIECE))
                row = lanes * a["element"]
                place = dst + (to + first * row)
                f.call(
                    a["gather"], place, src + start,
                    f.at(a["tables"], table, I64), lanes, count, row, a["src_channel"],
                )  # fmt: skip
                rows = (count + 1) // 2 * 2 if element == I16 else count
                _watch(f, place, lanes * rows, element, cpu, a.address("bad"))


def _watch(f: Function, src: Value, count: Value, element: str, cpu: Cpu, flag: Value) -> None:
    """Set a flag if one of `count` numbers is not finite."""
    lanes = cpu.lanes(BYTES[element])
    kind = vector(element, lanes)
    whole, zero = count // lanes * lanes, f.constant(kind, 0)
    with f.loop(0, whole, lanes, [zero]) as loop:
        value = f.load(kind, f.at(src, loop.index, element))
        loop.next([watched(f, value, loop.carried[0])])
    mask = f.lanes_below(count - whole, lanes)
    rest = f.load_lanes(kind, f.at(src, whole, element), mask)
    report_nonfinite(f, watched(f, rest, loop.results[0]), flag)
