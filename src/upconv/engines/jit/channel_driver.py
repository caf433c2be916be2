"""The channels kernel around its tiles: jobs, blocks, and placing results; and what it is told.

A *grid* is the set of all output points that one list of taps makes: one combination of phases of
all axes, or of the outer axes with a bundle of phases of the last. A *block* is some lanes of a
grid's points. A job is a run of points of a run of blocks of one group. Where points lie is a
table, of each run some arrays with one number per point: `ARRAYS`, then a coordinate per axis.

Compiled once per process, and not optimised: that takes four times as long, and what is made is
one hundredth faster, as nearly all work is done in what is called from here.
"""

from __future__ import annotations

from . import pool
from .channel_tile import PARAMETERS
from .compile import compiled
from .cpu import Cpu
from .emit import Function, Module
from .kernel_arguments import Arguments, Slots, jobs, wait
from .values import I1, I64, PTR, Value

SLOTS = Slots((
    "y", "w", "bias", "residual",  # operands, channels last
    "buffer",  # `part` bytes for each thread
    "finish",  # of rows.py: from the stage
    "finish_turned",  # of rows.py: what is turned back
    "turn_in", "turn_out",  # of turn.py
    "first_x", "first_y",  # channels first: the operands as they are given
    "last_x",  # and the turned input, where `x` is too
    "points", "blocks", "taps", "sizes", "tiles",
), (
    "x", "x_group", "x_image", "y_group", "y_image", "w_group", "bias_group",
    "channels", "zeros", "axes", "element", "direct",
    "w_bytes", "w_channels", "w_line",  # of a packed weight; of a tap; asked for per input channel
    "part", "pitch",  # bytes from one array of points to the next
    "step", "runs", "block_count", "block_run", "block_runs", "jobs",
    "x_bytes", "y_bytes", "turns", "in_channels", "out_channels", "inputs", "outputs",
    "in_part", "in_span", "in_spans", "in_jobs", "out_part", "out_span", "out_spans", "out_jobs",
    "in_image", "in_channel", "out_image", "out_channel", "plain",
), ("next_in", "turned", "next_job", "done", "next_out", "next_thread"))  # fmt: skip
BLOCK = (
    "total", "points", "lane", "live", "width", "y_lane", "x_lane", "tiles", "most", "taps",
    "ntaps", "record", "w", "chunk_taps", "chunk_channels", "bias", "clip",
)  # fmt: skip
"""How many points its grid has, and place of their table; the grid's lanes [lane, lane + live),
padded to width; byte offsets of its place in y (and in x, where channels have weights of their
own); first number in `tiles`, and points of the largest tile; place of its taps, how many, bytes of
each; place of its weights; taps and input channels of a pass; place of its bias; lanes that exist
where a row of the output ends."""
ARRAYS = ("x", "y", "lanes", "edges")
"""Of points: byte offsets of input and output, how many lanes there are, and whether some tap of
the grid may read an input outside."""
ALL = 1 << 40  # lanes of a point that has all
PAD = 16  # points repeated after the last, the same result twice: the most a tile has
CHUNK = 256  # positions of a row that are turned back at once where there is an epilogue

Values = dict[str, Value]
_NO = Value(I1, "false")


@compiled("channels", kept=4, opt=0)
def driver_code(module: Module, cpu: Cpu) -> None:
    """The function `channels(args)`, which every thread runs."""
    _emit_block(module)
    _emit_turn_back(module)
    with module.function("channels", {"args": PTR}) as f:
        a = SLOTS.reader(f)
        stage = f.at(a["buffer"], f.mul(f.take(a.address("next_thread")), a["part"]))
        with f.when(f.compare("ne", a["turns"], 0)):
            with jobs(f, a.address("next_in"), a["in_jobs"]) as job:
                _turn_in(f, a, job)
                f.take(a.address("turned"))
            wait(f, a.address("turned"), a["in_jobs"], cpu.triple, pool.switch())
        with jobs(f, a.address("next_job"), a["jobs"]) as job:
            run, rest = f.rem(job, a["runs"]), f.div(job, a["runs"])
            blocks, group = f.rem(rest, a["block_runs"]), f.div(rest, a["block_runs"])
            start = f.mul(blocks, a["block_run"])
            stop = f.min(a["block_count"], f.add(start, a["block_run"]))
            with f.loop(start, stop) as loop:
                block = f.at(a["blocks"], f.mul(loop.index, len(BLOCK)), I64)
                f.call("block", f["args"], stage, block, group, run)
            f.take(a.address("done"))
        with f.when(f.compare("ne", a["turns"], 0)):
            wait(f, a.address("done"), a["jobs"], cpu.triple, pool.switch())
            with jobs(f, a.address("next_out"), a["out_jobs"]) as job:
                f.call("turn_back", f["args"], stage, job)


# Blocks -------------------------------------------------------------------------------------------


def _emit_block(module: Module) -> None:
    """`block`: some lanes of the points of a run, if its grid has so many."""
    parameters = {"args": PTR, "stage": PTR, "block": PTR, "group": I64, "run": I64}
    with module.function("block", parameters, exported=False) as f:
        a = SLOTS.reader(f)
        b = {name: f.load(I64, f.at(f["block"], i, I64)) for i, name in enumerate(BLOCK)}
        b["y_lane"] = f.add(b["y_lane"], f.mul(f["group"], a["y_group"]))
        b["x_lane"] = f.add(b["x_lane"], f.mul(f["group"], a["x_group"]))
        run_bytes = f.mul(a["pitch"], f.add(a["axes"], len(ARRAYS)))
        b["points"] = f.add(b["points"], f.mul(f["run"], run_bytes))
        left = f.sub(b["total"], f.mul(f["run"], a["step"]))
        b["count"] = f.max(f.min(left, a["step"]), 0)
        row = f.mul(b["width"], a["element"])
        steps = f.scratch(8 * PAD)
        for i in range(PAD):
            f.store(f.mul(row, i), f.at(steps, i, I64))
        taps = f.select(f.compare("sgt", b["count"], 0), f.max(b["ntaps"], 1), 0)
        with (
            f.loop(0, taps, b["chunk_taps"]) as tap,
            f.loop(0, a["channels"], b["chunk_channels"]) as channel,
        ):
            given = _pass(f, a, b, tap.index, channel.index)
            simple = _is_simple(f, a, b, given)
            with f.when(simple):
                _tiles(f, a, b, given)
            with f.unless(simple), f.loop(0, b["count"], b["most"]) as point:
                _tile(f, a, b, given, point.index, steps)


def _array(f: Function, a: Arguments, b: Values, number: int, point: Value) -> Value:
    """Where an array of the run has its number for a point."""
    place = f.add(b["points"], f.mul(a["pitch"], number))
    return f.at(f.at(a["points"], place), point, I64)


def _pass(f: Function, a: Arguments, b: Values, tap: Value, channel: Value) -> Values:
    """What tiles are given in the pass that begins with a tap and an input channel."""
    row = f.mul(b["width"], a["w_bytes"])
    ntaps = f.min(b["chunk_taps"], f.sub(b["ntaps"], tap))
    channels = f.min(b["chunk_channels"], f.sub(a["channels"], channel))
    w_tap = f.mul(row, a["w_channels"])
    place = f.add(f.mul(f["group"], a["w_group"]), b["w"])
    place = f.add(place, f.add(f.mul(tap, w_tap), f.mul(channel, row)))
    later = f.bitwise("or", f.compare("sgt", tap, 0), f.compare("sgt", channel, 0))
    over = f.bitwise(
        "and",
        f.compare("sge", f.add(tap, ntaps), b["ntaps"]),
        f.compare("sge", f.add(channel, channels), a["channels"]),
    )
    single = f.bitwise("and", over, f.compare("eq", later, _NO))
    w = f.at(a["w"], place)
    size = f.mul(row, f.mul(channels, f.max(ntaps, 0)))
    return {
        "taps": f.at(a["taps"], f.add(b["taps"], f.mul(tap, b["record"]))),
        "ntaps": ntaps, "channels": channels, "w": w, "w_tap": w_tap,
        "x_offset": f.add(a["x"], f.add(b["x_lane"], f.mul(channel, a["x_bytes"]))),
        "resumed": f.convert("zext", later, I64), "over": over, "single": single,
        # The weights of the next pass lie behind those of this one.
        "ahead": f.select(over, w, f.at(w, size)),
        "ahead_step": f.select(over, f.integer(0), a["w_line"]),
        "bias": f.at(a["bias"], f.add(f.mul(f["group"], a["bias_group"]), b["bias"])),
    }  # fmt: skip


def _is_simple(f: Function, a: Arguments, b: Values, given: Values) -> Value:
    """Whether tiles may write all their lanes to the output."""
    whole = f.bitwise("or", f.compare("eq", b["live"], b["width"]), given["single"])
    unclipped = f.compare("sge", b["clip"], b["live"])
    direct = f.compare("ne", a["direct"], 0)
    return f.bitwise("and", f.bitwise("and", direct, whole), unclipped)


def _tiles(f: Function, a: Arguments, b: Values, given: Values) -> None:
    """All tiles of a pass."""
    count = f.div(b["count"], b["most"])
    done = f.mul(count, b["most"])
    rest = f.sub(b["count"], done)
    entry = f.at(a["tiles"], f.sub(f.add(b["tiles"], b["most"]), 1), I64)
    to = {"out": f.at(a["y"], b["y_lane"]), "live": b["live"]}
    with f.when(f.compare("sgt", count, 0)):
        _call(f, a, b, given, f.integer(0), to | {"tiles": count, "tile": entry})
    with f.when(f.compare("sgt", rest, 0)):
        entry = f.at(a["tiles"], f.sub(f.add(b["tiles"], rest), 1), I64)
        _call(f, a, b, given, done, to | {"tiles": f.integer(1), "tile": entry})


def _call(f: Function, a: Arguments, b: Values, given: Values, point: Value, own: Values) -> None:
    """Have tiles computed, from a point on; `own` says which, how many and into what."""
    arguments = {
        "xs": _array(f, a, b, 0, point),
        "outs": _array(f, a, b, 1, point),
        "coordinates": _array(f, a, b, len(ARRAYS), point),
        "edges": _array(f, a, b, ARRAYS.index("edges"), point),
        "coordinate_axis": a["pitch"],
        "sizes": a["sizes"],
        "axes": a["axes"],
        "record": b["record"],
        "zeros": a["zeros"],
    }
    arguments = given | arguments | own
    f.call(f.load(PTR, own["tile"]), *(arguments[name] for name in PARAMETERS))


def _tile(f: Function, a: Arguments, b: Values, given: Values, point: Value, steps: Value) -> None:
    """One tile: into the output, or into the stage and at the end from there."""
    count = f.min(b["most"], f.sub(b["count"], point))
    entry = f.at(a["tiles"], f.sub(f.add(b["tiles"], count), 1), I64)
    whole = f.compare("eq", b["live"], b["width"])
    direct = f.bitwise(
        "and", f.compare("ne", a["direct"], 0), f.bitwise("or", whole, given["single"])
    )
    lanes = _array(f, a, b, ARRAYS.index("lanes"), point)
    direct = f.bitwise("and", direct, _unclipped(f, b, lanes, count))
    row = f.mul(b["width"], a["element"])
    waiting = f.select(given["single"], f.integer(0), f.mul(point, row))
    stage, outs = f.at(f["stage"], waiting), _array(f, a, b, 1, point)
    own = {
        "tile": entry,
        "tiles": f.integer(1),
        "out": f.select(direct, f.at(a["y"], b["y_lane"]), stage),
        "outs": f.select(direct, outs, steps),
        "live": b["live"],  # a tile reads no more inputs than these either
    }
    _call(f, a, b, given, point, own)
    unfinished = f.bitwise("and", given["over"], f.compare("eq", direct, _NO))
    with f.when(unfinished), f.loop(0, count) as each:
        end = f.load(I64, f.at(lanes, each.index, I64))
        length = f.max(f.min(b["live"], f.sub(end, b["lane"])), 0)
        place = f.add(f.load(I64, f.at(outs, each.index, I64)), b["y_lane"])
        src = f.at(stage, f.mul(each.index, row))
        zero, one = f.integer(0), f.integer(1)
        y, residual = f.at(a["y"], place), f.at(a["residual"], place)
        f.call(a["finish"], src, y, residual, one, zero, zero, one, length, zero, zero)


def _unclipped(f: Function, b: Values, lanes: Value, count: Value) -> Value:
    """Whether all points of a tile have all lanes of the block."""
    may = f.select(f.compare("slt", b["clip"], b["live"]), count, 0)
    with f.loop(0, may, carried=[f.integer(ALL)]) as loop:
        own = f.load(I64, f.at(lanes, loop.index, I64))
        loop.next([f.min(loop.carried[0], own)])
    return f.compare("sge", loop.results[0], f.add(b["lane"], b["live"]))


# Channels first -----------------------------------------------------------------------------------


def _turn_in(f: Function, a: Arguments, job: Value) -> None:
    """Some channels of some positions of one image of the input."""
    span, rest = f.rem(job, a["in_spans"]), f.div(job, a["in_spans"])
    part, (image, channel) = a["in_part"], _split(f, rest, a["in_channels"], a["in_part"])
    count = f.min(part, f.sub(a["in_channels"], channel))
    first = f.mul(span, a["in_span"])
    length, pitch = (
        f.min(a["in_span"], f.sub(a["inputs"], first)),
        f.mul(a["in_channels"], a["x_bytes"]),
    )
    dst = f.add(f.mul(image, a["x_image"]), f.mul(channel, a["x_bytes"]))
    src = f.add(f.mul(image, a["in_image"]), f.mul(channel, a["in_channel"]))
    dst, src = f.add(dst, f.mul(first, pitch)), f.add(src, f.mul(first, a["y_bytes"]))
    f.call(
        a["turn_in"], f.at(a["last_x"], dst), f.at(a["first_x"], src), count, length,
        a["in_channel"], pitch,
    )  # fmt: skip


def _split(f: Function, job: Value, channels: Value, part: Value) -> tuple[Value, Value]:
    parts = f.div(f.add(channels, f.sub(part, 1)), part)
    return f.div(job, parts), f.mul(f.rem(job, parts), part)


def _emit_turn_back(module: Module) -> None:
    """`turn_back`: some channels of some positions of one image of the result."""
    parameters = {"args": PTR, "stage": PTR, "job": I64}
    with module.function("turn_back", parameters, exported=False) as f:
        a = SLOTS.reader(f)
        span, rest = f.rem(f["job"], a["out_spans"]), f.div(f["job"], a["out_spans"])
        part, (image, channel) = a["out_part"], _split(f, rest, a["out_channels"], a["out_part"])
        first = f.mul(span, a["out_span"])
        outputs = f.min(a["out_span"], f.sub(a["outputs"], first))
        count = f.min(part, f.sub(a["out_channels"], channel))
        pitch = f.mul(a["out_channels"], a["element"])
        src = f.add(f.mul(image, a["y_image"]), f.mul(channel, a["element"]))
        src = f.at(a["y"], f.add(src, f.mul(first, pitch)))
        dst = f.add(f.mul(image, a["out_image"]), f.mul(channel, a["out_channel"]))
        dst = f.add(dst, f.mul(first, a["y_bytes"]))
        plain = f.compare("ne", a["plain"], 0)
        with f.when(plain):
            y = f.at(a["first_y"], dst)
            f.call(a["turn_out"], y, src, outputs, count, pitch, a["out_channel"])
        with f.unless(plain), f.loop(0, outputs, CHUNK) as loop:
            length = f.min(f.sub(outputs, loop.index), CHUNK)
            row = f.mul(a["element"], CHUNK)
            start = f.at(src, f.mul(loop.index, pitch))
            f.call(a["turn_out"], f["stage"], start, length, count, pitch, row)
            place = f.add(dst, f.mul(loop.index, a["y_bytes"]))
            y, residual = f.at(a["first_y"], place), f.at(a["residual"], place)
            zero, one = f.integer(0), f.integer(1)
            out = a["out_channel"]
            f.call(
                a["finish_turned"],
                f["stage"],
                y,
                residual,
                count,
                row,
                out,
                one,
                length,
                zero,
                zero,
            )
