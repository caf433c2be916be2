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
        stage = a["buffer"] + f.take(a.address("next_thread")) * a["part"]
        with f.when(f.compare("ne", a["turns"], 0)):
            with jobs(f, a.address("next_in"), a["in_jobs"]) as job:
                _turn_in(f, a, job)
                f.take(a.address("turned"))
            wait(f, a.address("turned"), a["in_jobs"], cpu.triple, pool.switch())
        with jobs(f, a.address("next_job"), a["jobs"]) as job:
            run, rest = job % a["runs"], job // a["runs"]
            blocks, group = rest % a["block_runs"], rest // a["block_runs"]
            start = blocks * a["block_run"]
            stop = f.min(a["block_count"], start + a["block_run"])
            with f.loop(start, stop) as loop:
                block = f.at(a["blocks"], loop.index * len(BLOCK), I64)
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
        b = {name: f.word(f["block"], i) for i, name in enumerate(BLOCK)}
        b["y_lane"] = b["y_lane"] + f["group"] * a["y_group"]
        b["x_lane"] = b["x_lane"] + f["group"] * a["x_group"]
        run_bytes = a["pitch"] * (a["axes"] + len(ARRAYS))
        b["points"] = b["points"] + f["run"] * run_bytes
        left = b["total"] - f["run"] * a["step"]
        b["count"] = f.max(f.min(left, a["step"]), 0)
        row = b["width"] * a["element"]
        steps = f.scratch(8 * PAD)
        for i in range(PAD):
            f.store(row * i, f.at(steps, i, I64))
        taps = f.select(b["count"] > 0, f.max(b["ntaps"], 1), 0)
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
    place = b["points"] + a["pitch"] * number
    return f.at(a["points"] + place, point, I64)


def _pass(f: Function, a: Arguments, b: Values, tap: Value, channel: Value) -> Values:
    """What tiles are given in the pass that begins with a tap and an input channel."""
    row = b["width"] * a["w_bytes"]
    ntaps = f.min(b["chunk_taps"], b["ntaps"] - tap)
    channels = f.min(b["chunk_channels"], a["channels"] - channel)
    w_tap = row * a["w_channels"]
    place = f["group"] * a["w_group"] + b["w"]
    place = place + (tap * w_tap + channel * row)
    later = (tap > 0) | (channel > 0)
    over = (tap + ntaps >= b["ntaps"]) & (channel + channels >= a["channels"])
    single = over & f.compare("eq", later, _NO)
    w = a["w"] + place
    size = row * (channels * f.max(ntaps, 0))
    return {
        "taps": a["taps"] + (b["taps"] + tap * b["record"]),
        "ntaps": ntaps, "channels": channels, "w": w, "w_tap": w_tap,
        "x_offset": a["x"] + (b["x_lane"] + channel * a["x_bytes"]),
        "resumed": f.convert("zext", later, I64), "over": over, "single": single,
        # The weights of the next pass lie behind those of this one.
        "ahead": f.select(over, w, w + size),
        "ahead_step": f.select(over, f.integer(0), a["w_line"]),
        "bias": a["bias"] + (f["group"] * a["bias_group"] + b["bias"]),
    }  # fmt: skip


def _is_simple(f: Function, a: Arguments, b: Values, given: Values) -> Value:
    """Whether tiles may write all their lanes to the output."""
    whole = f.compare("eq", b["live"], b["width"]) | given["single"]
    unclipped = b["clip"] >= b["live"]
    direct = f.compare("ne", a["direct"], 0)
    return direct & whole & unclipped


def _tiles(f: Function, a: Arguments, b: Values, given: Values) -> None:
    """All tiles of a pass."""
    count = b["count"] // b["most"]
    done = count * b["most"]
    rest = b["count"] - done
    entry = f.at(a["tiles"], b["tiles"] + b["most"] - 1, I64)
    to = {"out": a["y"] + b["y_lane"], "live": b["live"]}
    with f.when(count > 0):
        _call(f, a, b, given, f.integer(0), to | {"tiles": count, "tile": entry})
    with f.when(rest > 0):
        entry = f.at(a["tiles"], b["tiles"] + rest - 1, I64)
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
    count = f.min(b["most"], b["count"] - point)
    entry = f.at(a["tiles"], b["tiles"] + count - 1, I64)
    whole = f.compare("eq", b["live"], b["width"])
    direct = f.compare("ne", a["direct"], 0) & (whole | given["single"])
    lanes = _array(f, a, b, ARRAYS.index("lanes"), point)
    direct = direct & _unclipped(f, b, lanes, count)
    row = b["width"] * a["element"]
    waiting = f.select(given["single"], f.integer(0), point * row)
    stage, outs = f["stage"] + waiting, _array(f, a, b, 1, point)
    own = {
        "tile": entry,
        "tiles": f.integer(1),
        "out": f.select(direct, a["y"] + b["y_lane"], stage),
        "outs": f.select(direct, outs, steps),
        "live": b["live"],  # a tile reads no more inputs than these either
    }
    _call(f, a, b, given, point, own)
    unfinished = given["over"] & f.compare("eq", direct, _NO)
    with f.when(unfinished), f.loop(0, count) as each:
        end = f.word(lanes, each.index)
        length = f.max(f.min(b["live"], end - b["lane"]), 0)
        place = f.word(outs, each.index) + b["y_lane"]
        src = stage + each.index * row
        zero, one = f.integer(0), f.integer(1)
        y, residual = a["y"] + place, a["residual"] + place
        f.call(a["finish"], src, y, residual, one, zero, zero, one, length, zero, zero)


def _unclipped(f: Function, b: Values, lanes: Value, count: Value) -> Value:
    """Whether all points of a tile have all lanes of the block."""
    may = f.select(b["clip"] < b["live"], count, 0)
    with f.loop(0, may, carried=[f.integer(ALL)]) as loop:
        own = f.word(lanes, loop.index)
        loop.next([f.min(loop.carried[0], own)])
    return loop.results[0] >= b["lane"] + b["live"]


# Channels first -----------------------------------------------------------------------------------


def _turn_in(f: Function, a: Arguments, job: Value) -> None:
    """Some channels of some positions of one image of the input."""
    span, rest = job % a["in_spans"], job // a["in_spans"]
    part, (image, channel) = a["in_part"], _split(f, rest, a["in_channels"], a["in_part"])
    count = f.min(part, a["in_channels"] - channel)
    first = span * a["in_span"]
    length, pitch = (
        f.min(a["in_span"], a["inputs"] - first),
        a["in_channels"] * a["x_bytes"],
    )
    dst = image * a["x_image"] + channel * a["x_bytes"]
    src = image * a["in_image"] + channel * a["in_channel"]
    dst, src = dst + first * pitch, src + first * a["y_bytes"]
    f.call(
        a["turn_in"], a["last_x"] + dst, a["first_x"] + src, count, length,
        a["in_channel"], pitch,
    )  # fmt: skip


def _split(f: Function, job: Value, channels: Value, part: Value) -> tuple[Value, Value]:
    parts = (channels + (part - 1)) // part
    return job // parts, job % parts * part


def _emit_turn_back(module: Module) -> None:
    """`turn_back`: some channels of some positions of one image of the result."""
    parameters = {"args": PTR, "stage": PTR, "job": I64}
    with module.function("turn_back", parameters, exported=False) as f:
        a = SLOTS.reader(f)
        span, rest = f["job"] % a["out_spans"], f["job"] // a["out_spans"]
        part, (image, channel) = a["out_part"], _split(f, rest, a["out_channels"], a["out_part"])
        first = span * a["out_span"]
        outputs = f.min(a["out_span"], a["outputs"] - first)
        count = f.min(part, a["out_channels"] - channel)
        pitch = a["out_channels"] * a["element"]
        src = image * a["y_image"] + channel * a["element"]
        src = a["y"] + (src + first * pitch)
        dst = image * a["out_image"] + channel * a["out_channel"]
        dst = dst + first * a["y_bytes"]
        plain = f.compare("ne", a["plain"], 0)
        with f.when(plain):
            y = a["first_y"] + dst
            f.call(a["turn_out"], y, src, outputs, count, pitch, a["out_channel"])
        with f.unless(plain), f.loop(0, outputs, CHUNK) as loop:
            length = f.min(outputs - loop.index, CHUNK)
            row = a["element"] * CHUNK
            start = src + loop.index * pitch
            f.call(a["turn_out"], f["stage"], start, length, count, pitch, row)
            place = dst + loop.index * a["y_bytes"]
            y, residual = a["first_y"] + place, a["residual"] + place
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
