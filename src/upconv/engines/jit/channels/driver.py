"""The channel-vectorised kernel around its tiles: jobs, blocks, and placing results; and what it is
told.

A *grid* is the set of all output points that one list of taps makes: one combination of phases of
all axes, or of the outer axes with a phase group of phases of the last. A *block* is some lanes of
a grid's points. A job is a run of points of a run of blocks of one group. Where points lie is a
table, of each run some arrays with one number per point: `ARRAYS`, then a coordinate per axis.

Compiled once per process, and not optimised: that takes four times as long, and what is made is
one hundredth faster, as nearly all work is done in what is called from here.
"""

from __future__ import annotations

from .. import pool
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module, signature
from ..kernel_arguments import ArgumentLayout, Arguments, jobs, wait
from ..values import I1, I64, PTR, Operand, Value
from .tile import PARAMETERS

ARGUMENTS = ArgumentLayout(
    "y* w* bias* residual*"  # operands, channels last
    " buffer*"  # `part` bytes for each thread
    " finish*"  # of rows.py: from the stage
    " finish_transposed*"  # of rows.py: what is transposed back
    " transpose_in* transpose_out*"  # of transpose.py
    " first_x* first_y*"  # channels first: the operands as they are given
    " last_x*"  # and the transposed input, where `x` is too
    " points* blocks* taps* sizes* tiles*"
    " x x_group x_image y_group y_image w_group bias_group channels zeros axes element direct"
    " w_bytes w_channels w_line"  # of a packed weight; of a tap; asked for per input channel
    " part row_stride"  # the latter: bytes from one array of points to the next
    " step runs block_count block_run block_runs jobs"
    " x_bytes y_bytes transposes in_channels out_channels inputs outputs"
    " in_part in_span in_spans in_jobs out_part out_span out_spans out_jobs"
    " in_image in_channel out_image out_channel plain",
    counters="next_in transposed next_job done next_out next_thread",
)
BLOCK = (
    "total", "points", "lane", "active", "width", "y_lane", "x_lane", "tiles", "most", "taps",
    "ntaps", "merged", "record", "w", "chunk_taps", "chunk_channels", "bias", "clip",
)  # fmt: skip
"""How many points its grid has, and place of their table; the grid's lanes [lane, lane + active),
padded to width; byte offsets of its place in y (and in x, where channels have weights of their
own); first number in `tiles`, and points of the largest tile; place of its taps, how many, how many
are merged, bytes of each; place of its weights; taps and input channels of a pass; place of its
bias; lanes that exist where a row of the output ends."""
ARRAYS = ("x", "y", "lanes", "edges")
"""Of points: byte offsets of input and output, how many lanes there are, and where taps of the
grid may read outside (tile.py)."""
ALL = 1 << 40  # lanes of a point that has all
PAD = 16  # points repeated after the last, the same result twice: the most a tile has
CHUNK = 256  # positions of a row that are transposed back at once where there is an epilogue

Values = dict[str, Value]
_NO = Value(I1, "false")


@compiled("channels", kept=4, opt=0)
def driver_code(module: Module, cpu: Cpu) -> None:
    """The function `channels(args)`, which every thread runs."""
    _emit_block(module)
    _emit_transpose_back(module)
    with module.function("channels", {"args": PTR}) as f:
        a = ARGUMENTS.reader(f)
        stage = a["buffer"] + f.take(a.address("next_thread")) * a["part"]
        with f.when(f.compare("ne", a["transposes"], 0)):
            with jobs(f, a.address("next_in"), a["in_jobs"]) as job:
                _transpose_in(f, a, job)
                f.take(a.address("transposed"))
            wait(f, a.address("transposed"), a["in_jobs"], cpu.triple, pool.switch())
        with jobs(f, a.address("next_job"), a["jobs"]) as job:
            run, rest = job % a["runs"], job // a["runs"]
            blocks, group = rest % a["block_runs"], rest // a["block_runs"]
            start = blocks * a["block_run"]
            stop = f.min(a["block_count"], start + a["block_run"])
            with f.loop(start, stop) as loop:
                block = f.at(a["blocks"], loop.index * len(BLOCK), I64)
                f.call("block", f["args"], stage, block, group, run)
            f.take(a.address("done"))
        with f.when(f.compare("ne", a["transposes"], 0)):
            wait(f, a.address("done"), a["jobs"], cpu.triple, pool.switch())
            with jobs(f, a.address("next_out"), a["out_jobs"]) as job:
                f.call("transpose_back", f["args"], stage, job)


# Blocks -------------------------------------------------------------------------------------------


def _emit_block(module: Module) -> None:
    """`block`: some lanes of the points of a run, if its grid has so many."""
    parameters = signature("args* stage* block* group run")
    with module.function("block", parameters, exported=False) as f:
        a = ARGUMENTS.reader(f)
        b = {name: f.word(f["block"], i) for i, name in enumerate(BLOCK)}
        b["y_lane"] = b["y_lane"] + f["group"] * a["y_group"]
        b["x_lane"] = b["x_lane"] + f["group"] * a["x_group"]
        run_bytes = a["row_stride"] * (a["axes"] + len(ARRAYS))
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
            simple = given["direct"] & (b["clip"] >= b["active"])
            with f.when(simple):
                _tiles(f, a, b, given)
            with f.unless(simple), f.loop(0, b["count"], b["most"]) as point:
                _tile(f, a, b, given, point.index, steps)


def _array(f: Function, a: Arguments, b: Values, number: int, point: Operand) -> Value:
    """Where an array of the run has its number for a point."""
    return f.at(a["points"] + (b["points"] + a["row_stride"] * number), point, I64)


def _pass(f: Function, a: Arguments, b: Values, tap: Value, channel: Value) -> Values:
    """What tiles are given in the pass that begins with a tap and an input channel."""
    row = b["width"] * a["w_bytes"]
    ntaps = f.min(b["chunk_taps"], b["ntaps"] - tap)
    channels = f.min(b["chunk_channels"], a["channels"] - channel)
    w_tap = row * a["w_channels"]
    w = a["w"] + (f["group"] * a["w_group"] + b["w"] + (tap * w_tap + channel * row))
    later = (tap > 0) | (channel > 0)
    over = (tap + ntaps >= b["ntaps"]) & (channel + channels >= a["channels"])
    single = over & f.compare("eq", later, _NO)
    whole = f.compare("eq", b["active"], b["width"]) | single
    size = row * (channels * f.max(ntaps, 0))
    return {
        "taps": a["taps"] + (b["taps"] + tap * b["record"]),
        "ntaps": ntaps, "channels": channels, "w": w, "w_tap": w_tap,
        "x_offset": a["x"] + (b["x_lane"] + channel * a["x_bytes"]),
        "resumed": f.convert("zext", later, I64), "over": over, "single": single,
        "direct": f.compare("ne", a["direct"], 0) & whole,  # but for points that are clipped
        # The weights of the next pass lie behind those of this one.
        "ahead": f.select(over, w, w + size),
        "ahead_step": f.select(over, f.integer(0), a["w_line"]),
        "bias": a["bias"] + (f["group"] * a["bias_group"] + b["bias"]),
    }  # fmt: skip


def _tiles(f: Function, a: Arguments, b: Values, given: Values) -> None:
    """All tiles of a pass."""
    count = b["count"] // b["most"]
    done = count * b["most"]
    to = {"out": a["y"] + b["y_lane"], "active": b["active"]}
    rest = b["count"] - done
    with f.when(count > 0):
        own = {"tiles": count, "tile": _entry(f, a, b, b["most"])}
        _call(f, a, b, given, 0, to | own)
    with f.when(rest > 0):
        own = {"tiles": f.integer(1), "tile": _entry(f, a, b, rest)}
        _call(f, a, b, given, done, to | own)


def _entry(f: Function, a: Arguments, b: Values, points: Value) -> Value:
    """Where the address of the tile for so many points is."""
    return f.at(a["tiles"], b["tiles"] + points - 1, I64)


def _call(f: Function, a: Arguments, b: Values, given: Values, point: Operand, own: Values) -> None:
    """Have tiles computed, from a point on; `own` says which, how many and into what."""
    numbers = {"xs": 0, "outs": 1, "edges": ARRAYS.index("edges"), "coordinates": len(ARRAYS)}
    arguments = given | {name: _array(f, a, b, n, point) for name, n in numbers.items()}
    arguments |= {name: a[name] for name in ("sizes", "axes", "zeros")}
    arguments |= {"coordinate_axis": a["row_stride"]} | {n: b[n] for n in ("record", "merged")}
    arguments |= own
    f.call(f.load(PTR, own["tile"]), *(arguments[name] for name in PARAMETERS))


def _tile(f: Function, a: Arguments, b: Values, given: Values, point: Value, steps: Value) -> None:
    """One tile: into the output, or into the stage and at the end from there."""
    count = f.min(b["most"], b["count"] - point)
    lanes = _array(f, a, b, ARRAYS.index("lanes"), point)
    direct = given["direct"] & _unclipped(f, b, lanes, count)
    row = b["width"] * a["element"]
    stage = f["stage"] + f.select(given["single"], 0, point * row)
    outs = _array(f, a, b, 1, point)
    own = {
        "tile": _entry(f, a, b, count), "tiles": f.integer(1),
        "out": f.select(direct, a["y"] + b["y_lane"], stage),
        "outs": f.select(direct, outs, steps),
        "active": b["active"],  # a tile reads no more inputs than these either
    }  # fmt: skip
    _call(f, a, b, given, point, own)
    unfinished = given["over"] & f.compare("eq", direct, _NO)
    with f.when(unfinished), f.loop(0, count) as each:
        end = f.word(lanes, each.index)
        length = f.max(f.min(b["active"], end - b["lane"]), 0)
        place = f.word(outs, each.index) + b["y_lane"]
        found = stage + each.index * row, a["y"] + place, a["residual"] + place
        f.call(a["finish"], *found, 1, 0, 0, 1, length, 0, 0)


def _unclipped(f: Function, b: Values, lanes: Value, count: Value) -> Value:
    """Whether all points of a tile have all lanes of the block."""
    may = f.select(b["clip"] < b["active"], count, 0)
    with f.loop(0, may, carried=[f.integer(ALL)]) as loop:
        own = f.word(lanes, loop.index)
        loop.next([f.min(loop.carried[0], own)])
    return loop.results[0] >= b["lane"] + b["active"]


# Channels first -----------------------------------------------------------------------------------


def _transpose_in(f: Function, a: Arguments, job: Value) -> None:
    """Some channels of some positions of one image of the input."""
    span, rest = job % a["in_spans"], job // a["in_spans"]
    image, channel = _split(f, rest, a["in_channels"], a["in_part"])
    count = f.min(a["in_part"], a["in_channels"] - channel)
    first, row_stride = span * a["in_span"], a["in_channels"] * a["x_bytes"]
    length = f.min(a["in_span"], a["inputs"] - first)
    dst = image * a["x_image"] + channel * a["x_bytes"] + first * row_stride
    src = image * a["in_image"] + channel * a["in_channel"] + first * a["y_bytes"]
    given = a["last_x"] + dst, a["first_x"] + src, count, length, a["in_channel"], row_stride
    f.call(a["transpose_in"], *given)


def _split(f: Function, job: Value, channels: Value, part: Value) -> tuple[Value, Value]:
    parts = (channels + (part - 1)) // part
    return job // parts, job % parts * part


def _emit_transpose_back(module: Module) -> None:
    """`transpose_back`: some channels of some positions of one image of the result."""
    parameters = signature("args* stage* job")
    with module.function("transpose_back", parameters, exported=False) as f:
        a = ARGUMENTS.reader(f)
        span, rest = f["job"] % a["out_spans"], f["job"] // a["out_spans"]
        image, channel = _split(f, rest, a["out_channels"], a["out_part"])
        first, row_stride = span * a["out_span"], a["out_channels"] * a["element"]
        outputs = f.min(a["out_span"], a["outputs"] - first)
        count = f.min(a["out_part"], a["out_channels"] - channel)
        src = a["y"] + (image * a["y_image"] + channel * a["element"] + first * row_stride)
        dst = image * a["out_image"] + channel * a["out_channel"] + first * a["y_bytes"]
        plain = f.compare("ne", a["plain"], 0)
        with f.when(plain):
            y = a["first_y"] + dst
            f.call(a["transpose_out"], y, src, outputs, count, row_stride, a["out_channel"])
        with f.unless(plain), f.loop(0, outputs, CHUNK) as loop:
            length, row = f.min(outputs - loop.index, CHUNK), a["element"] * CHUNK
            start = src + loop.index * row_stride
            f.call(a["transpose_out"], f["stage"], start, length, count, row_stride, row)
            place = dst + loop.index * a["y_bytes"]
            given = f["stage"], a["first_y"] + place, a["residual"] + place, count, row
            f.call(a["finish_transposed"], *given, a["out_channel"], 1, length, 0, 0)
