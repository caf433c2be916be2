"""The jobs of Winograd's algorithm, each a block of some channels: what walks the tables.

job(args, mine, block, run)   packs and transforms the operands of a block, and for each unit of a
                              run makes the products and moves the results to y; `block` is a number

`mine` is the memory of a thread (blocks.py). tables.py says what the fields of records are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ....problem import DataLayout
from .. import walk
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module, signature
from ..kernel_arguments import ArgumentLayout
from ..values import BYTES, I64, Operand, Value, vector
from . import tables
from .tile import GROUPS

ARGUMENTS = ArgumentLayout(
    walk.NUMBERS + "x* x_image x_channel x_position y* y_image y_channel y_position residual* bias*"
    " w* axes* shapes* zeros* rows* windows* tiles* shifts* deliveries* results* chunks* inputs*"
    " points* pieces* units*"
    " pack* deliver* finish* input* products* inverse*"
    " box chunk_count input_count point_count image stage_image wide position"
    " v_at z_at stage_at transposed_at v_point v_row z_point z_row w_panel w_piece reduction panels"
    " columns x_step_0 x_step_1 y_step_0 y_step_1 y_step_2 element whole transposed",
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
        _emit_operand(block, layout)
        first = block.run["first"]
        with f.loop(first, first + block.run["count"]) as number:
            _emit_unit(block, block.record("units", number.index), layout)


class _Block:
    """The block of a job, inside `job`: its shape, its first image, and where it begins in x and y,
    in bytes from there."""

    def __init__(self, f: Function) -> None:
        self.f, self.a = f, ARGUMENTS.reader(f)
        self.run = self._fields(f["outer"], tables.RUN)
        zero, number = f.integer(0), f.convert("ptrtoint", f["inner"], I64)
        with f.loop(0, 4, carried=[number, *[zero] * 4]) as loop:
            number, _, shape, x, y = loop.carried
            axis = self.record("axes", loop.index)
            block = number % axis["blocks"]
            kind = f.min(block, axis["low"]) + f.max(block - axis["high"], 0)
            shape = shape * axis["kinds"] + kind
            x, y = x + block * axis["x_step"], y + block * axis["y_step"]
            loop.next([number // axis["blocks"], block, shape, x, y])
        _, image, shape, self.x, self.y = loop.results
        self.image = image * self.a["box"]
        self.shape = self.record("shapes", shape)
        self.groups = f.at(self.a["shapes"], shape * len(tables.SHAPE) + _GROUPS, I64)

    def at(self, name: str) -> Value:
        """A part of the memory of the thread."""
        return self.f["mine"] + self.a[name]

    def address(self, table: str, index: Operand) -> Value:
        """The address of a record."""
        fields = tables.FIELDS[table]
        return self.f.at(self.a[table], index * len(fields), I64)

    def record(self, table: str, index: Value) -> dict[str, Value]:
        """The fields of a record."""
        return self._fields(self.address(table, index), tables.FIELDS[table])

    def _fields(self, address: Value, names: Sequence[str]) -> dict[str, Value]:
        return {name: self.f.word(address, i) for i, name in enumerate(names)}

    @contextmanager
    def records(
        self, table: str, first: Value, count: Value
    ) -> Iterator[tuple[Value, dict[str, Value]]]:
        """A loop over some records, for each image of the block."""
        f = self.f
        with f.loop(0, self.shape["images"]) as image, f.loop(first, first + count) as loop:
            yield image.index, self.record(table, loop.index)


_GROUPS = tables.SHAPE.index(GROUPS[0])


def _emit_operand(block: _Block, layout: DataLayout) -> None:
    """Pack the rows of a block and transform its windows, some channels at a time."""
    f, a, shape = block.f, block.a, block.shape
    packed = f["mine"]
    x = a["x"] + block.image * a["x_image"] + block.x + block.run["channel"] * a["x_channel"]
    with block.records("zeros", shape["zeros"], shape["zero_count"]) as (image, zero):
        f.call("clear", packed + (image * a["image"] + zero["packed"]), zero["nbytes"])
    with f.loop(0, a["chunk_count"]) as loop:
        chunk = block.record("chunks", loop.index)
        src = x + chunk["channel"] * a["x_channel"]
        with block.records("rows", shape["rows"], shape["row_count"]) as (image, row):
            rows = (
                packed + (image * a["image"] + row["packed"]),
                src + (image * a["x_image"] + row["source"]),
                chunk["active"],
            )
            if layout is DataLayout.NCX:
                f.call(a["pack"], *rows, row["count"], a["x_channel"], a["wide"])
            else:
                steps = a["wide"], a["x_position"]
                f.call(a["pack"], *rows, chunk["missing"], row["count"], *steps)
        first = loop.index * a["input_count"]
        with f.loop(first, first + a["input_count"]) as phase:
            part = block.record("inputs", phase.index)
            f.call(
                a["input"], packed + part["packed"], block.at("v_at") + part["v"],
                block.address("windows", shape["windows"]), shape["window_count"],
                chunk["vectors"], a["x_step_0"], a["x_step_1"], a["v_point"], a["v_row"],
            )  # fmt: skip


def _emit_unit(block: _Block, unit: dict[str, Value], layout: DataLayout) -> None:
    """Products of all points, the transform back, and rows of results to y."""
    f, a, shape = block.f, block.a, block.shape
    u, v, z = a["w"] + unit["weights"], block.at("v_at"), block.at("z_at")
    with f.loop(0, a["point_count"]) as loop:
        point = dict(block.record("points", loop.index))
        f.call(
            a["products"], v + point["v"], u + point["weights"], z + point["z"],
            block.address("pieces", point["pieces"]), point["piece_count"],
            block.address("shifts", shape["shifts"]), a["w_piece"], a["w_panel"],
            a["reduction"], a["panels"], a["z_row"], block.groups,
        )  # fmt: skip
    f.call(
        a["inverse"], z, block.at("stage_at"), block.address("tiles", shape["tiles"]),
        shape["tile_count"], a["columns"], a["bias"] + unit["bias"], a["y_step_0"],
        a["y_step_1"], a["y_step_2"], a["z_point"], a.address("bad"),
    )  # fmt: skip
    phase = block.record("deliveries", shape["deliveries"] + unit["phase"])
    start = block.y + unit["y"] + block.image * a["y_image"] + unit["channel"] * a["y_channel"]
    with block.records("results", phase["first"], phase["count"]) as (image, row):
        src = block.at("stage_at") + (image * a["stage_image"] + row["stage"])
        y = start + (image * a["y_image"] + row["y"])
        _emit_result(block, layout, (src, y), unit["active"], row["count"])


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
