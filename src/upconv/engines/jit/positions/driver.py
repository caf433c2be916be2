"""The spatially vectorised kernel around its tiles: packing cache blocks of the input, and jobs.

Compiled once per process: what differs between layers is in its arguments, in tables, and in the
functions it calls by their addresses. What runs for each row or tile (`emit_inner`;
results.py has what happens to a tile) is a module of its own: the rest is called too seldom
to be worth LLVM's time.
"""

from __future__ import annotations

from .. import pool
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module, signature
from ..kernel_arguments import Arguments, jobs, wait
from ..values import I64, PTR, Value
from .results import ARGUMENTS, BLOCK, NO, SAME, emit_spread, emit_tiles

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
        a = ARGUMENTS.reader(f)
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
    """One piece of the shared packing: some channels of some positions of a group."""
    position_count = a["total"] + (a["halo_before"] + a["halo_after"])
    position_parts = (position_count + (a["pack_positions"] - 1)) // a["pack_positions"]
    channel_parts = (a["channels"] + (a["pack_channels"] - 1)) // a["pack_channels"]
    part, rest = job % position_parts, job // position_parts
    first = part * a["pack_positions"]
    channel = rest % channel_parts * a["pack_channels"]
    group = rest // channel_parts
    place = group * a["buffer_part"] + channel * a["buffer_channel"]
    end = f.min(position_count, first + a["pack_positions"])
    f.call(
        a["pack"], f["args"], a["buffer"] + (place + first * a["element"]), group,
        first - a["halo_before"], end - a["halo_before"],
        channel, f.min(a["channels"], channel + a["pack_channels"]),
    )  # fmt: skip


def _emit_pack(module: Module) -> None:
    """`pack`: positions [first, last) of channels [low, high) of a group, zeros included."""
    with module.function("pack", signature("args* dst* group first last low high")) as f:
        a = ARGUMENTS.reader(f)
        row_stride, lead = a["in_row_stride"], a["lead"]
        # Rows before the first are counted too, so that divisions see no negative number.
        first = f["first"] + lead * row_stride
        last = f["last"] + lead * row_stride
        start, stop = first // row_stride, (last + (row_stride - 1)) // row_stride
        x = a["x"] + f["group"] * a["x_group"] + f["low"] * a["x_channel"]
        channels = f["high"] - f["low"]
        with f.loop(start, stop) as each:
            origin = each.index * row_stride
            low = f.max(first, origin) - origin
            high = f.min(last, origin + row_stride) - origin
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
    """`job`: one cache block of one group for a run of blocks, of each all combinations of
    phases."""
    parameters = signature("args* stage* thread number")
    with module.function("job", parameters, exported=False) as f:
        a = ARGUMENTS.reader(f)
        cache_blocks, runs = a["cache_blocks"], a["block_runs"]
        cache_block, rest = f["number"] % cache_blocks, f["number"] // cache_blocks
        run, group = rest % runs, rest // runs
        first = cache_block * a["cache_block"]
        last = f.min(a["total"], first + a["cache_block"])
        shared = f.compare("ne", a["shared"], 0)
        buffer = a["buffer"] + f.select(shared, group, f["thread"]) * a["buffer_part"]
        with f.when(f.compare("eq", a["shared"], 0)):
            low, high = first - a["halo_before"], last + a["halo_after"]
            f.call(a["pack"], f["args"], buffer, group, low, high, 0, a["channels"])
        x = buffer + f.select(shared, first * a["element"], 0)
        start = run * a["block_run"]
        stop = f.min(a["block_count"], start + a["block_run"])
        with f.loop(start, stop) as block, f.loop(0, a["phase_tuple_count"]) as phase_tuple:
            fields = f.at(a["blocks"], block.index * len(BLOCK), I64)
            place = f.word(a["places"], phase_tuple.index * a["block_count"] + block.index)
            w = a["w"] + (group * a["w_group"] + place)
            own = f.at(a["phase_tuples"], phase_tuple.index * 2, I64)
            taps, count = f.word(own), f.word(own, 1)
            fixed = [f["args"], f["stage"], fields, w, f.at(a["taps"], taps, I64), count]
            f.call(a["spans"], *fixed, group, phase_tuple.index, x, first, last)


def _emit_spans(module: Module) -> None:
    """`spans`: the runs of positions of a cache block, each begun by a tile of its own."""
    with module.function("spans", SAME | signature("x* first last")) as f:
        a = ARGUMENTS.reader(f)
        main, tail = (f.load(PTR, f.at(f["block"], i, I64)) for i in (0, 1))
        same = [f[name] for name in SAME]
        lanes, vectors = a["lanes"], a["vectors"]
        width = lanes * vectors
        with f.loop(f["first"], f["last"], a["span_step"]) as span:
            length = f.min(f["last"] - span.index, a["span"])
            whole = length // width
            rest = (length - whole * width + (lanes - 1)) // lanes
            # A rest of nearly a whole tile is cheaper as one than in single vectors.
            nearly = rest > a["most_tail_vectors"]
            tile, own = f.select(nearly, main, tail), f.select(nearly, width, lanes)
            middle = whole * width
            # Its tiles end where the run does, and compute some results again, rather than store
            # what lies behind it by way of the stage; but where they are added, only once.
            behind = f.select(nearly, vectors, rest) * lanes
            early = f.max(f.min(middle, length - behind), 0)
            early = f.select(f.compare("ne", a["direct"], 0), early, middle)
            end = span.index + length
            for start, stop, code, size in (
                (f.integer(0), middle, main, width), (early, early + behind, tile, own),
            ):  # fmt: skip
                start, stop = span.index + start, span.index + stop
                with f.when(start < stop):
                    x = f["x"] + (start - f["first"]) * a["element"]
                    f.call("tiles", *same, code, x, start, stop, size, end)
