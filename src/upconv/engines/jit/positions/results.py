"""What the spatially vectorised kernel's driver is told; tiles side by side, and where their
results go.

Lanes that are no output (`yrows` < 0, or beyond `limit`) are computed with the others.

1. The tile lies in a row that is no output: nothing to do.
2. It lies in one output row: the tile writes there itself.
3. Else it writes to the stage, and the pieces that are outputs are copied from there; likewise
   where there is an epilogue that tiles do not apply, or another element type (`direct` = 0).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..emit import Function, Module, signature
from ..kernel_arguments import ArgumentLayout, Arguments
from ..values import I1, I64, Operand, Value

ARGUMENTS = ArgumentLayout(
    "x* y* w* bias* residual*"  # operands
    " buffer*"  # packed input: one per group when shared, else one per thread
    " fill* finish*"  # functions of rows.py
    " pack* spans*"  # of driver.py
    " xrows*"  # rows: byte offset of an image's input row, < 0 where there is none
    " yrows*"  # phase tuples x rows: byte offset of an image's output row, < 0 where there is none
    " taps*"  # byte offsets of outer taps from a tile's place in the buffer
    " phase_tuples*"  # per tuple of outer phases: number of its first tap, count of its taps
    " blocks*"  # BLOCK numbers per block
    " places*"  # phase tuples x blocks: byte offset of a block's weights
    " images channels"
    " in_rows in_width in_row_stride"  # input rows, joined where no zeros are between them
    " rows row_stride limit stride phase_tuple_count block_count lead"
    " x_image x_group x_channel x_bytes y_image y_group y_channel y_bytes"
    " bias_group w_group element buffer_part buffer_channel"
    " total"  # positions that hold outputs
    " halo_before halo_after"  # positions read before a cache block's first and after its last
    " shared pack_channels pack_positions pack_jobs cache_block cache_blocks"
    " span span_step"  # runs of positions that tiles fill, and from one to the next
    " block_run block_runs jobs lanes vectors most_tail_vectors"
    " direct",  # whether tiles may store what they compute as it is
    counters="next_pack packed next_job next_thread",
)
BLOCK = ("main", "tail", "channel", "active", "phase", "phases")
"""Numbers per block: two tiles' addresses, first channel, how many, first phase, how many."""

NO = Value(I1, "false")

SAME = signature("args* stage* block* w* taps* ntaps group phase_tuple")
"""What all tiles of a cache block are given, for one block and one tuple of outer phases."""
TILES = SAME | signature(
    "tile* x*"  # code; input of the first tile
    " first last width"  # positions of the first tile, behind the last, of each
    " end"  # positions from here on are another tile's
)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The output rows of a tile's block: what finding a position's place takes."""

    offsets: Value  # of this tuple of outer phases
    base: Value  # bytes from y to this group and channel
    phase: Value
    phases: Value


def _rows(f: Function, a: Arguments) -> _Rows:
    channel, _, phase, phases = (f.word(f["block"], i) for i in range(2, len(BLOCK)))
    offsets = f.at(a["yrows"], f["phase_tuple"] * a["rows"], I64)
    base = f["group"] * a["y_group"] + channel * a["y_channel"]
    return _Rows(offsets, base, phase, phases)


def emit_tiles(module: Module) -> None:
    """`tiles`: compute tiles side by side and put their results where they belong."""
    with module.function("tiles", TILES, exported=False) as f:
        a = ARGUMENTS.reader(f)
        rows, location = _rows(f, a), _location(f, a, f["first"])
        inside = _inside(f, a, rows, location, f["first"], f["last"])
        with f.when(inside):
            step = a["stride"] * a["y_bytes"]
            carried = [f["x"], _address(f, a, rows, location)]
            with f.loop(f["first"], f["last"], f["width"], carried=carried) as loop:
                x, y = loop.carried
                _compute(f, a, x, y, a["y_channel"], step)
                along = f["width"] * a["element"], f["width"] * step
                loop.next([x + along[0], y + along[1]])
        with f.unless(inside), f.loop(f["first"], f["last"], f["width"]) as loop:
            _place(f, a, rows, loop.index, f["x"] + (loop.index - f["first"]) * a["element"])


@dataclass(frozen=True, slots=True)
class _Location:
    """A position: position of a row, row of an image, image."""

    lane: Value
    row: Value
    image: Value


def _location(f: Function, a: Arguments, q: Value) -> _Location:
    """Where a flattened position lies."""
    row = q // a["row_stride"]
    image = row // a["rows"]
    own = row - image * a["rows"]
    return _Location(q - row * a["row_stride"], own, image)


def _place(f: Function, a: Arguments, rows: _Rows, q: Value, x: Value) -> None:
    """One tile, from position `q` on."""
    location, end = _location(f, a, q), q + f["width"]
    active = f.word(rows.offsets, location.row) >= 0
    across = location.lane + f["width"] > a["row_stride"]
    inside = _inside(f, a, rows, location, q, end)
    with f.when(across | active):
        piece, step = rows.phases * a["element"], a["stride"] * a["y_bytes"]
        channel = f["width"] * piece
        y = f.select(inside, _address(f, a, rows, location), f["stage"])
        steps = f.select(inside, a["y_channel"], channel), f.select(inside, step, piece)
        _compute(f, a, x, y, *steps)
        with f.unless(inside):
            same = (f[name] for name in ("args", "stage", "block", "group", "phase_tuple"))
            f.call("spread", *same, q, channel, f.min(end, f["end"]))


def _compute(f: Function, a: Arguments, x: Value, y: Value, *steps: Value) -> None:
    first, active = (f.word(f["block"], i) for i in (2, 3))
    bias = (f["group"] * a["bias_group"] + first) * a["element"]
    operands = [x, f["w"], f["taps"], f["ntaps"], a["channels"], a["buffer_channel"]]
    f.call(f["tile"], *operands, a["bias"] + bias, y, *steps, active)


def _inside(
    f: Function, a: Arguments, rows: _Rows, location: _Location, q: Value, stop: Value
) -> Value:
    """Whether the results of positions [q, stop) may be stored as they come: all are outputs, and
    of one row."""
    end = location.lane + (stop - q)
    # The last output: s * (end - 1) + the block's last phase.
    last = (end - 1) * a["stride"] + rows.phase + rows.phases
    inside = (end <= a["row_stride"]) & (last <= a["limit"]) & (stop <= f["end"])
    inside = inside & (f.word(rows.offsets, location.row) >= 0) & (location.image < a["images"])
    return inside & f.compare("ne", a["direct"], 0)


def _address(f: Function, a: Arguments, rows: _Rows, location: _Location) -> Value:
    """Where the results of a position go."""
    offset = f.word(rows.offsets, location.row)
    first = (location.lane * a["stride"] + rows.phase) * a["y_bytes"]
    return a["y"] + (rows.base + location.image * a["y_image"] + (offset + first))


def emit_spread(module: Module) -> None:
    """`spread`: copy positions [first, last) of the stage to where they are outputs, row by row."""
    parameters = signature("args* stage* block* group phase_tuple first channel last")
    with module.function("spread", parameters, exported=False) as f:
        a = ARGUMENTS.reader(f)
        rows = _rows(f, a)
        first, last = f["first"], f["last"]
        stop = (last - 1) // a["row_stride"] + 1
        with f.loop(first // a["row_stride"], f.min(stop, a["rows"] * a["images"])) as row:
            offset = f.word(rows.offsets, row.index % a["rows"])
            with f.when(offset >= 0):
                origin = row.index * a["row_stride"]
                low = f.max(first, origin) - origin
                high = f.min(last, origin + a["row_stride"]) - origin
                place = rows.base + (row.index // a["rows"] * a["y_image"] + offset)
                _spread_row(f, a, rows, place, (origin + low - first, low, high))


def _spread_row(
    f: Function, a: Arguments, rows: _Rows, place: Value, lanes: tuple[Value, Value, Value]
) -> None:
    """Copy positions of the output row at `place`: `lanes` are the first one's in the stage, and
    the first's and the last's next in the row."""
    (staged, low, high), stride, phases = lanes, a["stride"], rows.phases
    first, piece = low * stride + rows.phase, phases * a["element"]
    src, place = f["stage"] + staged * piece, place + first * a["y_bytes"]
    left = f.max(a["limit"] - first, 0)  # outputs from here to the row's end

    def finish(src: Value, place: Value, runs: Operand, length: Value) -> None:
        y, residual = a["y"] + place, a["residual"] + place
        active, step = f.word(f["block"], 3), a["stride"] * a["y_bytes"]
        strides = f["channel"], a["y_channel"], runs, length, piece, step
        f.call(a["finish"], src, y, residual, active, *strides)

    dense = f.compare("eq", phases, stride)
    with f.when(dense):
        finish(src, place, 1, f.min(left, (high - low) * stride))
    with f.unless(dense):
        # Positions that have all their phases, then at most one that the row's end cuts.
        whole = f.min(high - low, (left + (stride - phases)) // stride)
        finish(src, place, whole, phases)
        with f.when(whole < high - low):
            rest = f.max(left - whole * stride, 0)
            behind = place + whole * stride * a["y_bytes"]
            finish(src + whole * piece, behind, 1, rest)
