"""The loop over jobs of Winograd's algorithm: what walks the tables of winograd_tables.py.

run(args)   every thread: takes jobs, packs rows of the operand, calls the transforms and products
            of winograd_code.py, and moves rows of the result to their places
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ...problem import DataLayout
from .compile import Code
from .cpu import Cpu
from .emit import Function, Module
from .kernel_arguments import Arguments, Slots, jobs
from .values import I64, PTR, Value
from .winograd_code import TILE

BLOCK = ("rows", "row_count", "before", "count", "column", "tiles", "tile_count", "results", "skip")
"""Of a block: its rows of the operand; of each the positions before what is there, those that are,
and where they begin; its tiles; its results [skip, skip + results) of a row. Then, for each
combination of outer phases, its rows of the result: the first, and how many."""
ROW = ("place", "image", "position")
"""Where a row lies in a block and in an array, in positions; one that is not there has image -1."""

SLOTS = Slots(
    ("buffer", "x", "y", "residual", "w", "bias", "block", "row", "tile", "result", "phase",
     "fill", "turn", "turn_back", "finish", "input", "products", "inverse"),
    ("part", "v_at", "z_at", "stage_at", "turned_at", "jobs", "blocks", "runs", "units",
     "all_units", "chunks", "depth", "phases", "block_size", "channels", "chunk", "element",
     "points", "rows",
     "panels", "x_image", "x_channel", "x_position", "y_image", "y_channel", "y_position",
     "x_group", "y_group", "w_unit", "w_point", "v_point", "v_row", "z_point", "z_row",
     "made", "live", "padded", "columns", "whole", "late",
     "x_step_0", "x_step_1", "y_step_0", "y_step_1", "span", "lanes"),
    ("next", "next_thread", "bad"),
)  # fmt: skip


@lru_cache(maxsize=8)
def driver_code(layout: DataLayout, cpu: Cpu) -> Code:
    """`run` for data of one layout."""
    module = Module(cpu.attributes)
    with module.function("run", {"args": PTR}) as f:
        a = SLOTS.reader(f)
        mine = f.at(a["buffer"], f.mul(f.take(a.address("next_thread")), a["part"]))
        with jobs(f, a.address("next"), a["jobs"]) as job:
            block, rest = f.rem(job, a["blocks"]), f.div(job, a["blocks"])
            run, group = f.rem(rest, a["runs"]), f.div(rest, a["runs"])
            record = f.at(a["block"], f.mul(block, a["block_size"]), I64)
            fields = {name: f.load(I64, f.at(record, i, I64)) for i, name in enumerate(BLOCK)}
            tiles = f.at(a["tile"], f.mul(fields["tiles"], len(TILE)), I64)
            work = _Work(f, a, mine, record, fields, tiles, group)
            _emit_operand(work, layout)
            first = f.mul(run, a["units"])
            stop = f.min(a["all_units"], f.add(first, a["units"]))
            with f.loop(first, stop) as unit:
                _emit_unit(work, unit.index, layout)
    return Code(module, ("run",), cpu, opt=1)


@dataclass(frozen=True, slots=True)
class _Work:
    """A job inside `run`."""

    f: Function
    a: Arguments
    mine: Value
    record: Value
    fields: dict[str, Value]
    tiles: Value
    group: Value


def _emit_operand(work: _Work, layout: DataLayout) -> None:
    """Pack a block's rows and transform its windows, some channels at a time."""
    f, a, b = work.f, work.a, work.fields
    wide = f.mul(a["chunk"], a["element"])
    src = f.at(a["x"], f.mul(work.group, a["x_group"]))
    with f.loop(0, a["channels"], a["chunk"]) as loop:
        live = f.min(a["chunk"], f.sub(a["channels"], loop.index))
        here = f.at(src, f.mul(loop.index, a["x_channel"]))
        with f.loop(b["rows"], f.add(b["rows"], b["row_count"])) as row:
            entry = f.at(a["row"], f.mul(row.index, len(ROW)), I64)
            place, image, position = (f.load(I64, f.at(entry, i, I64)) for i in range(len(ROW)))
            dst = f.at(work.mine, f.mul(place, wide))
            outside = f.compare("slt", image, 0)
            with f.when(outside):
                _zeros(work, dst, a["span"])
            with f.unless(outside):
                _zeros(work, dst, b["before"])
                inside = f.at(dst, f.mul(b["before"], wide))
                position = f.add(position, b["column"])
                offset = f.add(f.mul(image, a["x_image"]), f.mul(position, a["x_position"]))
                given = f.at(here, offset)
                if layout is DataLayout.NCX:
                    f.call(a["turn"], inside, given, live, b["count"], a["x_channel"], wide)
                else:
                    f.call(
                        a["fill"], inside, given, live, f.sub(a["chunk"], live), b["count"], wide,
                        a["x_position"],
                    )  # fmt: skip
                after = f.add(b["before"], b["count"])
                _zeros(work, f.at(dst, f.mul(after, wide)), f.sub(a["span"], after))
        vectors = f.div(f.add(live, f.sub(a["lanes"], 1)), a["lanes"])
        v = f.at(work.mine, a["v_at"])
        v = f.at(v, f.mul(f.mul(loop.index, a["phases"]), a["element"]))
        with f.loop(0, a["phases"]) as phase:
            first = f.load(I64, f.at(a["phase"], phase.index, I64))
            f.call(
                a["input"], f.at(work.mine, f.mul(first, wide)),
                f.at(v, f.mul(f.mul(phase.index, live), a["element"])), work.tiles,
                b["tile_count"], vectors, a["x_step_0"], a["x_step_1"], a["v_point"], a["v_row"],
            )  # fmt: skip


def _zeros(work: _Work, dst: Value, positions: Value) -> None:
    f, a = work.f, work.a
    f.call(a["fill"], dst, dst, 0, f.mul(positions, a["chunk"]), 1, 0, 0)


def _emit_unit(work: _Work, unit: Value, layout: DataLayout) -> None:
    """Products of all points, their inverse, and where its results go."""
    f, a, b, mine = work.f, work.a, work.fields, work.mine
    phase, chunk = f.div(unit, a["chunks"]), f.rem(unit, a["chunks"])
    number = f.add(f.mul(work.group, a["all_units"]), unit)
    u = f.at(a["w"], f.mul(number, a["w_unit"]))
    rows = f.div(f.add(b["tile_count"], f.sub(a["rows"], 1)), a["rows"])
    z, stage = f.at(mine, a["z_at"]), f.at(mine, a["stage_at"])
    with f.loop(0, a["points"]) as point:
        f.call(
            a["products"], f.at(f.at(mine, a["v_at"]), f.mul(point.index, a["v_point"])),
            f.at(u, f.mul(point.index, a["w_point"])), f.at(z, f.mul(point.index, a["z_point"])),
            a["depth"], rows, a["panels"], a["z_row"],
        )  # fmt: skip
    biases = f.mul(f.add(f.mul(work.group, a["chunks"]), chunk), a["columns"])
    position = f.mul(a["padded"], a["element"])
    f.call(
        a["inverse"], z, stage, work.tiles, b["tile_count"], f.div(a["columns"], a["lanes"]),
        f.at(a["bias"], f.mul(biases, a["element"])), a["y_step_0"], a["y_step_1"],
        f.mul(a["columns"], a["element"]), position, a["z_point"], a["z_row"], a.address("bad"),
    )  # fmt: skip
    start = f.mul(chunk, a["live"])
    live = f.min(a["live"], f.sub(a["made"], start))
    channel = f.add(f.mul(work.group, a["y_group"]), f.mul(start, a["y_channel"]))
    of_phase = f.at(work.record, f.add(f.mul(phase, 2), len(BLOCK)), I64)
    first, count = f.load(I64, of_phase), f.load(I64, f.at(of_phase, 1, I64))
    with f.loop(first, f.add(first, count)) as row:
        entry = f.at(a["result"], f.mul(row.index, len(ROW)), I64)
        place, image, to = (f.load(I64, f.at(entry, i, I64)) for i in range(len(ROW)))
        src = f.at(stage, f.mul(f.add(place, b["skip"]), position))
        offset = f.add(f.mul(image, a["y_image"]), f.mul(to, a["y_position"]))
        _emit_result(work, layout, src, f.add(offset, channel), live)


def _emit_result(work: _Work, layout: DataLayout, src: Value, offset: Value, live: Value) -> None:
    """A row of results, of `live` channels, to its place in y."""
    f, a, count = work.f, work.a, work.fields["results"]
    position = f.mul(a["padded"], a["element"])
    y, more = f.at(a["y"], offset), f.at(a["residual"], offset)
    if layout is DataLayout.NXC:
        # Where a unit has all channels, a row is one run.
        runs = f.select(f.compare("ne", a["whole"], 0), f.integer(1), count)
        length = f.select(f.compare("ne", a["whole"], 0), f.mul(count, live), live)
        f.call(
            a["finish"], src, y, more, 1, 0, 0, runs, length, position, a["y_position"]
        )  # fmt: skip
        return
    plain = f.compare("eq", a["late"], 0)
    with f.when(plain):
        f.call(a["turn_back"], y, src, count, live, position, a["y_channel"])
    with f.unless(plain):
        turned, line = f.at(work.mine, a["turned_at"]), f.mul(count, a["element"])
        f.call(a["turn_back"], turned, src, count, live, position, line)
        f.call(a["finish"], turned, y, more, live, line, a["y_channel"], 1, count, 0, 0)
