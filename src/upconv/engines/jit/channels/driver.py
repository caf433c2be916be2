"""The channels kernel's native steps; walk.py calls them for the rows of its tables.

    passes         computes the passes of a run of blocks over a run of points
    transpose_in   transposes some channels and positions of channels-first input
    transpose_out  does the same for a result; `finish_out` also applies an epilogue

LLVM does not optimize them. Optimizing takes four times as long and saves 1 % of the run time,
because the functions that they call do nearly all the work.
"""

from __future__ import annotations

from typing import NamedTuple

from .. import walk
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module
from ..kernel_arguments import ArgumentLayout, Record, record
from ..values import I64, PTR, Operand, Value

NUMBERS = (
    walk.NUMBERS + "x* y* w* bias* residual*"  # channels last: the caller's, or transposed
    " first_x* first_y* in_image in_channel out_image out_channel"  # channels first
    " passes* spans* points* taps* sizes* outs* zeros* axes"  # tables
    " in_row out_row"  # bytes to the next position of transposed data
    " stage_point stage_row"  # bytes to the next point, or channel, in the stage
    " finish* finish_transposed* transpose_in* transpose_out*"  # of rows.py and transpose.py
    " slopes second element"  # bytes: bias to slope, y to second result, a number
    " pack_pieces* slab"  # code that packs a job's weights, or 0; bytes of a thread's part of w
    " gaps"  # whether that code leaves gaps, which must be zero
)
ARGUMENTS = ArgumentLayout(NUMBERS, counters=walk.COUNTERS)


class Pass(NamedTuple):
    """A block's pass over some taps and input channels; offsets are in bytes."""

    code: int  # the address of a tile of `most` points
    rest_code: int  # the address of a tile for the last points
    most: int
    span: int  # offset of its span among a run's spans
    direct: int  # whether tiles may store to the output
    taps: int
    ntaps: int
    record: int  # bytes of a tap's record
    merged: int  # consecutive taps summed as one, unless a window crosses a row's end
    x: int
    channels: int
    w: int
    w_tap: int
    ahead: int  # bytes from `w` to the next pass's weights
    bias: int
    resumed: int  # whether it continues earlier passes' sums
    y: int
    active: int  # lanes
    clip: int  # active lanes that exist at a row's last point
    stage: int  # bytes from one point's sums to the next; 0 if tiles reuse the stage
    last: int  # whether this pass completes the sums
    piece: int  # the packed weight's piece with the block's weights


RUN = record("spans x y sizes")
"""A run of points in a spatial block: its spans, its inputs' sizes, its offsets in x and y."""
ROW = record("start stop x y w bias group slab")
"""Passes [start, stop) of a run of blocks, their group's offsets in the operands, its number, and
whether a block's weights are in a slab."""
PASS = record(" ".join(Pass._fields))
SPAN = record("points stride count clear")
"""Points in a run that passes share: `count` points, of which the first `clear` have all lanes;
`stride` is the bytes from one array of their numbers to the next."""
STRETCH = record("first last positions")
"""Neighbouring positions to transpose: offsets in channels-first and channels-last data."""
PART = record("image channel last channels")
"""Some channels of an image, from `channel` on, and their offset in channels-last data."""


@compiled("passes", "transpose_in", "transpose_out", "finish_out", kept=4, opt=0)
def driver_code(module: Module, cpu: Cpu) -> None:
    """Emit all steps."""
    _emit_passes(module)
    _emit_transpose_in(module)
    _emit_transpose_out(module)
    _emit_finish_out(module)


def _emit_passes(module: Module) -> None:
    """Emit `passes`: tiles store some points directly to the output, and the others to the stage,
    from which `finish` moves them to the output after the last pass.

    If a weight is used only once, the thread that multiplies by a block's weights packs them into a
    slab before the first pass."""
    with module.function("passes", walk.JOB) as f:
        a = ARGUMENTS.reader(f)
        run, row = Record(f, f["inner"], RUN), Record(f, f["outer"], ROW)
        packs = f.compare("ne", f.convert("ptrtoint", a["pack_pieces"], I64), 0)
        slab, row_copy = slab_of(f), f.scratch(ROW.itemsize)
        for name in ROW.names or ():
            f.store(row[name], row_copy + ROW.fields[name][1])  # type: ignore[index]  # has names
        with f.loop(row["start"], row["stop"], PASS.itemsize) as loop:
            p = Record(f, a["passes"] + loop.index, PASS)
            with f.when(packs & f.compare("eq", p["resumed"], 0)):
                into, pieces = a["w"] + slab, (row["group"], p["piece"], 1)
                f.call(a["pack_pieces"], a["pack_args"], into, *pieces)
                for name, value in (("w", slab - p["w"]), ("slab", f.integer(1))):
                    f.store(value, row_copy + ROW.fields[name][1])  # type: ignore[index]
            span = Record(f, a["spans"] + (run["spans"] + p["span"]), SPAN)
            most, count, stride = p["most"], span["count"], span["stride"]
            points, y = a["points"] + span["points"], run["y"] + row["y"] + p["y"]
            clear = f.select(f.compare("eq", p["clip"], p["active"]), count, span["clear"])
            unclipped = f.compare("eq", clear, count)
            direct = f.select(unclipped, count, clear // most * most) * p["direct"]

            def tiles(code: Value, first: Operand, number: Operand, stage: Value | None) -> None:
                point = f.at(points, first, I64)
                dst = (a["y"] + y, point + stride) if stage is None else (stage, a["outs"])
                common = f["args"], f["inner"], row_copy, p.address
                f.call(
                    f.convert("inttoptr", code, PTR), *common, point, stride, number, *dst,
                    int(stage is not None),
                )  # fmt: skip

            with f.when(direct >= most):
                tiles(p["code"], 0, direct // most, None)
            with f.when(direct % most > 0):
                tiles(p["rest_code"], direct // most * most, 1, None)
            with f.loop(direct, count, most) as tile:
                stage = f["mine"] + tile.index * p["stage"]
                number = f.min(most, count - tile.index)
                tiles(f.select(number < most, p["rest_code"], p["code"]), tile.index, 1, stage)
                with f.loop(0, p["last"] * number) as point:
                    index = tile.index + point.index
                    length = f.select(index < clear, p["active"], p["clip"])
                    offset = f.word(points + stride, index) + y
                    dst = a["y"] + offset, a["residual"] + offset
                    sums = stage + point.index * a["stage_point"]
                    slopes = a["bias"] + (a["slopes"] + row["bias"] + p["bias"])
                    f.call(a["finish"], sums, *dst, 1, 0, 0, 1, length, 0, 0, slopes, a["second"])


def slab_of(f: Function) -> Value:
    """Return the offset of a thread's slab; slabs are ordered as the threads' scratch memory."""
    a = ARGUMENTS.reader(f)
    mine, first = (f.convert("ptrtoint", v, I64) for v in (f["mine"], a["scratch"]))
    return (mine - first) // a["part"] * a["slab"]


# Channels first -----------------------------------------------------------------------------------


def _emit_transpose_in(module: Module) -> None:
    with module.function("transpose_in", walk.JOB) as f:
        a = ARGUMENTS.reader(f)
        first, last, channels, positions = _offsets(f, a["in_image"], a["in_channel"])
        dst, src = a["x"] + last, a["first_x"] + first
        f.call(a["transpose_in"], dst, src, channels, positions, a["in_channel"], a["in_row"])


def _emit_transpose_out(module: Module) -> None:
    with module.function("transpose_out", walk.JOB) as f:
        a = ARGUMENTS.reader(f)
        first, last, channels, positions = _offsets(f, a["out_image"], a["out_channel"])
        dst, src = a["first_y"] + first, a["y"] + last
        f.call(a["transpose_out"], dst, src, positions, channels, a["out_row"], a["out_channel"])


def _emit_finish_out(module: Module) -> None:
    with module.function("finish_out", walk.JOB) as f:
        a = ARGUMENTS.reader(f)
        first, last, channels, positions = _offsets(f, a["out_image"], a["out_channel"])
        channel = Record(f, f["outer"], PART)["channel"]
        slopes = a["bias"] + (a["slopes"] + channel * a["element"])
        stage, src, row = f["mine"], a["y"] + last, a["stage_row"]
        f.call(a["transpose_out"], stage, src, positions, channels, a["out_row"], row)
        dst = a["first_y"] + first, a["residual"] + first
        rows = channels, row, a["out_channel"]
        ends = slopes, a["second"]
        f.call(a["finish_transposed"], stage, *dst, *rows, 1, positions, 0, 0, *ends)


def _offsets(f: Function, image: Value, channel: Value) -> tuple[Value, Value, Value, Value]:
    """Return a job's offsets in channels-first and channels-last data, channels and positions."""
    stretch, part = Record(f, f["inner"], STRETCH), Record(f, f["outer"], PART)
    first = stretch["first"] + (part["image"] * image + part["channel"] * channel)
    return first, stretch["last"] + part["last"], part["channels"], stretch["positions"]
