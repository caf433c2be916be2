"""The positions kernel around its tiles: packing windows of the input, and jobs.

Compiled once per process: what differs between layers is in its arguments, in tables, and in the
functions it calls by their addresses. What runs for each row or tile (`emit_inner`;
result_stores.py has what happens to a tile) is a module of its own: the rest is called too seldom
to be worth LLVM's time.
"""

from __future__ import annotations

from . import pool
from .compile import compiled
from .cpu import Cpu
from .emit import Function, Module, signature
from .kernel_arguments import Arguments, jobs, wait
from .result_stores import BLOCK, NO, SAME, SLOTS, emit_spread, emit_tiles
from .values import I64, PTR, Value

STAGE_BYTES = 8192


@compiled("pack", "spans", kept=4, opt=1)
def inner_code(module: Module, cpu: Cpu) -> None:
    """The functions `pack` and `spans`, which jobs call.

    Less optimising takes less time, and what it makes is no slower: 0 to 6 % faster on 12 layers.
    """
    _emit_pack(module)
    emit_spread(module)
    emit_tiles(module)
    _emit_spans(module)


@compiled("positions", kept=4, opt=0)
def driver_code(module: Module, cpu: Cpu) -> None:
    """The function `positions(args)`, which every thread runs."""
    _emit_job(module)
    with module.function("positions", {"args": PTR}) as f:
        a = SLOTS.reader(f)
        thread = f.take(a.address("next_thread"))
        stage = f.scratch(STAGE_BYTES)
        with f.when(f.compare("ne", a["shared"], 0)):
            with jobs(f, a.address("next_pack"), a["pack_jobs"]) as job:
                _pack_shared(f, a, job)
                f.take(a.address("packed"))
            wait(f, a.address("packed"), a["pack_jobs"], cpu.triple, pool.switch())
        with jobs(f, a.address("next_job"), a["jobs"]) as job:
            f.call("job", f["args"], stage, thread, job)


def _pack_shared(f: Function, a: Arguments, job: Value) -> None:
    """One piece of the shared packing: some channels of some lanes of a group."""
    lane_count = a["total"] + (a["front"] + a["back"])
    lane_parts = (lane_count + (a["pack_lanes"] - 1)) // a["pack_lanes"]
    channel_parts = (a["channels"] + (a["pack_channels"] - 1)) // a["pack_channels"]
    part, rest = job % lane_parts, job // lane_parts
    lane = part * a["pack_lanes"]
    channel = rest % channel_parts * a["pack_channels"]
    group = rest // channel_parts
    place = group * a["buffer_part"] + channel * a["buffer_channel"]
    f.call(
        a["pack"], f["args"], a["buffer"] + (place + lane * a["element"]), group,
        lane - a["front"], f.min(lane_count, lane + a["pack_lanes"]) - a["front"],
        channel, f.min(a["channels"], channel + a["pack_channels"]),
    )  # fmt: skip


def _emit_pack(module: Module) -> None:
    """`pack`: lanes [first, last) of channels [low, high) of a group, zeros included."""
    with module.function("pack", signature("args* dst* group first last low high")) as f:
        a = SLOTS.reader(f)
        pitch, lead = a["in_pitch"], a["lead"]
        # Rows before the first are counted too, so that divisions see no negative number.
        first = f["first"] + lead * pitch
        last = f["last"] + lead * pitch
        start, stop = first // pitch, (last + (pitch - 1)) // pitch
        x = a["x"] + f["group"] * a["x_group"] + f["low"] * a["x_channel"]
        channels = f["high"] - f["low"]
        with f.loop(start, stop) as each:
            origin = each.index * pitch
            low = f.max(first, origin) - origin
            high = f.min(last, origin + pitch) - origin
            dst = f["dst"] + (origin + low - first) * a["element"]
            row, rows = each.index - lead, a["in_rows"]
            inside = f.compare("ult", row, rows * a["images"])
            safe = f.select(inside, row, 0)
            image, own = safe // rows, safe % rows
            offset = f.word(a["xrows"], own)
            end = f.select(f.select(inside, offset >= 0, NO), f.min(high, a["in_width"]), 0)
            count = f.max(end - low, 0)
            source = x + (image * a["x_image"] + offset + low * a["x_bytes"])
            zeros = high - low - count
            same = channels, a["buffer_channel"], a["x_channel"]
            f.call(a["fill"], dst, source, count, zeros, *same)


def _emit_job(module: Module) -> None:
    """`job`: one window of one group for a run of blocks, of each all combinations of phases."""
    parameters = signature("args* stage* thread number")
    with module.function("job", parameters, exported=False) as f:
        a = SLOTS.reader(f)
        windows, runs = a["windows"], a["block_runs"]
        window, rest = f["number"] % windows, f["number"] // windows
        run, group = rest % runs, rest // runs
        first = window * a["window"]
        last = f.min(a["total"], first + a["window"])
        shared = f.compare("ne", a["shared"], 0)
        buffer = a["buffer"] + f.select(shared, group, f["thread"]) * a["buffer_part"]
        with f.when(f.compare("eq", a["shared"], 0)):
            low, high = first - a["front"], last + a["back"]
            f.call(a["pack"], f["args"], buffer, group, low, high, 0, a["channels"])
        x = buffer + f.select(shared, first * a["element"], 0)
        start = run * a["block_run"]
        stop = f.min(a["block_count"], start + a["block_run"])
        with f.loop(start, stop) as block, f.loop(0, a["combo_count"]) as combo:
            fields = f.at(a["blocks"], block.index * len(BLOCK), I64)
            place = f.word(a["places"], combo.index * a["block_count"] + block.index)
            w = a["w"] + (group * a["w_group"] + place)
            own = f.at(a["combos"], combo.index * 2, I64)
            taps, count = f.word(own), f.word(own, 1)
            fixed = [f["args"], f["stage"], fields, w, f.at(a["taps"], taps, I64), count]
            f.call(a["spans"], *fixed, group, combo.index, x, first, last)


def _emit_spans(module: Module) -> None:
    """`spans`: the runs of lanes of a window, each begun by a tile of its own."""
    with module.function("spans", SAME | signature("x* first last")) as f:
        a = SLOTS.reader(f)
        wide, narrow = (f.load(PTR, f.at(f["block"], i, I64)) for i in (0, 1))
        same = [f[name] for name in SAME]
        lanes, vectors = a["lanes"], a["vectors"]
        width = lanes * vectors
        with f.loop(f["first"], f["last"], a["span_step"]) as span:
            length = f.min(f["last"] - span.index, a["span"])
            whole = length // width
            rest = (length - whole * width + (lanes - 1)) // lanes
            # A rest of nearly a whole tile is cheaper as one than in single vectors.
            nearly = rest > a["most_narrow"]
            tile, own = f.select(nearly, wide, narrow), f.select(nearly, width, lanes)
            middle = whole * width
            # Its tiles end where the run does, and compute some results again, rather than store
            # what lies behind it by way of the stage; but where they are added, only once.
            behind = f.select(nearly, vectors, rest) * lanes
            early = f.max(f.min(middle, length - behind), 0)
            early = f.select(f.compare("ne", a["direct"], 0), early, middle)
            end = span.index + length
            for start, stop, code, size in (
                (f.integer(0), middle, wide, width), (early, early + behind, tile, own),
            ):  # fmt: skip
                start, stop = span.index + start, span.index + stop
                with f.when(start < stop):
                    x = f["x"] + (start - f["first"]) * a["element"]
                    f.call("tiles", *same, code, x, start, stop, size, end)
