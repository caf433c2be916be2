"""The jobs of Winograd's algorithm, each a block of some channels: native code that reads tables.

job(args, mine, block, run)   packs and transforms the operands of a block, and for each unit of a
                              run makes the products and moves the results to y; `block` is a number

`mine` is the memory of a thread (blocks.py). tables.py says what the fields of records are.
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
from .tables import kind_of

ARGUMENTS = ArgumentLayout(
    walk.NUMBERS + "x* x_image x_channel x_position y* y_image y_channel y_position residual*"
    " bias* w* axes* kinds* shapes* windows* tiles* shifts* groups* chunks* inputs* points* pieces*"
    " units* pack* deliver* finish* input* products* inverse*"
    " batch box chunk_count input_count point_count image stage_image wide position"
    " v_at z_at stage_at transposed_at v_point v_row z_point z_row w_point w_panel w_piece"
    " reduction panels columns x_first y_first x_step_0 x_step_1 y_step_0 y_step_1 y_step_2 element"
    " whole transposed group_bytes",
    counters=walk.COUNTERS + "bad",
)


@compiled("job", kept=8, opt=0)
def driver_code(module: Module, layout: DataLayout, cpu: Cpu) -> None:
    """`job` for data of one layout."""
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
            _emit_unit(block, block.record("units", number.index), layout)


class _Block:
    """The block of a job, inside `job`: its kind along each axis, its shape, its images, and its
    first byte of x and y, from the operands' own."""

    def __init__(self, f: Function) -> None:
        self.f, self.a = f, ARGUMENTS.reader(f)
        self.run = Record(f, f["outer"], kind_of("runs"))
        number, shape = f.convert("ptrtoint", f["inner"], I64), f.integer(0)
        self.x, self.y = self.a["x_first"], self.a["y_first"]
        self.axes, self.kinds = list[Record](), list[Record]()
        for i in (2, 1, 0):  # the last axis varies fastest in the number of a block
            axis = self.record("axes", f.integer(i))
            block, number = number % axis["blocks"], number // axis["blocks"]
            kind = f.min(block, axis["low"]) + f.max(block - axis["high"], 0)
            self.axes.insert(0, axis)
            self.kinds.insert(0, self.record("kinds", axis["kinds"] + kind))
            self.x = self.x + block * axis["x_block"]
            self.y = self.y + block * axis["y_block"]
            shape = shape + self.kinds[0]["fewer"] * (4 >> i)
        self.shape = self.record("shapes", shape)
        first = number * self.a["box"]
        self.images = f.min(self.a["box"], self.a["batch"] - first)
        self.x = self.x + first * self.a["x_image"]
        self.y = self.y + first * self.a["y_image"]

    def at(self, name: str) -> Value:
        """A part of the memory of the thread."""
        return self.f["mine"] + self.a[name]

    def record(self, table: str, number: Value) -> Record:
        """A record of a table."""
        return Record.of(self.f, self.a[table], number, kind_of(table))

    def records(self, table: str, first: Value) -> Value:
        """The address of the records of a table from one on."""
        return self.record(table, first).address


@contextmanager
def _lines(block: _Block) -> Iterator[tuple[Value, Value]]:
    """A loop over the lines of operands inside x, of all images: bytes from the first of the packed
    operands, and from that of x."""
    f, a, kinds = block.f, block.a, block.kinds
    begin = kinds[2]["begin"]
    with (
        f.loop(0, block.images) as image,
        f.loop(kinds[0]["begin"], kinds[0]["end"]) as i,
        f.loop(kinds[1]["begin"], kinds[1]["end"]) as j,
    ):
        packed, x = image.index * a["image"], block.x + image.index * a["x_image"]
        for axis, place in enumerate((i.index, j.index, begin)):
            packed = packed + block.axes[axis]["packed"] * place
            x = x + block.axes[axis]["x"] * place
        yield packed, x


def _emit_zeros(block: _Block) -> None:
    """Clear what is packed of operands beyond the ends of x."""
    f = block.f

    def clear(at: Value, number: int) -> None:
        axis, kind = block.axes[number], block.kinds[number]
        f.call("clear", at, kind["begin"] * axis["packed"])
        behind = (kind["operands"] - kind["end"]) * axis["packed"]
        f.call("clear", at + kind["end"] * axis["packed"], behind)
        if number < 2:
            with f.loop(kind["begin"], kind["end"]) as place:
                clear(at + place.index * axis["packed"], number + 1)

    with f.loop(0, block.images) as image:
        clear(f["mine"] + image.index * block.a["image"], 0)


def _emit_operand(block: _Block, layout: DataLayout) -> None:
    """Pack the rows of a block and transform its windows, some channels at a time."""
    f, a, shape, last = block.f, block.a, block.shape, block.kinds[2]
    count = last["end"] - last["begin"]
    x = a["x"] + block.run["channel"] * a["x_channel"]
    with f.loop(0, a["chunk_count"]) as loop:
        chunk = block.record("chunks", loop.index)
        src = x + chunk["channel"] * a["x_channel"]
        with _lines(block) as (packed, source):
            rows = f["mine"] + packed, src + source, chunk["active"]
            if layout is DataLayout.NCX:
                f.call(a["pack"], *rows, count, a["x_channel"], a["wide"])
            else:
                f.call(a["pack"], *rows, chunk["missing"], count, a["wide"], a["x_position"])
        first = loop.index * a["input_count"]
        with (
            f.loop(first, first + a["input_count"]) as phase,
            f.loop(0, block.images) as image,
        ):
            part = block.record("inputs", phase.index)
            packed = image.index * a["image"]
            for i, axis in enumerate(block.axes):
                packed = packed + part[f"phase_{i}"] * axis["packed"]
            row = image.index * shape["window_count"] * a["v_row"]
            f.call(
                a["input"], f["mine"] + packed, block.at("v_at") + (part["v"] + row),
                block.records("windows", shape["windows"]), shape["window_count"],
                chunk["vectors"], a["x_step_0"], a["x_step_1"], a["v_point"], a["v_row"],
            )  # fmt: skip


def _emit_unit(block: _Block, unit: Record, layout: DataLayout) -> None:
    """Products of all points, the transform back, and rows of results to y."""
    f, a, shape = block.f, block.a, block.shape
    u, v, z = a["w"] + unit["weights"], block.at("v_at"), block.at("z_at")
    rows = block.images * shape["window_count"] - shape["behind"]
    groups = a["groups"] + rows * a["group_bytes"]
    with f.loop(0, a["point_count"]) as loop:
        number, point = loop.index, block.record("points", loop.index)
        f.call(
            a["products"], v + number * a["v_point"], u + number * a["w_point"],
            z + number * a["z_point"], block.records("pieces", point["pieces"]),
            point["piece_count"], block.records("shifts", shape["shifts"]), a["w_piece"],
            a["w_panel"], a["reduction"], a["panels"], a["z_row"], groups,
        )  # fmt: skip
    last = block.kinds[2]
    with f.loop(0, block.images) as image:
        at = z + image.index * shape["window_count"] * a["z_row"]
        stage = block.at("stage_at") + image.index * a["stage_image"]
        f.call(
            a["inverse"], at, stage, block.records("tiles", shape["tiles"]), shape["tile_count"],
            a["columns"], a["bias"] + unit["bias"], a["y_step_0"], a["y_step_1"], a["y_step_2"],
            a["z_point"], a.address("bad"),
        )  # fmt: skip
        y = block.y + image.index * a["y_image"] + unit["channel"] * a["y_channel"]
        with (
            _results(block, 0, unit["phase_0"]) as (i, plane),
            _results(block, 1, unit["phase_1"]) as (j, line),
        ):
            src = stage + (i + j + last["first"] * block.axes[2]["stage"])
            y = y + plane + line + last["first"] * block.axes[2]["y"]
            _emit_result(block, layout, (src, y), unit["active"], last["stop"] - last["first"])


@contextmanager
def _results(block: _Block, number: int, phase: Value) -> Iterator[tuple[Value, Value]]:
    """A loop over the results of a phase inside y, along an axis: bytes of the stage and of y."""
    f, axis, kind = block.f, block.axes[number], block.kinds[number]
    stride = axis["stride"]
    # Results stride * i + phase from `first` on, up to `stop`.
    first, stop = ((kind[end] + (stride - 1) - phase) // stride for end in ("first", "stop"))
    with f.loop(first, stop) as i:
        yield i.index * axis["stage"], (i.index * stride + phase) * axis["y"]


def _emit_result(
    block: _Block, layout: DataLayout, row: tuple[Value, Value], active: Value, count: Value
) -> None:
    """A row of `count` results, of `active` channels, from the stage to bytes of y."""
    f, a = block.f, block.a
    src, offset = row
    y, more, position = a["y"] + offset, a["residual"] + offset, a["position"]
    if layout is DataLayout.NXC:
        # Where a unit has all channels, a row is one run.
        whole = f.compare("ne", a["whole"], 0)
        runs, length = f.select(whole, 1, count), f.select(whole, count * active, active)
        f.call(a["finish"], src, y, more, 1, 0, 0, runs, length, position, a["y_position"])
        return
    apart = f.compare("ne", a["transposed"], 0)
    with f.unless(apart):
        f.call(a["deliver"], y, src, count, active, position, a["y_channel"])
    with f.when(apart):
        line, rest = block.at("transposed_at"), count * a["element"]
        f.call(a["deliver"], line, src, count, active, position, rest)
        f.call(a["finish"], line, y, more, active, rest, a["y_channel"], 1, count, 0, 0)
