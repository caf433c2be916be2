"""What the channels kernel's driver is told, and where the points of a job lie.

A *grid* is the set of all output points that one list of taps makes: one combination of phases of
all axes, or of the outer axes with a bundle of phases of the last. Its points are numbered through
its *dims*, innermost first: a count, steps in x and y, and for a dim that is an axis how far one
step moves along the inputs. A *block* is some lanes of a grid's points. A job is a run of points of
a run of blocks of one group.

Points are worked out once for all blocks of a job, and written to arrays, one number per point in
each (`ARRAYS`, then a coordinate per axis): where its input and its output lie, how many lanes it
has, whether taps of it may be outside. Points in a row of the innermost dim are a ramp.
"""

from __future__ import annotations

from .emit import Function, Module
from .kernel_arguments import Arguments, Slots
from .values import I64, PTR, Value, vector

ALL = 1 << 40  # lanes of a point that has all


def field(f: Function, record: Value, names: tuple[str, ...], name: str) -> Value:
    """A number of a record of a table."""
    return f.load(I64, f.at(record, names.index(name), I64))


def emit_points(module: Module) -> None:
    """`points`: where `count` points of a grid lie, from point `first` on."""
    parameters = {"args": PTR, "mine": PTR, "grid": PTR, "group": I64, "first": I64, "count": I64}
    with module.function("points", parameters) as f:
        a = SLOTS.reader(f)
        dims = f.at(a["dims"], field(f, f["grid"], GRID, "dims"), I64)
        places = f.scratch(8 * PAD)
        done = f.scratch(8)
        f.store(f.integer(0), done)
        inner = field(f, dims, DIM, "count")
        with f.forever() as all_done:
            start = f.load(I64, done)
            f.leave(all_done, f.compare("sge", start, f["count"]))
            _locate(f, a, dims, places, f.add(f["first"], start))
            length = f.min(f.sub(inner, f.load(I64, places)), f.sub(f["count"], start))
            _segment(f, a, dims, places, start, length)
            f.store(f.add(start, length), done)
        _clip(f, a)
        _mark_edges(f, a, dims)
        _repeat_last(f, a)


def _locate(f: Function, a: Arguments, dims: Value, places: Value, point: Value) -> None:
    """Write a point's place in each dim."""
    with f.loop(0, f.add(a["axes"], 1), carried=[point]) as loop:
        count = field(f, _dim(f, dims, loop.index), DIM, "count")
        f.store(f.rem(loop.carried[0], count), f.at(places, loop.index, I64))
        loop.next([f.div(loop.carried[0], count)])


def _dim(f: Function, dims: Value, number: Value) -> Value:
    return f.at(dims, f.mul(number, len(DIM)), I64)


def _segment(
    f: Function, a: Arguments, dims: Value, places: Value, start: Value, length: Value
) -> None:
    """Write points that differ in the innermost dim only."""
    x = f.add(a["x"], f.mul(f["group"], a["x_group"]))
    with f.loop(0, f.add(a["axes"], 1), carried=[x, f.mul(f["group"], a["y_group"])]) as loop:
        dim = _dim(f, dims, loop.index)
        place = f.load(I64, f.at(places, loop.index, I64))
        axis = field(f, dim, DIM, "axis")
        x_step, y_step = _steps(f, a, dim)
        innermost = f.compare("eq", loop.index, 0)
        with f.when(f.compare("sge", axis, 0)):
            inputs = field(f, dim, DIM, "inputs")
            first = f.add(f.mul(place, inputs), field(f, dim, DIM, "lead"))
            mine = array(f, a, f.add(axis, len(ARRAYS)), start)
            ramp(f, mine, first, f.select(innermost, inputs, 0), length)
        x, y = loop.carried
        loop.next([f.add(x, f.mul(place, x_step)), f.add(y, f.mul(place, y_step))])
    x_step, y_step = _steps(f, a, dims)
    ramp(f, array(f, a, f.integer(0), start), loop.results[0], x_step, length)
    ramp(f, array(f, a, f.integer(1), start), loop.results[1], y_step, length)


def _steps(f: Function, a: Arguments, dim: Value) -> tuple[Value, Value]:
    """Bytes from one place of a dim to the next; images lie as the caller's arrays say."""
    image = f.compare("slt", field(f, dim, DIM, "axis"), 0)
    x_step = f.select(image, a["x_image"], field(f, dim, DIM, "x_step"))
    return x_step, f.select(image, a["y_image"], field(f, dim, DIM, "y_step"))


def array(f: Function, a: Arguments, number: Value, start: Value) -> Value:
    """Where an array of this thread has its number for a point."""
    return f.at(f.at(f["mine"], f.mul(number, a["pitch"])), start, I64)


def ramp(f: Function, place: Value, first: Value, step: Value, length: Value) -> None:
    """Write first, first + step ...; up to LANES - 1 numbers more than asked for."""
    kind = vector(I64, LANES)
    numbers = Value(kind, f"<{', '.join(f'i64 {i}' for i in range(LANES))}>")
    start = f.add(f.broadcast(first, LANES), f.mul(numbers, f.broadcast(step, LANES)))
    further = f.broadcast(f.mul(step, LANES), LANES)
    with f.loop(0, length, LANES, carried=[start]) as loop:
        f.store(loop.carried[0], f.at(place, loop.index, I64))
        loop.next([f.add(loop.carried[0], further)])


def _repeat_last(f: Function, a: Arguments) -> None:
    """Write the last point again as often as a tile may ask: the same result, twice."""
    with f.loop(0, f.add(a["axes"], len(ARRAYS))) as each:
        end = array(f, a, each.index, f["count"])
        last = f.load(I64, f.at(end, -1, I64))
        ramp(f, end, last, f.integer(0), f.integer(PAD))


def _clip(f: Function, a: Arguments) -> None:
    """Write how many lanes each point has: fewer for the last of a row where the output ends."""
    kind = vector(I64, LANES)
    last = f.broadcast(field(f, f["grid"], GRID, "last"), LANES)
    limit = f.broadcast(field(f, f["grid"], GRID, "limit"), LANES)
    axis = f.add(a["axes"], len(ARRAYS) - 1)
    along = array(f, a, axis, f.integer(0))
    lanes = array(f, a, f.integer(ARRAYS.index("lanes")), f.integer(0))
    with f.loop(0, f["count"], LANES) as loop:
        at_end = f.compare("eq", f.load(kind, f.at(along, loop.index, I64)), last)
        f.store(f.select(at_end, limit, f.splat(kind, ALL)), f.at(lanes, loop.index, I64))


def _mark_edges(f: Function, a: Arguments, dims: Value) -> None:
    """Write for each point whether some tap of the grid may read an input outside."""
    kind = vector(I64, LANES)
    zero, one = f.splat(kind, 0), f.splat(kind, 1)
    edges = array(f, a, f.integer(ARRAYS.index("edges")), f.integer(0))
    with f.loop(0, f["count"], LANES) as loop:
        with f.loop(0, f.add(a["axes"], 1), carried=[zero]) as each:
            dim = _dim(f, dims, each.index)
            axis = f.max(field(f, dim, DIM, "axis"), 0)
            mine = f.load(kind, array(f, a, f.add(axis, len(ARRAYS)), loop.index))
            low, high = (f.broadcast(field(f, dim, DIM, n), LANES) for n in ("low", "high"))
            below, above = f.compare("slt", mine, low), f.compare("sge", mine, high)
            edge = f.select(f.bitwise("or", below, above), one, each.carried[0])
            each.next([edge])
        f.store(each.results[0], f.at(edges, loop.index, I64))


SLOTS = Slots((
    "y", "w", "bias", "residual",  # operands, channels last
    "buffer",  # `part` bytes for each thread
    "finish",  # of rows.py: from the stage
    "finish_turned",  # of rows.py: what is turned back
    "turn_in", "turn_out",  # of turn.py
    "points", "block",  # of channel_points.py and channel_driver.py
    "first_x", "first_y",  # channels first: the operands as they are given
    "last_x",  # and the turned input, where `x` is too
    "grids", "dims", "blocks", "taps", "sizes", "tiles",
), (
    "x", "x_group", "x_image", "y_group", "y_image", "w_group", "bias_group",
    "channels", "zeros", "axes", "element", "direct",
    "w_bytes", "w_channels", "w_line",  # of a packed weight; of a tap; asked for per input channel
    "part", "pitch",  # bytes from one array of points to the next
    "stage",  # where the stage lies in a thread's part
    "step", "runs", "block_count", "block_run", "block_runs", "jobs",
    "x_bytes", "y_bytes", "turns", "images", "in_channels", "out_channels", "inputs", "outputs",
    "in_part", "in_span", "in_spans", "in_jobs", "out_part", "out_span", "out_spans", "out_jobs",
    "in_image", "in_channel", "out_image", "out_channel", "plain",
), ("next_in", "turned", "next_job", "done", "next_out", "next_thread"))  # fmt: skip
GRID = ("total", "dims", "last", "limit")
"""Points; first number in `dims`; inputs before the last point of a row, and lanes that it has."""
DIM = ("count", "x_step", "y_step", "axis", "inputs", "lead", "low", "high")
"""Points along it; bytes from one to the next; its axis, or -1 for images, and inputs from one
point to the next; the input of the first; no tap reads outside where low <= input < high."""
BLOCK = (
    "grid", "lane", "live", "width", "y_lane", "x_lane", "tiles", "most", "taps", "ntaps",
    "record", "w", "chunk_taps", "chunk_channels", "bias", "clip",
)  # fmt: skip
"""A grid's lanes [lane, lane + live), padded to width; byte offsets of its place in y (and in x,
where channels have weights of their own); first number in `tiles`, and points of the largest tile;
place of its taps, how many, bytes of each; place of its weights; taps and input channels of a pass;
place of its bias; lanes that exist where a row of the output ends."""
ARRAYS = ("x", "y", "lanes", "edges")  # of points, before the coordinates
LANES = 8  # points that are written at once
PAD = 16  # points repeated after the last: the most a tile has
CHUNK = 256  # positions of a row that are turned back at once where there is an epilogue
