"""The walk's native steps, which fill the buffer and do the jobs in the placement tables.

    pack(args, mine, part, job)         part of the shared packing
    job(args, mine, cache_block, job)   a cache block for a run of blocks and all their phase tuples

They are compiled once per process. Layers differ in arguments, in tables, and in the functions that
the steps call by address. A tile writes to y or to the stage, from which pieces are copied to y.
The stage is for tiles that are not entirely outputs in one row, and for epilogues that tiles do not
apply.
"""

from __future__ import annotations

from .. import walk
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module, signature
from ..kernel_arguments import ArgumentLayout, Arguments, Record
from ..values import I64, LINE, PTR, Value
from .tables import BLOCK, CACHE_BLOCK, JOB, PHASE_TUPLE, PIECE, SEGMENT, SPAN, TILES
from .tile import AHEAD

STAGE_BYTES = 8192
_PREFETCHED = 2048  # maximum bytes of the next channel
ARGUMENTS = ArgumentLayout(
    walk.NUMBERS + "x* y* w* bias* residual*"  # operands
    " buffer*"  # packed input of all groups, if it is shared
    " fill* finish*"  # functions of rows.py
    " blocks* phase_tuples* segments* ranges* spans* tiles* pieces*"  # tables
    " taps*"  # byte offsets of outer taps from a tile's position in the buffer
    " phase_tuple_count element channels shared"
    " x_image x_channel y_image y_channel buffer_channel"
    " buffer_row x_row image_row"  # from one input row to the next
    " span_x span_y span_image"  # from one repetition of a span to the next
    " y_position lanes width"  # bytes of y; positions of a tail tile, and of a main one
    " slopes second",  # bytes from a bias to its slope, from y to the second result
    counters=walk.COUNTERS,
)
_BLOCK = signature("args* stage* block* w* taps* ntaps bias* to range* x* x_channel ahead")


@compiled("pack", "job", kept=4, opt=1)
def driver_code(module: Module, cpu: Cpu) -> None:
    """Emit the functions `pack` and `job`.

    A lower optimization level compiles faster, and its code is 0 to 6 % faster on 12 layers.
    """
    _emit_fill(module)
    _emit_block(module)
    with module.function("pack", walk.JOB) as f:
        a, part, job = ARGUMENTS.reader(f), *_rows(f)
        to = a["buffer"] + (job["channel"] * a["buffer_channel"] + part["x"])
        f.call("fill_all", f["args"], to, f["inner"], job["channel"], job["channels"])
    _emit_job(module)


def _rows(f: Function) -> tuple[Record, Record]:
    return Record(f, f["inner"], CACHE_BLOCK), Record(f, f["outer"], JOB)


def _emit_fill(module: Module) -> None:
    """Emit `fill_all`, which fills the segments of a cache block or part for some channels."""
    parameters = signature("args* dst* part* channel channels")
    with module.function("fill_all", parameters, exported=False) as f:
        a, part = ARGUMENTS.reader(f), Record(f, f["part"], CACHE_BLOCK)
        x, first = a["x"] + f["channel"] * a["x_channel"], part["segment"]
        along = a["x_row"] + a["image_row"] * a["x_image"]
        # Rows of one channel are neighbours in memory, so the processor prefetches them, but not
        # the next channel's first ones.
        with (
            f.loop(0, f["channels"]) as channel,
            f.loop(first, first + part["segments"]) as loop,
        ):
            dst = f["dst"] + channel.index * a["buffer_channel"]
            segment = Record.of(f, a["segments"], loop.index, SEGMENT)
            src = x + (channel.index * a["x_channel"] + segment["image"] * a["x_image"])
            later = src + (segment["x"] + a["x_channel"])
            with f.loop(0, f.min(segment["rows"] * along, _PREFETCHED), LINE) as line:
                f.prefetch(later + line.index, near=True)
            f.call(
                a["fill"], dst + segment["to"], src + segment["x"], segment["count"],
                segment["zeros"], segment["rows"], a["buffer_row"], along,
            )  # fmt: skip


def _emit_job(module: Module) -> None:
    with module.function("job", walk.JOB) as f:
        a, cache_block, job = ARGUMENTS.reader(f), *_rows(f)
        stage = f.scratch(STAGE_BYTES)
        x = a["buffer"] + (job["channel"] * a["buffer_channel"] + cache_block["x"])
        x = f.select(f.compare("ne", a["shared"], 0), x, f["mine"])
        in_place, image = cache_block["in_place"] > 0, cache_block["image"] * a["x_image"]
        source = a["x"] + (job["channel"] * a["x_channel"] + cache_block["x"] + image)
        x = f.select(in_place, source, x)
        x_channel = f.select(in_place, a["x_channel"], a["buffer_channel"])
        ahead = f.select(in_place, a["channels"], AHEAD)  # in place, from farther away
        with f.when(cache_block["segments"] > 0):
            f.call("fill_all", f["args"], x, f["inner"], job["channel"], a["channels"])
        first = job["block"]
        with f.loop(first, first + job["blocks"]) as b, f.loop(0, a["phase_tuple_count"]) as p:
            block = Record.of(f, a["blocks"], b.index, BLOCK)
            phases = Record.of(f, a["phase_tuples"], p.index, PHASE_TUPLE)
            channel = job["made"] + block["channel"]
            w = a["w"] + (job["w"] + block["w"] + phases["tap"] * block["w_tap"])
            number = cache_block["spans"] + phases["rows"] + block["phases"]
            f.call(
                "block", f["args"], stage, block.address, w,
                f.at(a["taps"], phases["tap"], I64), phases["taps"],
                a["bias"] + channel * a["element"],
                channel * a["y_channel"] + (phases["y"] + block["y"]),
                f.at(a["ranges"], number * 2, I64), x, x_channel, ahead,
            )  # fmt: skip


def _emit_block(module: Module) -> None:
    """Emit `block`, which computes the spans of a cache block for one block and one phase tuple."""
    with module.function("block", _BLOCK, exported=False) as f:
        a, first = ARGUMENTS.reader(f), f.word(f["range"])
        steps = a["span_x"], a["span_y"], a["span_image"] * a["y_image"]
        with f.loop(first, first + f.word(f["range"], 1)) as loop:
            span = Record.of(f, a["spans"], loop.index, SPAN)
            to = f["to"] + span["y"] + span["image"] * a["y_image"]
            first, stop = span["tiles"], span["tiles"] + span["tile_count"]
            with f.loop(0, span["count"], 1, [f["x"] + span["x"], to]) as rows:
                x, to = rows.carried
                with f.loop(first, stop) as tiles:
                    _emit_tiles(f, a, Record.of(f, a["tiles"], tiles.index, TILES), x, to)
                rows.next([x + steps[0], to + (steps[1] + steps[2])])


def _emit_tiles(f: Function, a: Arguments, tiles: Record, x: Value, to: Value) -> None:
    """Compute adjacent tiles, and move each staged tile to y."""
    block, tail = Record(f, f["block"], BLOCK), f.compare("ne", tiles["tail"], 0)
    tile = f.select(tail, f.load(PTR, f.at(block.address, 1, I64)), f.load(PTR, block.address))
    width = f.select(tail, a["lanes"], a["width"])
    direct = f.compare("eq", tiles["piece_count"], 0)
    along, y_step = width * a["element"], width * a["y_position"]

    def compute(x: Value, second: Value, *to: Value) -> None:
        operands = x, f["w"], f["taps"], f["ntaps"], a["channels"], f["x_channel"], f["ahead"]
        ends = block["active"], a["slopes"], second
        f.call(tile, *operands, f["bias"], *to, *ends)

    x = x + tiles["x"]
    with f.when(direct):
        y = a["y"] + (to + tiles["y"] + tiles["image"] * a["y_image"])
        with f.loop(0, tiles["count"], 1, [x, y]) as loop:
            x_now, y = loop.carried
            compute(x_now, a["second"], y, a["y_channel"], a["y_position"])
            loop.next([x_now + along, y + y_step])
    with f.unless(direct), f.loop(0, tiles["count"], 1, [x, to]) as loop:
        x_now, to = loop.carried
        by_channel, first = width * block["piece"], tiles["pieces"]
        compute(x_now, f.integer(0), f["stage"], by_channel, block["piece"])
        with f.loop(first, first + tiles["piece_count"]) as number:
            piece = Record.of(f, a["pieces"], number.index, PIECE)
            offset = to + piece["y"] + piece["image"] * a["y_image"]
            f.call(
                a["finish"], f["stage"] + piece["stage"], a["y"] + offset, a["residual"] + offset,
                block["active"], by_channel, a["y_channel"], piece["runs"], piece["length"],
                block["piece"], a["y_position"], f["bias"] + a["slopes"], a["second"],
            )  # fmt: skip
        loop.next([x_now + along, to + y_step])
