"""Native code that packs weights; packing.py fills its arguments.

    pack(args)                                     all threads pack the entire weight, in jobs
    pack_pieces(args, dst, group, first, count)    one thread packs some of a group's pieces

The code gathers entries listed in a table, or transposes squares in registers.
"""

from __future__ import annotations

from typing import NamedTuple

from .compile import compiled
from .cpu import Cpu
from .emit import Function, Module, signature
from .kernel_arguments import ArgumentLayout, Arguments, jobs
from .transpose import as_bits, paired, read_for_pairs, transposed
from .values import BFLOAT, BYTES, FLOAT, I16, I32, I64, LINE, PTR, Value, split, vector

ARGUMENTS = ArgumentLayout(
    "dst* src* pieces* tables* gather* count channels part parts jobs element"
    " dst_group src_group src_channel src_lane stored columns taps row_channels run runs",
    counters="next bad",
)
PIECE = 4  # numbers per piece: byte offsets in dst and src, offset in tables or lanes, entries
COLUMNS = 128  # taps and input channels transposed at once, in at most 64 KiB of scratch memory


def watched(f: Function, value: Value, bad: Value) -> Value:
    """Return `bad` updated: lanes become NaN if `value` is not finite there, else stay 0 or -0.

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
    """Set a flag if any lane of `bad` is NaN or has the bit `_BAD`."""
    element, lanes = split(bad.type)
    is_bad = f.compare("ne", bad & _BAD, 0) if element == I16 else f.compare("uno", bad, bad)
    with f.when(f.compare("ne", f.convert("bitcast", is_bad, f"i{lanes}"), 0)):
        f.publish(1, flag)


@compiled("pack", "pack_pieces", kept=16, opt=1)
def transposed_packing_code(module: Module, element: str, past: bool, cpu: Cpu) -> None:
    """Emit packing for lanes that are far apart. A piece's part has some columns (adjacent taps and
    input channels) of all lanes in a block. `past` writes past the caches."""
    _emit_part(module, element, past, cpu)
    _emit_packs(module)


@compiled("pack", "pack_pieces", kept=16, opt=1)
def pair_packing_code(module: Module, stored: str, few: int, past: bool, cpu: Cpu) -> None:
    """Emit the same for a weight of type `stored`, packed as pairs of input channels in bfloat16.
    A piece's part has some input channels; `few` is the result of `few_taps`."""
    _emit_pairs(module, stored, few, past, cpu)
    _emit_packs(module)


def _emit_packs(module: Module) -> None:
    """Emit `pack` and `pack_pieces`, which call `part`."""
    with module.function("pack", {"args": PTR}) as f:
        a = ARGUMENTS.reader(f)
        with jobs(f, a.address("next"), a["jobs"]) as job:
            number, rest = job % a["count"], job // a["count"]
            part, group = rest % a["parts"], rest // a["parts"]
            f.call("part", f["args"], a["dst"] + group * a["dst_group"], group, number, part)
        f.drain()
    with module.function("pack_pieces", signature("args* dst* group first count")) as f:
        a, first = ARGUMENTS.reader(f), f["first"]
        begin = f.load(I64, f.at(a["pieces"], first * PIECE, I64))
        dst = f["dst"] + (f.integer(0) - begin)
        with f.loop(first, first + f["count"]) as piece, f.loop(0, a["parts"]) as loop:
            f.call("part", f["args"], dst, f["group"], piece.index, loop.index)


_PART = signature("args* dst* group number part")
"""The parameters of `part`: a group's packed weight, and the numbers of a piece and its part."""


def _piece(f: Function) -> tuple[Arguments, Value, Value, Value, Value]:
    """Return the arguments; a piece's addresses in the packed weight and in the weight; and its
    numbers of active lanes and of all lanes."""
    a = ARGUMENTS.reader(f)
    piece = f.at(a["pieces"], f["number"] * PIECE, I64)
    to, start, active, width = (f.word(piece, i) for i in range(PIECE))
    return a, f["dst"] + to, a["src"] + (f["group"] * a["src_group"] + start), active, width


def _emit_part(module: Module, element: str, past: bool, cpu: Cpu) -> None:
    lanes = cpu.lanes(BYTES[element])
    kind = vector(element, lanes)
    with module.function("part", _PART, exported=False) as f:
        a, dst, src, active, width = _piece(f)
        scratch = f.scratch(COLUMNS * 8 * lanes * BYTES[element])
        row, zero = width * a["element"], f.constant(kind, 0)
        # Lanes after the last active one are zero.
        with f.loop(0, f.select(active < width, width * COLUMNS, 0), lanes) as lane:
            f.store(zero, f.at(scratch, lane.index, element))
        first, taps = f["part"] * a["part"], a["taps"]
        stop = f.min(a["columns"], first + a["part"])
        # Steps from tap to tap, and from a channel's last tap to the next channel's first.
        step, last = a["row_channels"] * row, taps - 1
        back, tap = row - last * step, first % taps
        offset = tap * step + first // taps * row
        with f.loop(first, stop, COLUMNS, [zero, tap, offset]) as loop:
            count = f.min(stop - loop.index, COLUMNS)
            columns = src + loop.index * a["stored"]
            if past:
                _prefetch_next(f, columns, a["stored"] * COLUMNS, active, a["src_lane"])
            f.call(a["gather"], scratch, columns, active, count, a["src_lane"], row)
            with f.loop(0, count, 1, loop.carried) as column:
                bad, tap, offset = column.carried
                line, to = scratch + column.index * row, dst + offset
                with f.loop(0, row, lanes * BYTES[element], [bad]) as lane:
                    value = f.load(kind, line + lane.index)
                    f.store(value, to + lane.index, past=past)
                    lane.next([watched(f, value, lane.carried[0])])
                is_last = f.compare("eq", tap, last)
                tap = f.select(is_last, f.integer(0), tap + 1)
                column.next([lane.results[0], tap, offset + f.select(is_last, back, step)])
            loop.next(column.results)
        report_nonfinite(f, loop.results[0], a.address("bad"))


def _emit_pairs(module: Module, stored: str, few: int, past: bool, cpu: Cpu) -> None:
    lanes = cpu.lanes(BYTES[I32])
    channels = channels_of_square(few, cpu)
    with module.function("part", _PART, exported=False) as f:
        a, dst, src, active, width = _piece(f)
        taps = f.integer(few) if few else a["taps"]
        first = f["part"] * a["part"]
        stop = f.min(a["channels"], first + a["part"])
        square = _PairSquare(stored, few, lanes, taps)
        with (
            f.loop(0, width, lanes) as row,
            f.loop(first, stop, channels) as channel,
            f.loop(0, taps, lanes) as tap,
        ):
            left = active - row.index, a["channels"] - channel.index, taps - tap.index
            # A full square reads beyond its taps, which is safe only if more numbers follow.
            number = channel.index * taps + tap.index
            enough = a["channels"] * taps - number >= (2 * lanes if few else taps + lanes)
            is_full = (left[0] >= lanes) & (left[1] >= channels) & enough
            square_src = f.at(src + row.index * a["src_lane"], number, stored)
            offset = channel.index * width * 2 + row.index * 4
            to = dst + (offset + tap.index * a["row_channels"] * width * 2)
            for full in (True, False):
                with f.when(is_full, holds=full):
                    lines = square.lines(f, square_src, None if full else left)
                    square.store(f, to, width, lines, left, full=full, past=past)


def channels_of_square(taps: int, cpu: Cpu) -> int:
    """Return a square's number of channels: two, or more if they have few taps."""
    return 2 * max(1, few_taps(taps, cpu) and cpu.lanes(BYTES[I32]) // taps)


def few_taps(taps: int, cpu: Cpu) -> int:
    """Return `taps` if a square can hold several channel pairs with this many taps, else 0."""
    return taps if 2 * taps <= cpu.lanes(BYTES[I32]) else 0


Left = tuple[Value, Value, Value]
"""How many lanes, channels and taps remain from a square's first one on."""


class _PairSquare(NamedTuple):
    """A square of 32-bit words: a row is a lane, and a column is a tap of two channels.

    With `few` taps, several pairs of channels fill a square. A row's numbers are adjacent, and one
    shuffle pairs them. Otherwise `few` is 0: a square has some taps of two channels, which are read
    separately, and the same code serves all numbers of taps.
    """

    stored: str
    few: int
    lanes: int
    taps: Value

    def lines(self, f: Function, src: Value, left: Left | None) -> list[Value]:
        """Return the columns, and set the flag if a number is not finite. A full square has `left`
        None."""
        a, words, rows = ARGUMENTS.reader(f), vector(I32, self.lanes), []
        bad = f.constant(vector(I16, self._numbers), 0)
        for i in range(self.lanes):
            number = i if left is None else f.min(f.integer(i), left[0] - 1)
            parts = self._row(f, src + a["src_lane"] * number, left, i)
            for part in parts:
                bad = watched(f, part, bad)
            if len(parts) == 2:
                rows.append(paired(f, *parts))
            else:
                line = f.shuffle(parts[0], None, self._order())
                rows.append(f.convert("bitcast", line, words))
        report_nonfinite(f, bad, a.address("bad"))
        return transposed(f, rows, self.lanes)

    def _row(self, f: Function, src: Value, left: Left | None, number: int) -> list[Value]:
        """Return a lane's numbers, together or channel by channel."""
        kind = vector(read_for_pairs(self.stored), self._numbers)
        lines = [src] if self.few else [src, f.at(src, self.taps, self.stored)]
        if left is None:
            return [as_bits(f, f.load(kind, line), BFLOAT) for line in lines]
        rows, channels, taps = left
        counts = [f.select(rows > number, channels * self.few if self.few else taps, 0)]
        if not self.few:  # without a second channel, its address stays inside the weight
            counts.append(f.select(channels > 1, counts[0], 0))
            lines[1] = f.at(src, f.select(channels > 1, self.taps, 0), self.stored)
        return [
            as_bits(f, f.load_lanes(kind, line, f.lanes_below(n, self._numbers)), BFLOAT)
            for line, n in zip(lines, counts, strict=True)
        ]

    @property
    def _numbers(self) -> int:
        """The count of numbers that are read together: a row's, or one channel's."""
        return self.lanes * (2 if self.few else 1)

    def _columns(self) -> list[tuple[int, int]]:
        """Return the first channel and the tap of each used column."""
        if not self.few:
            return [(0, tap) for tap in range(self.lanes)]
        pairs = range(self.lanes // self.few)
        return [(2 * i, tap) for i in pairs for tap in range(self.few)]

    def _order(self) -> list[int]:
        columns = self._columns()
        columns += [(0, 0)] * (self.lanes - len(columns))
        return [(c + i) * self.few + tap for c, tap in columns for i in (0, 1)]

    def store(
        self, f: Function, dst: Value, width: Value, lines: list[Value], left: Left,
        *, full: bool, past: bool,
    ) -> None:  # fmt: skip
        """Store the columns that exist in the weight."""
        tap_bytes = ARGUMENTS.reader(f)["row_channels"] * width * 2
        for (channel, tap), line in zip(self._columns(), lines, strict=False):
            to = dst + (width * (2 * channel) + tap_bytes * tap)
            if full and self.few:
                f.store(line, to, past=past)
            else:
                with f.when(left[1] > channel if self.few else left[2] > tap):
                    f.store(line, to, past=past)


def _prefetch_next(f: Function, src: Value, nbytes: Value, rows: Value, row_bytes: Value) -> None:
    """Prefetch the next `nbytes` of each row, from `src` + `nbytes` on. Rows are too short for the
    processor's prefetcher."""
    with f.loop(0, rows) as row, f.loop(nbytes, nbytes * 2, LINE) as line:
        f.prefetch(src + row.index * row_bytes + line.index)


@compiled("pack", kept=16, opt=1)
def packing_code(module: Module, element: str, cpu: Cpu) -> None:
    """Emit `pack(args)`, which every thread runs: it gathers the entries listed in a table. A job
    packs some input channels for a run of pieces."""
    with module.function("pack", {"args": PTR}) as f:
        a = ARGUMENTS.reader(f)
        with jobs(f, a.address("next"), a["jobs"]) as job:
            part, rest = job % a["parts"], job // a["parts"]
            run, group = rest % a["runs"], rest // a["runs"]
            first, begin = part * a["part"], run * a["run"]
            count = f.min(a["part"], a["channels"] - first)
            dst = a["dst"] + group * a["dst_group"]
            src = group * a["src_group"] + first * a["src_channel"]
            src = a["src"] + src
            with f.loop(begin, f.min(begin + a["run"], a["count"])) as loop:
                piece = f.at(a["pieces"], loop.index * PIECE, I64)
                to, start, table, lanes = (f.word(piece, i) for i in range(PIECE))
                row = lanes * a["element"]
                packed = dst + (to + first * row)
                f.call(
                    a["gather"], packed, src + start,
                    f.at(a["tables"], table, I64), lanes, count, row, a["src_channel"],
                )  # fmt: skip
                rows = (count + 1) // 2 * 2 if element == I16 else count
                _watch(f, packed, lanes * rows, element, cpu, a.address("bad"))


def _watch(f: Function, src: Value, count: Value, element: str, cpu: Cpu, flag: Value) -> None:
    """Set a flag if one of `count` numbers is not finite."""
    lanes = cpu.lanes(BYTES[element])
    kind = vector(element, lanes)
    full, zero = count // lanes * lanes, f.constant(kind, 0)
    with f.loop(0, full, lanes, [zero]) as loop:
        value = f.load(kind, f.at(src, loop.index, element))
        loop.next([watched(f, value, loop.carried[0])])
    mask = f.lanes_below(count - full, lanes)
    rest = f.load_lanes(kind, f.at(src, full, element), mask)
    report_nonfinite(f, watched(f, rest, loop.results[0]), flag)
