"""The job of Winograd's algorithm: native code that reads tables.

job(args, mine, block, run)   packs and transforms a block's operands, and for each unit in a run
                              computes products and moves results to y; `block` is a number

`mine` is the thread's memory (blocks.py). tables.py explains the records' fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ....problem import DataLayout
from .. import walk
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module, signature
from ..kernel_arguments import ArgumentLayout, Record
from ..values import BYTES, I64, Value, vector
from .tables import KINDS

ARGUMENTS = ArgumentLayout(
    walk.NUMBERS
    + "x* x_image x_channel x_position y* y_image y_channel y_position residual* bias* w*"
    " axes* shapes* windows* tiles* shifts* runs* groups* points*"
    " pack* deliver* finish* input* products* inverse*"
    " batch box reduced made channels chunk chunks chunk_count input_count point_count image"
    " stage_image wide position v_at z_at stage_at transposed_at v_point v_row z_point z_row"
    " w_unit w_point w_panel w_piece bias_unit units reduction panels columns"
    " x_step_0 x_step_1 y_step_0 y_step_1 y_step_2 element lanes one_run transposed"
    " group_bytes point_bytes slopes second",
    counters=walk.COUNTERS + "bad",
)


@compiled("job", kept=8, opt=0)
def driver_code(module: Module, layout: DataLayout, cpu: Cpu) -> None:
    """Emit `job` for data in one layout."""
    with module.function("clear", signature("dst* nbytes"), exported=False) as f:
        zero = f.constant(vector(I64, cpu.lanes(BYTES[I64])), 0)
        with f.loop(0, f["nbytes"], cpu.vector_bytes) as loop:
            f.store(zero, f["dst"] + loop.index)
    with module.function("job", walk.JOB) as f:
        block = _Block(f)
        _emit_zeros(block)
        _emit_operand(block, layout)
        first = block.run["first"]
        with f.loop(first, first + block.run["count"]) as number:
            _emit_unit(block, number.index, layout)


class _Side:
    """A block along one axis. Of the operands that it packs, [begin, end) exist in x. Of the
    results in all its phases, [first, stop) exist in y."""

    def __init__(self, f: Function, axis: Record, block: Value) -> None:
        self.axis, first = axis, block * axis["box"]
        count = f.min(axis["box"], axis["groups"] - first)
        self.has_fewer = f.compare("slt", count, axis["box"])
        self.operands = axis["tail"] + count * axis["reads"]
        self.x = axis["first"] + first * axis["reads"]
        self.y = axis["base"] + first * axis["writes"]
        self.begin, self.end = _inside(f, self.x, self.operands, axis["size"])
        self.first, self.stop = _inside(f, self.y, count * axis["writes"], axis["out"])


def _inside(f: Function, start: Value, count: Value, size: Value) -> tuple[Value, Value]:
    """Return which of `count` positions from `start` on exist in an array, as begin and end."""
    begin = f.min(count, f.max(f.integer(0) - start, 0))
    return begin, f.max(begin, f.min(count, size - start))


class _Block:
    """The block that `job` computes: its images, sides and shape, and bytes to its first operand
    and result, which may precede the beginnings of x and y."""

    def __init__(self, f: Function) -> None:
        self.f, self.a = f, ARGUMENTS.reader(f)
        self.run = Record(f, f["outer"], KINDS["runs"])
        number, shape = f.convert("ptrtoint", f["inner"], I64), f.integer(0)
        self.sides, x, y = list[_Side](), f.integer(0), f.integer(0)
        for i in (2, 1, 0):  # the last axis varies fastest in a block's number
            axis = self.record("axes", f.integer(i))
            side = _Side(f, axis, number % axis["blocks"])
            self.sides.insert(0, side)
            number = number // axis["blocks"]
            shape = shape + f.select(side.has_fewer, f.integer(4 >> i), f.integer(0))
            x, y = x + side.x * axis["x"], y + side.y * axis["y"]
        self.shape = self.record("shapes", shape)
        first = number * self.a["box"]
        self.images = f.min(self.a["box"], self.a["batch"] - first)
        self.x, self.y = x + first * self.a["x_image"], y + first * self.a["y_image"]

    def at(self, name: str) -> Value:
        """Return the address of a part of the thread's memory."""
        return self.f["mine"] + self.a[name]

    def record(self, table: str, number: Value) -> Record:
        """Return a table's record with this number."""
        return Record.of(self.f, self.a[table], number, KINDS[table])

    def records(self, table: str) -> Value:
        """Return the address of a table's records for the block's shape."""
        return self.record(table, self.shape[table]).address


def _emit_zeros(block: _Block) -> None:
    """Clear the packed operands beyond the ends of x."""
    f = block.f

    def clear(at: Value, number: int) -> None:
        side, step = block.sides[number], block.sides[number].axis["packed"]
        f.call("clear", at, side.begin * step)
        f.call("clear", at + side.end * step, (side.operands - side.end) * step)
        if number < 2:
            with f.loop(side.begin, side.end) as operand:
                clear(at + operand.index * step, number + 1)

    with f.loop(0, block.images) as image:
        clear(f["mine"] + image.index * block.a["image"], 0)


def _emit_operand(block: _Block, layout: DataLayout) -> None:
    """Pack a block's rows and transform its windows, some channels at a time."""
    f, a = block.f, block.a
    x = a["x"] + block.run["group"] * a["reduced"] * a["x_channel"]
    with f.loop(0, a["chunk_count"]) as chunk:
        channel = chunk.index * a["chunk"]
        active = f.min(a["chunk"], a["reduced"] - channel)
        src = x + channel * a["x_channel"]
        with _lines(block) as (packed, source, count):
            rows = f["mine"] + packed, src + source, active
            if layout is DataLayout.NCX:
                f.call(a["pack"], *rows, count, a["x_channel"], a["wide"])
            else:
                missing = a["chunk"] - active
                f.call(a["pack"], *rows, missing, count, a["wide"], a["x_position"])
        with f.loop(0, a["input_count"]) as phase, f.loop(0, block.images) as image:
            packed, number = image.index * a["image"], phase.index
            for side in reversed(block.sides):  # the last axis varies fastest in a phase's number
                packed = packed + number % side.axis["step"] * side.axis["packed"]
                number = number // side.axis["step"]
            v = (channel * a["input_count"] + phase.index * active) * a["element"]
            v = v + image.index * block.shape["window_count"] * a["v_row"]
            f.call(
                a["input"], f["mine"] + packed, block.at("v_at") + v, block.records("windows"),
                block.shape["window_count"], (active + (a["lanes"] - 1)) // a["lanes"],
                a["x_step_0"], a["x_step_1"], a["v_point"], a["v_row"],
            )  # fmt: skip


@contextmanager
def _lines(block: _Block) -> Iterator[tuple[Value, Value, Value]]:
    """Loop over the rows of operands that exist in x, for all images. Yield a row's offsets in the
    packed operands and in x, and its number of operands."""
    f, a, (first, second, last) = block.f, block.a, block.sides
    with (
        f.loop(0, block.images) as image,
        f.loop(first.begin, first.end) as i,
        f.loop(second.begin, second.end) as j,
    ):
        packed, x = image.index * a["image"], block.x + image.index * a["x_image"]
        for side, index in zip(block.sides, (i.index, j.index, last.begin), strict=True):
            packed, x = packed + index * side.axis["packed"], x + index * side.axis["x"]
        yield packed, x, last.end - last.begin


def _emit_unit(block: _Block, number: Value, layout: DataLayout) -> None:
    """Compute all points' products, transform them back, and move rows of results to y."""
    f, a, shape, group = block.f, block.a, block.shape, block.run["group"]
    chunk, phase = number % a["chunks"], number // a["chunks"]
    u = a["w"] + (group * a["units"] + number) * a["w_unit"]
    v, z = block.at("v_at"), block.at("z_at")
    rows = block.images * shape["window_count"] - shape["behind"]
    with f.loop(0, a["point_count"]) as loop:
        point = a["points"] + loop.index * a["point_bytes"]
        f.call(
            a["products"], v + loop.index * a["v_point"], u + loop.index * a["w_point"],
            z + loop.index * a["z_point"], point, block.records("shifts"), a["w_piece"],
            a["w_panel"], a["reduction"], a["panels"], a["z_row"],
            a["groups"] + rows * a["group_bytes"],
        )  # fmt: skip
    channel = chunk * a["channels"]
    active = f.min(a["channels"], a["made"] - channel)
    bias = a["bias"] + (group * a["chunks"] + chunk) * a["bias_unit"]
    with f.loop(0, block.images) as image:
        at = z + image.index * shape["window_count"] * a["z_row"]
        stage = block.at("stage_at") + image.index * a["stage_image"]
        f.call(
            a["inverse"], at, stage, block.records("tiles"), shape["tile_count"], a["columns"],
            bias, a["y_step_0"], a["y_step_1"], a["y_step_2"], a["z_point"], a.address("bad"),
            a["slopes"],
        )  # fmt: skip
        y = block.y + image.index * a["y_image"] + (group * a["made"] + channel) * a["y_channel"]
        first, second, last = block.sides
        stride = second.axis["stride"]
        with (
            _results(f, first, phase // stride) as (i, plane),
            _results(f, second, phase % stride) as (j, line),
        ):
            src = stage + (i + j + last.first * last.axis["stage"])
            y = y + plane + line + last.first * last.axis["y"]
            row = src, y, last.stop - last.first
            _emit_result(block, layout, row, group * a["made"] + channel, active)


@contextmanager
def _results(f: Function, side: _Side, phase: Value) -> Iterator[tuple[Value, Value]]:
    """Loop over a phase's results along an axis that exist in y; yield offsets in stage and y."""
    stride = side.axis["stride"]
    # Results stride * i + phase from `first` on, up to `stop`.
    first, stop = ((bound + (stride - 1) - phase) // stride for bound in (side.first, side.stop))
    with f.loop(first, stop) as i:
        yield i.index * side.axis["stage"], (i.index * stride + phase) * side.axis["y"]


def _emit_result(
    block: _Block, layout: DataLayout, staged: tuple[Value, Value, Value], channel: Value,
    active: Value,
) -> None:  # fmt: skip
    """Move a row of results from the stage to y: `active` channels from `channel` on."""
    f, a = block.f, block.a
    src, offset, count = staged
    ends = a["bias"] + (a["slopes"] + channel * a["element"]), a["second"]
    y, residual, position = a["y"] + offset, a["residual"] + offset, a["position"]
    if layout is DataLayout.NXC:
        # If a unit has all channels, a row is a single run.
        one_run = f.compare("ne", a["one_run"], 0)
        runs, length = f.select(one_run, 1, count), f.select(one_run, count * active, active)
        steps = position, a["y_position"]
        f.call(a["finish"], src, y, residual, 1, 0, 0, runs, length, *steps, *ends)
        return
    finishes = f.compare("ne", a["transposed"], 0)
    with f.unless(finishes):
        f.call(a["deliver"], y, src, count, active, position, a["y_channel"])
    with f.when(finishes):
        row, step = block.at("transposed_at"), count * a["element"]
        f.call(a["deliver"], row, src, count, active, position, step)
        f.call(a["finish"], row, y, residual, active, step, a["y_channel"], 1, count, 0, 0, *ends)
