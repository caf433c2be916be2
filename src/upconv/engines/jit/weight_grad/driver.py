"""What walks the tables of a weight gradient: the loop over jobs, packing, tiles, and delivery.

    run(args)                  every thread: takes jobs in order, and does their steps
    pack(args, mine, step)     rows of x or g into a panel, unless they are there
    block(...)                 a block of dw: for each of its taps a tile over the tap's segments
    finish(...)                sums of a block into dw

`mine` is memory of a thread: sums of a block, room to transpose them, panels. The tile is a
function of its own, one for each class.
"""

from __future__ import annotations

from itertools import product

from ....problem import DataLayout
from .. import pool
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module, signature
from ..kernel_arguments import ArgumentLayout, Arguments, jobs, wait
from ..values import BYTES, I64, PTR, Value, vector
from .schedule import ENTRY, HEAD
from .tile import Tile

ARGUMENTS = ArgumentLayout(
    "buffer* rows* lanes* stages* dw* x* g* job* steps* places* entries* segments* zeros*"
    " tile* single* transpose* fill* transpose_back* deliver* add*"
    " rows_in_place lanes_in_place held x_held x_panels x_size g_held g_panels g_size jobs element"
    " part sets set_bytes tile_rows tile_width spare row_step lane_step taps_inside transposed"
    " by_row by_lane by_tap x_image x_channel x_position g_image g_channel g_position",
    counters="next done next_thread",
)
PACK = ("to", "key", "width", "active", "rows", "count", "length", "of_g", "channel", "position")
BLOCK = (
    "to", "rows", "lanes", "entries", "entry_count", "tap", "count", "fresh",
    "active_rows", "active_lanes", "dst",
)  # fmt: skip
STEP = 1 + len(BLOCK)  # the function, its fields
JOB = ("first", "count", "after")  # its steps, and the jobs that must be over
_WORK = signature("args* mine* step*")
_TILE = signature(
    "segments* count"  # pairs of byte offsets into the panels
    " rows* lanes* positions"  # the latter of each segment
    " row_step lane_step"  # bytes from one position to the next
    " start* start_row start_tap"  # sums so far
    " out* out_row out_tap"
)


@compiled("tile", kept=64)
def tile_code(module: Module, tile: Tile, cpu: Cpu) -> None:
    """`tile` of one class."""
    with module.function("tile", _TILE) as f:
        _emit_tile(f, tile)


def _emit_tile(f: Function, tile: Tile) -> None:
    kind, size = vector(tile.element, tile.lanes), BYTES[tile.element]
    places = list(product(range(tile.taps), range(tile.rows), range(tile.vectors)))

    def spot(name: str, tap: int, row: int, line: int) -> Value:
        offset = f[f"{name}_tap"] * tap + f[f"{name}_row"] * row
        return f[name] + offset + line * tile.lanes * size

    def products(row: Value, lane: Value, sums: list[Value]) -> list[Value]:
        lines = [f.load(kind, lane + v * tile.lanes * size) for v in range(tile.vectors)]
        made = []
        for (tap, r, v), total in zip(places, sums, strict=True):
            if tile.depthwise:
                factor = f.load(kind, row + (tap * tile.step + v * tile.lanes * size))
            elif v == 0:
                number = f.load(tile.element, row + (tap * tile.step + r * size))
                factor = f.broadcast(number, tile.lanes)
            made.append(f.multiply_add(factor, lines[v], total))
        return made

    each, n = tile.sums, len(places)
    starts = [f.load(kind, spot("start", *place)) for place in places]
    starts += [f.constant(kind, 0.0)] * (n * (each - 1))
    whole = f["positions"] // each * each
    with f.loop(0, f["count"], carried=starts) as segment:
        entry = f.at(f["segments"], segment.index * 2, I64)
        row, lane = (f[s] + f.word(entry, i) for i, s in enumerate(("rows", "lanes")))
        with f.loop(0, whole, each, [*segment.carried, row, lane]) as position:
            *sums, row, lane = position.carried
            made: list[Value] = []
            for i in range(each):
                made += products(row, lane, sums[i * n : (i + 1) * n])
                row, lane = row + f["row_step"], lane + f["lane_step"]
            position.next([*made, row, lane])
        *sums, row, lane = position.results
        if each > 1:
            with f.loop(whole, f["positions"], 1, [*sums[:n], row, lane]) as position:
                *first, row, lane = position.carried
                first = products(row, lane, first)
                position.next([*first, row + f["row_step"], lane + f["lane_step"]])
            sums[:n] = position.results[:n]
        segment.next(sums)
    for i, place in enumerate(places):
        total = segment.results[i]
        for more in range(1, each):
            total = total + segment.results[more * n + i]
        f.store(total, spot("out", *place))


@compiled("run", "pack", "block", "finish", kept=8, opt=1)
def driver_code(module: Module, layout: DataLayout, cpu: Cpu) -> None:
    """Everything else, for data of one layout."""
    _emit_pack(module, layout)
    _emit_block(module)
    _emit_finish(module)
    with module.function("run", {"args": PTR}) as f:
        a = ARGUMENTS.reader(f)
        mine = a["buffer"] + f.take(a.address("next_thread")) * a["part"]
        for side in ("x", "g"):
            # What lies there from earlier runs is not what it seems to be.
            with f.loop(0, a[f"{side}_held"]) as loop:
                place = a[f"{side}_panels"] + loop.index * a[f"{side}_size"]
                f.store(f.integer(-1), mine + a["held"] + place)
        with jobs(f, a.address("next"), a["jobs"]) as number:
            job = f.at(a["job"], number * len(JOB), I64)
            first, count, before = (f.word(job, i) for i in range(len(JOB)))
            wait(f, a.address("done"), before, cpu.triple, pool.switch())
            with f.loop(first, first + count) as loop:
                step = f.at(a["steps"], loop.index * STEP, I64)
                f.call(f.load(PTR, step), f["args"], mine, step)
            f.take(a.address("done"))


def _fields(f: Function, names: tuple[str, ...]) -> dict[str, Value]:
    return {name: f.word(f["step"], 1 + i) for i, name in enumerate(names)}


def _emit_pack(module: Module, layout: DataLayout) -> None:
    with module.function("pack", _WORK) as f:
        a, r = ARGUMENTS.reader(f), _fields(f, PACK)
        of_g = f.compare("ne", r["of_g"], 0)
        base, image, channel, position = (
            f.select(of_g, a[f"g{name}"], a[f"x{name}"])
            for name in ("", "_image", "_channel", "_position")
        )
        src = base + (r["channel"] * channel + r["position"] * position)
        dst = f["mine"] + a["held"] + r["to"]
        key = dst + -HEAD
        with f.when(f.compare("ne", f.load(I64, key), r["key"])):
            f.store(r["key"], key)
            row = r["width"] * a["element"]
            behind = r["width"] - r["active"]
            if layout is DataLayout.NCX:
                # What lies behind the last channel must be numbers, if only not to be slow.
                with f.when(behind > 0):
                    every = r["count"] * r["length"] * r["width"]
                    f.call(a["fill"], dst, src, 0, every, 1, 0, 0)
            with f.loop(0, r["count"]) as loop:
                place = f.at(a["places"], (r["rows"] + loop.index) * 2, I64)
                number, before = f.load(I64, place), f.word(place, 1)
                here = src + (number * image + before * position)
                to = dst + loop.index * r["length"] * row
                if layout is DataLayout.NCX:
                    f.call(a["transpose"], to, here, r["active"], r["length"], channel, row)
                else:
                    f.call(a["fill"], to, here, r["active"], behind, r["length"], row, position)


def _emit_block(module: Module) -> None:
    with module.function("block", _WORK) as f:
        a, r = ARGUMENTS.reader(f), _fields(f, BLOCK)
        stage, row, step = _stage(f, a, r)
        held = f["mine"] + a["held"]
        rows, lanes = (
            f.select(f.compare("ne", a[f"{side}_in_place"], 0), a[side], held)
            for side in ("rows", "lanes")
        )
        with f.loop(0, r["entry_count"]) as loop:
            place = f.at(a["entries"], (r["entries"] + loop.index) * len(ENTRY), I64)
            entry = {name: f.word(place, i) for i, name in enumerate(ENTRY)}
            single = f.compare("ne", entry["single"], 0)
            # The first entry of a tap makes its sums, with those of its neighbours.
            fresh = f.compare("ne", r["fresh"], 0) & f.compare("eq", entry["single"], 0)
            work = (entry["positions"] > 0) | fresh
            out = stage + (entry["tap"] - r["tap"]) * step
            with f.when(work):
                f.call(
                    f.select(single, a["single"], a["tile"]),
                    f.at(a["segments"], entry["segments"] * 2, I64), entry["count"],
                    rows + (r["rows"] + entry["row"]),
                    lanes + (r["lanes"] + entry["lane"]),
                    entry["positions"], a["row_step"], a["lane_step"],
                    f.select(fresh, a["zeros"], out), f.select(fresh, 0, row),
                    f.select(fresh, 0, step), out, row, step,
                )  # fmt: skip
        with f.when(r["dst"] >= 0):
            f.call("finish", f["args"], f["mine"], f["step"])


def _stage(f: Function, a: Arguments, r: dict[str, Value]) -> tuple[Value, Value, Value]:
    """Where a block's sums lie, and the bytes from one row to the next and from one tap."""
    own = r["to"] < 0
    stage = f.select(own, f["mine"], a["stages"] + r["to"])
    width, inside = a["tile_width"] * a["element"], f.compare("ne", a["taps_inside"], 0)
    row = width * f.select(inside, r["count"], 1)
    return stage, row, width * f.select(inside, 1, a["tile_rows"])


def _emit_finish(module: Module) -> None:
    with module.function("finish", _WORK) as f:
        a, r = ARGUMENTS.reader(f), _fields(f, BLOCK)
        stage, _, _ = _stage(f, a, r)
        inside = f.compare("ne", a["taps_inside"], 0)
        dst = a["dw"] + r["dst"]
        # Sums are [outer][inner][lane].
        outer = f.select(inside, a["tile_rows"], r["count"])
        inner = f.select(inside, r["count"], a["tile_rows"])
        live_outer = f.select(inside, r["active_rows"], r["count"])
        live_inner = f.select(inside, r["count"], r["active_rows"])
        by_outer = f.select(inside, a["by_row"], a["by_tap"])
        by_inner = f.select(inside, a["by_tap"], a["by_row"])
        width, element = a["tile_width"] * a["element"], a["element"]
        every = outer * inner
        with f.loop(1, a["sets"]) as loop:
            more = stage + loop.index * a["set_bytes"]
            f.call(a["add"], more, stage, stage, 1, 0, 0, 1, every * a["tile_width"], 0, 0)
        back = f.compare("ne", a["transposed"], 0)
        with f.when(back):
            # [lane][outer][inner]
            transposed, line = f["mine"] + a["spare"], every * element
            f.call(a["transpose_back"], transposed, stage, every, r["active_lanes"], width, line)
            f.call(
                a["deliver"], transposed, dst, dst, live_outer, inner * element, by_outer,
                r["active_lanes"], live_inner, line, a["by_lane"],
            )  # fmt: skip
        with f.unless(back):
            f.call(
                a["deliver"], stage, dst, dst, live_outer, inner * width, by_outer,
                live_inner, r["active_lanes"], width, by_inner,
            )  # fmt: skip
