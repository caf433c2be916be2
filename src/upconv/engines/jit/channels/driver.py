"""The native steps of the channel-vectorised kernel; walk.py calls them for the rows of its tables.

    passes         the passes of some blocks over a run of points
    transpose_in   some channels of some positions of the input, where channels come first
    transpose_out  the same of the result; `finish_out` where an epilogue follows

Compiled once per process, and not optimised: that takes four times as long, and what is made is
one hundredth faster, as nearly all work is done in what is called from here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import walk
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module, signature
from ..kernel_arguments import ArgumentLayout
from ..values import I64, PTR, Value
from .tile import PARAMETERS

ARGUMENTS = ArgumentLayout(
    walk.NUMBERS + "x* y* w* bias* residual*"  # channels last: the caller's, or transposed
    " first_x* first_y* in_image in_channel out_image out_channel"  # channels first
    " passes* spans* points* taps* sizes* outs* zeros* axes"  # tables
    " in_row out_row stage_row"  # bytes to the next position of transposed data, channel of stage
    " finish* finish_transposed* transpose_in* transpose_out*",  # of rows.py and transpose.py
    counters=walk.COUNTERS,
)

Records = np.ndarray[Any, np.dtype[Any]]


def _record(names: str) -> np.dtype[Any]:
    return np.dtype([(name, np.int64) for name in names.split()])


class Pass(NamedTuple):
    """Some taps and input channels of a block; offsets are in bytes."""

    code: int  # the address of a whole tile
    rest_code: int  # and of one for the last points
    most: int  # points of a whole tile
    span: int  # its points, among the spans of a run
    taps: int
    ntaps: int
    record: int  # bytes of a tap
    merged: int  # taps that are one
    x: int
    channels: int
    w: int
    w_tap: int
    ahead: int  # from w
    ahead_step: int
    bias: int
    resumed: int
    y: int
    active: int  # lanes
    clip: int  # those that exist where a row of the output ends
    row: int  # bytes of a point in the stage
    stage: int  # from one point's to the next one's, 0 where each tile begins anew
    outs: int  # of a tile's points in the stage
    last: int  # whether sums are complete


RUN = _record("spans x y sizes")
"""A run of points of a spatial block: its spans, sizes of the inputs, offsets in x and y."""
ROW = _record("start stop x y w bias")
"""Passes [start, stop) of some blocks, and a group's offsets in the operands."""
PASS = _record(" ".join(Pass._fields))
SPAN = _record("points stride tiles rest direct count clear")
"""Points of a run that passes share: `count` of them, of which the first `clear` have all lanes and
the first `direct` are stored directly, by whole `tiles` and a `rest`; bytes from one array of
numbers to the next."""
STRETCH = _record("first last positions")
"""Neighbouring positions that are transposed: offsets in channels-first and channels-last data."""
PART = _record("image channel last channels")
"""Some channels of an image, and their offset in channels-last data."""


@compiled("passes", "transpose_in", "transpose_out", "finish_out", kept=4, opt=0)
def driver_code(module: Module, cpu: Cpu) -> None:
    """All of these."""
    _emit_tiles(module)
    _emit_passes(module)
    _emit_transpose_in(module)
    _emit_transpose_out(module)
    _emit_finish_out(module)


def _fields(f: Function, address: Value, record: np.dtype[Any]) -> dict[str, Value]:
    """The numbers of a record."""
    return {name: f.word(address, i) for i, name in enumerate(record.names or ())}


def _emit_passes(module: Module) -> None:
    """`passes`: of each pass the points that are stored directly at once, the others by tile."""
    with module.function("passes", walk.JOB) as f:
        a = ARGUMENTS.reader(f)
        run, row = _fields(f, f["inner"], RUN), _fields(f, f["outer"], ROW)
        with f.loop(row["start"], row["stop"], PASS.itemsize) as loop:
            step = a["passes"] + loop.index
            p = _fields(f, step, PASS)
            span = _fields(f, a["spans"] + (run["spans"] + p["span"]), SPAN)
            common = f["args"], f["mine"], f["inner"], f["outer"], step
            points, stride, most = a["points"] + span["points"], span["stride"], p["most"]
            with f.when(span["tiles"] > 0):
                whole = p["code"], span["tiles"]
                f.call("tiles", *common, points, stride, *whole, f["mine"], 0, 0)
            with f.when(span["rest"] > 0):
                rest = f.at(points, span["tiles"] * most, I64)
                f.call("tiles", *common, rest, stride, p["rest_code"], 1, f["mine"], 0, 0)
            with f.loop(span["direct"], span["count"], most) as point:
                here, stage = f.at(points, point.index, I64), f["mine"] + point.index * p["stage"]
                count = f.min(most, span["count"] - point.index)
                code = f.select(count < most, p["rest_code"], p["code"])
                clear = span["clear"] - point.index
                f.call("tiles", *common, here, stride, code, 1, stage, count, clear)


def _emit_tiles(module: Module) -> None:
    """`tiles`: tiles of a pass, from a point on, into the output; or one of `count` points into the
    stage, and after the last pass from there."""
    parameters = signature(
        "args* mine* run* row* pass* points* stride code tiles stage* count clear"
    )
    with module.function("tiles", parameters, exported=False) as f:
        a, p = ARGUMENTS.reader(f), _fields(f, f["pass"], PASS)
        run, row = _fields(f, f["run"], RUN), _fields(f, f["row"], ROW)
        points, stride, direct = f["points"], f["stride"], f.compare("eq", f["count"], 0)
        outs, y = points + stride, run["y"] + row["y"] + p["y"]
        w = a["w"] + (row["w"] + p["w"])
        arguments = p | {
            "tiles": f["tiles"], "xs": points, "edges": outs + stride,
            "coordinates": outs + stride * 2, "coordinate_axis": stride,
            "sizes": a["sizes"] + run["sizes"], "axes": a["axes"], "taps": a["taps"] + p["taps"],
            "x_offset": f.convert("ptrtoint", a["x"] + (run["x"] + row["x"] + p["x"]), I64),
            "zeros": a["zeros"], "w": w, "ahead": w + p["ahead"],
            "bias": a["bias"] + (row["bias"] + p["bias"]),
            "out": f.select(direct, a["y"] + y, f["stage"]),
            "outs": f.select(direct, outs, a["outs"] + p["outs"]),
        }  # fmt: skip
        f.call(f.convert("inttoptr", f["code"], PTR), *(arguments[name] for name in PARAMETERS))
        with f.loop(0, p["last"] * f["count"]) as point:
            length = f.select(point.index < f["clear"], p["active"], p["clip"])
            offset = f.word(outs, point.index) + y
            stage = f["stage"] + point.index * p["row"]
            into = a["y"] + offset, a["residual"] + offset
            f.call(a["finish"], stage, *into, 1, 0, 0, 1, length, 0, 0)


# Channels first -----------------------------------------------------------------------------------


def _emit_transpose_in(module: Module) -> None:
    with module.function("transpose_in", walk.JOB) as f:
        a = ARGUMENTS.reader(f)
        first, last, channels, positions = _offsets(f, a["in_image"], a["in_channel"])
        into = a["x"] + last, a["first_x"] + first
        f.call(a["transpose_in"], *into, channels, positions, a["in_channel"], a["in_row"])


def _emit_transpose_out(module: Module) -> None:
    with module.function("transpose_out", walk.JOB) as f:
        a = ARGUMENTS.reader(f)
        first, last, channels, positions = _offsets(f, a["out_image"], a["out_channel"])
        into = a["first_y"] + first, a["y"] + last
        f.call(a["transpose_out"], *into, positions, channels, a["out_row"], a["out_channel"])


def _emit_finish_out(module: Module) -> None:
    with module.function("finish_out", walk.JOB) as f:
        a = ARGUMENTS.reader(f)
        first, last, channels, positions = _offsets(f, a["out_image"], a["out_channel"])
        stage, src, row = f["mine"], a["y"] + last, a["stage_row"]
        f.call(a["transpose_out"], stage, src, positions, channels, a["out_row"], row)
        into = a["first_y"] + first, a["residual"] + first
        rows = channels, row, a["out_channel"]
        f.call(a["finish_transposed"], stage, *into, *rows, 1, positions, 0, 0)


def _offsets(f: Function, image: Value, channel: Value) -> tuple[Value, Value, Value, Value]:
    """Byte offsets into channels-first and channels-last data, channels and positions of a job."""
    stretch, part = _fields(f, f["inner"], STRETCH), _fields(f, f["outer"], PART)
    first = stretch["first"] + (part["image"] * image + part["channel"] * channel)
    return first, stretch["last"] + part["last"], part["channels"], stretch["positions"]
