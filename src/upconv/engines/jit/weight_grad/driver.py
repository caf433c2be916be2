"""The functions that the walk calls for a weight gradient, as its tables say.

    job(args, mine, job, set)       packs operands and computes the blocks of a job's units, for a
                                    set's spatial blocks
    finish(args, mine, block, _)    adds the sets' sums of a block, and stores them in dw

A thread's memory `mine` begins with the keys of its packed panels of rows and of lanes. A block's
sums, space to transpose them, and the panels follow.
"""

from __future__ import annotations

from .. import walk
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module, signature
from ..kernel_arguments import ArgumentLayout, Arguments
from ..rows import converted
from ..transpose import TRANSPOSE, paired, read_for_pairs
from ..values import BYTES, I1, I32, I64, Value, vector
from .tables import BLOCK, JOB, OUTER, PANEL, RUN, SET, STRETCH, UNIT, WORK

SUMS = 64
"""Bytes of a thread's memory before a block's sums."""
TABLES = (
    "units", "works", "blocks", "outer", "runs", "segments", "stretches", "rows_panels",
    "lanes_panels",
)  # fmt: skip
_SIDE = "image channel position line packed panel size width step"
ARGUMENTS = ArgumentLayout(
    walk.NUMBERS
    + "stages* dw* rows* lanes* zeros* tile* single* clear* rows_copy* lanes_copy* transpose* "
    + "deliver* add* "
    + "".join(f"{name}* " for name in TABLES)
    + "".join(f"{side}_{name} " for side in ("rows", "lanes") for name in _SIDE.split())
    + "set_count set_bytes element tile_rows tile_width spare taps_inside transposed"
    " by_row by_lane by_tap one_block clears kernel",
    counters=walk.COUNTERS,
)
_PACK = signature("args* mine* work* unit*")
_BLOCK = signature("args* mine* work* unit* block* sums* fresh")
DELIVER = signature("args* mine* block* sums*")


@compiled("copy", kept=16)
def copy_code(module: Module, stored: str, computed: str, beside: int, cpu: Cpu) -> None:
    """Emit `copy`, which copies channels-last positions of `rows` numbers each, padded with zeros.
    It may store past the end of a packed position, which the next position overwrites. With 32-bit
    integers, each number is paired with the one `beside` positions later."""
    lanes = cpu.lanes(BYTES[computed])
    stored = read_for_pairs(stored) if computed == I32 else stored
    with module.function("copy", TRANSPOSE) as f:
        width = f["dst_row"] // BYTES[computed]
        with f.loop(0, f["columns"]) as column, f.loop(0, width, lanes) as loop:
            mask = f.lanes_below(f["rows"] - loop.index, lanes)
            src = f["src"] + column.index * f["src_row"]
            dst = f["dst"] + column.index * f["dst_row"]
            kind = vector(stored, lanes)
            numbers = f.load_lanes(kind, f.at(src, loop.index, stored), mask)
            if computed == I32:
                last = f["columns"] - 1
                other = f["src"] + f.min(column.index + beside, last) * f["src_row"]
                other = f.load_lanes(kind, f.at(other, loop.index, stored), mask)
                numbers = paired(f, numbers, other)
            f.store(converted(f, numbers, computed), f.at(dst, loop.index, computed))


@compiled("job", "finish", kept=8, opt=1)
def driver_code(module: Module, cpu: Cpu) -> None:
    """Emit all functions except tiles and copies."""
    for slot, side in enumerate(("rows", "lanes")):
        _emit_pack(module, side, slot)
    _emit_block(module)
    emit_deliver(module, ARGUMENTS)
    _emit_job(module)
    emit_finish(module, ARGUMENTS)


def emit_finish(module: Module, arguments: ArgumentLayout) -> None:
    """Emit `finish`, which calls `deliver`."""
    with module.function("finish", walk.JOB) as f:
        a, block = arguments.reader(f), fields(f, f["inner"], BLOCK)
        sums = a["stages"] + block["sums"]
        numbers = block["count"] * a["tile_rows"] * a["tile_width"]
        with f.loop(1, a["set_count"]) as loop:
            more = sums + loop.index * a["set_bytes"]
            f.call(a["add"], more, sums, sums, 1, 0, 0, 1, numbers, 0, 0, sums, 0)
        f.call("deliver", f["args"], f["mine"], f["inner"], sums)


def fields(f: Function, row: Value, names: tuple[str, ...]) -> dict[str, Value]:
    """Load a table row's numbers, by name."""
    return {name: f.word(row, i) for i, name in enumerate(names)}


def row_of(f: Function, table: Value, number: Value, names: tuple[str, ...]) -> Value:
    """Return the address of a table's row."""
    return f.at(table, number * len(names), I64)


def _emit_job(module: Module) -> None:
    with module.function("job", walk.JOB) as f:
        a = ARGUMENTS.reader(f)
        job, sums_set = fields(f, f["inner"], JOB), fields(f, f["outer"], SET)
        kept = a["one_block"] < 1  # whether sums are kept from one spatial block to the next
        start, stop = sums_set["works"], sums_set["works"] + sums_set["count"]
        # The last spatial block stores the sums in dw, unless other sets have sums to add.
        last = f.select(a["set_count"] > 1, -1, stop + -1)
        units = job["units"], job["units"] + job["count"]
        with f.loop(start, stop) as number, f.loop(*units) as unit_number:
            work = row_of(f, a["works"], number.index, WORK)
            at = row_of(f, a["units"], unit_number.index, UNIT)
            unit = fields(f, at, UNIT)
            for side in ("rows", "lanes"):
                f.call(f"pack_{side}", f["args"], f["mine"], work, at)
            with f.loop(unit["blocks"], unit["blocks"] + unit["count"]) as loop:
                block = row_of(f, a["blocks"], loop.index, BLOCK)
                shared = a["stages"] + (sums_set["sums"] + f.word(block))
                sums = f.select(kept, shared, f["mine"] + SUMS)
                fresh = number.index - start
                f.call("block", f["args"], f["mine"], work, at, block, sums, fresh)
                with f.when(f.compare("eq", number.index, last)):
                    f.call("deliver", f["args"], f["mine"], block, sums)


def _emit_pack(module: Module, side: str, slot: int) -> None:
    """Emit a function that packs an operand's panels for a unit, unless the thread has them."""
    with module.function(f"pack_{side}", _PACK, exported=False) as f:
        a = ARGUMENTS.reader(f)
        work, unit = fields(f, f["work"], WORK), fields(f, f["unit"], UNIT)
        key, packed_key = work["key"] + unit[side], f.at(f["mine"], slot, I64)
        missing = f.compare("ne", f.load(I64, packed_key), key)
        with f.when(missing & (a[f"{side}_packed"] > 0)):
            f.store(key, packed_key)
            width = a[f"{side}_width"]
            row_bytes = width * a["element"]
            image, position, line = (a[f"{side}_{name}"] for name in ("image", "position", "line"))
            stretches, panels = work[f"{side}_count"], unit[f"{side}_count"]
            # Pack plane by plane with channels first, pixel by pixel with channels last.
            planes = a["clears"] > 0
            with f.loop(0, stretches * panels) as loop:
                inner_count = f.select(planes, stretches, panels)
                outer, inner = loop.index // inner_count, loop.index % inner_count
                row, number = f.select(planes, inner, outer), f.select(planes, outer, inner)
                stretch = fields(f, row_of(f, a["stretches"], work[side] + row, STRETCH), STRETCH)
                panel = row_of(f, a[f"{side}_panels"], unit[side] + number, PANEL)
                channel, active = (f.word(panel, i) for i in range(len(PANEL)))
                src = a[side] + (stretch["image"] * image + stretch["position"] * position)
                src = src + channel * a[f"{side}_channel"]
                dst = f["mine"] + a[f"{side}_panel"] + number * a[f"{side}_size"]
                dst = dst + stretch["before"] * row_bytes
                # Arbitrary bits after the last channel could be subnormal numbers, which are slow.
                with f.when(planes & (active < width)):
                    f.call(a["clear"], dst, src, 0, stretch["length"] * width, 1, 0, 0)
                f.call(a[f"{side}_copy"], dst, src, active, stretch["length"], line, row_bytes)


def _panel(f: Function, side: str, number: Value) -> Value:
    """Return the address at which a block reads an operand, from a panel's number in the unit."""
    a, first = ARGUMENTS.reader(f), f.word(f["unit"], UNIT.index(side))
    panel = row_of(f, a[f"{side}_panels"], first + number, PANEL)
    in_place = a[side] + f.word(panel) * a[f"{side}_channel"]
    packed = f["mine"] + a[f"{side}_panel"] + number * a[f"{side}_size"]
    return f.select(a[f"{side}_packed"] > 0, packed, in_place)


def _emit_block(module: Module) -> None:
    """Emit `block`, which calls a tile for each outer tap and each run."""
    with module.function("block", _BLOCK, exported=False) as f:
        a = ARGUMENTS.reader(f)
        work, block = fields(f, f["work"], WORK), fields(f, f["block"], BLOCK)
        by_row, by_tap = _steps(a, block)
        rows, lanes = _panel(f, "rows", block["panel"]), _panel(f, "lanes", f.integer(0))
        with f.loop(block["entries"], block["entries"] + block["entry_count"]) as loop:
            number = loop.index // work["run_count"]
            at = row_of(f, a["outer"], work["outer"] + number, OUTER)
            outer = fields(f, at, OUTER)
            at = row_of(f, a["runs"], work["runs"] + loop.index % work["run_count"], RUN)
            run = fields(f, at, RUN)
            tap = number * a["kernel"] + run["tap"] - block["tap"]
            out, single = f["sums"] + tap * by_tap, run["single"] > 0
            # The first run of taps that a tile takes together starts all of their sums.
            fresh = (f["fresh"] < 1) & (run["single"] < 1)
            with f.when(fresh | (run["positions"] > 0)):
                f.call(
                    f.select(single, a["single"], a["tile"]),
                    f.at(a["segments"], outer["segments"] * 2, I64), outer["count"],
                    rows + run["row"], lanes + run["lane"], run["positions"],
                    a["rows_step"], a["lanes_step"],
                    f.select(fresh, a["zeros"], out), f.select(fresh, 0, by_row),
                    f.select(fresh, 0, by_tap), out, by_row, by_tap,
                )  # fmt: skip


def _steps(a: Arguments, block: dict[str, Value]) -> tuple[Value, Value]:
    """Return the bytes from one row of a block's sums to the next, and from one tap to the next.
    The sums are [outer][inner][lane]."""
    width = a["tile_width"] * a["element"]
    by_row = width + width * (block["count"] + -1) * a["taps_inside"]
    by_tap = width + width * (a["tile_rows"] + -1) * (1 - a["taps_inside"])
    return by_row, by_tap


def emit_deliver(module: Module, arguments: ArgumentLayout, name: str = "deliver") -> None:
    """Emit `deliver`, which stores a block's sums in dw."""
    with module.function(name, DELIVER, exported=False) as f:
        a, block = arguments.reader(f), fields(f, f["block"], BLOCK)
        inside, width = a["taps_inside"] > 0, a["tile_width"] * a["element"]

        def either(rows: Value, taps: Value) -> tuple[Value, Value]:
            return f.select(inside, rows, taps), f.select(inside, taps, rows)

        outer, inner = either(a["tile_rows"], block["count"])
        active_outer, active_inner = either(block["active_rows"], block["count"])
        by_outer, by_inner = either(a["by_row"], a["by_tap"])
        sums, dw, lanes = f["sums"], a["dw"] + block["dw"], block["active_lanes"]
        back = a["transposed"] > 0
        with f.when(back):
            # [lane][outer][inner]
            transposed, line = f["mine"] + a["spare"], outer * inner * a["element"]
            f.call(a["transpose"], transposed, sums, outer * inner, lanes, width, line)
            # If outer rows are contiguous in dw, too, they are one row.
            one = f.compare("eq", by_outer, active_inner * by_inner)
            one = f.select(f.compare("eq", active_inner, inner), one, Value(I1, "false"))
            outers = f.select(one, 1, active_outer)
            length = f.select(one, active_outer * active_inner, active_inner)
            f.call(
                a["deliver"], transposed, dw, dw, outers, inner * a["element"], by_outer,
                lanes, length, line, a["by_lane"], dw, 0,
            )  # fmt: skip
        with f.unless(back):
            f.call(
                a["deliver"], sums, dw, dw, active_outer, inner * width, by_outer,
                active_inner, lanes, width, by_inner, dw, 0,
            )  # fmt: skip
