"""The tile kernel's native steps; walk.py calls them for the rows of its tables.

    pack        packs some positions of some blocks of 32 input channels, and zeros around them
    products    computes register tiles (tile.py) of a run of positions, for some blocks of outputs

The channels kernel's steps transpose channels-first results back, so the arguments begin with that
kernel's.
"""

from __future__ import annotations

from functools import partial

from .. import walk
from ..channels.driver import NUMBERS, slab_of
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module
from ..kernel_arguments import ArgumentLayout, Record, record
from ..rows import Span, Spans, converted
from ..transpose import as_bits
from ..values import BFLOAT, BYTES, I16, I64, LINE, PTR, Value, vector
from .operations import PAIRS, REGISTERS, ROW_BYTES, TILE_BYTES, TileRegisters

ARGUMENTS = ArgumentLayout(
    NUMBERS + " chunks* copies* clears* tiles* pieces* rows* steps* configuration*"  # tables
    " in_position y_position"  # bytes from a position to the next one
    " at_once"  # tiles of positions that `products` computes at a time
    " block_bytes x_row"  # from a block of input channels, and a row of a tile, to the next one
    " x_position",  # from a packed position to the next one
    counters=walk.COUNTERS,
)
REGISTERS_AT = 64
"""Offset of the vector code's registers in a thread's memory; a stage follows them."""
STAGE_AT = REGISTERS_AT + REGISTERS * TILE_BYTES

CHUNK = record("position count copies copies_end clears clears_end")
"""Neighbouring positions in an image that are packed together: the first one, their count, and the
ranges of their copies and clears."""
COPY = record("src dst count step")
"""Adjacent positions in a plane: the first one's number in the chunk and its offset in the packed
image, their count, and the step from one to the next in the chunk."""
CLEAR = record("dst count")
"""Adjacent positions that are set to zero."""
INPUT = record("image channel channels blocks zeros room dst")
"""An image's blocks of 32 input channels: the first channel, a block's number of channels, the
counts of blocks to copy and to clear, how many numbers of a packed position belong to a block, and
the packed image's offset."""
RUN = record("first last")
"""Tiles of positions, by number."""
TILE = record("x pieces pieces_end")
"""A tile of positions: its offset in the packed operand, and its pieces."""
PIECE = record("row count y")
"""A tile's rows that are neighbours in the output."""
PART = record("first last")
"""Rows of blocks of outputs, by number."""
ROW = record("code tiles steps count x w bias y active group piece pieces slab")
"""A phase's blocks of outputs: code, the phase's tiles, its products' offsets and count, offsets in
the operands, output channels, the packed weight's pieces, and their offset in a slab with a job's
weights."""


@compiled("pack", kept=8)
def pack_code(
    module: Module, stored: str, transposed: bool, merged: bool, dense: bool,
    spread: tuple[int, int] | None, cpu: Cpu,
) -> None:  # fmt: skip
    """Emit `pack` for an operand of type `stored`, which is `transposed` first if channels are not
    adjacent; for `merged` taps, which may be `dense` or `spread` as in merging.py."""
    with module.function("pack", walk.JOB) as f:
        a = ARGUMENTS.reader(f)
        chunk, block = Record(f, f["inner"], CHUNK), Record(f, f["outer"], INPUT)
        channels, dst = block["channels"], a["x"] + block["dst"]
        offset = block["image"] * a["in_image"] + block["channel"] * a["in_channel"]
        src = a["first_x"] + (offset + chunk["position"] * a["in_position"])
        step, element = a["in_position"], stored
        position = a["x_position"] if merged else f.integer(ROW_BYTES)
        if transposed:
            row = position if dense else f.integer(ROW_BYTES)
            row = f.integer(2 * spread[0]) if spread else row
            lines = src, channels, chunk["count"], a["in_channel"], row
            src, step, element = f["mine"] + STAGE_AT, row, BFLOAT
            f.call(a["transpose_in"], src, *lines)
        if dense:
            _dense(f, (src, dst, step), position, element, spread)
        else:
            room = block["room"] if merged else None
            is_full = channels >= PAIRS
            for full in (True, False):
                with f.when(is_full, holds=full):
                    geometry = src, dst, step, position
                    _copies(f, geometry, element, None if full else channels, room)
        with f.loop(chunk["clears"], chunk["clears_end"]) as loop:
            clear = Record.of(f, a["clears"], loop.index, CLEAR)
            with f.loop(0, block["zeros"]) as number:
                first = dst + (clear["dst"] + number.index * a["block_bytes"])
                if merged:
                    Spans(f, clear["count"] * position // 2, PAIRS).each(partial(_clear, f, first))
                else:
                    with f.loop(0, clear["count"]) as line:
                        _clear(f, first + line.index * position, Span(f, f.integer(0), PAIRS, None))


def _dense(
    f: Function, geometry: tuple[Value, Value, Value], position: Value, element: str,
    spread: tuple[int, int] | None,
) -> None:  # fmt: skip
    """Copy the positions of all records in a chunk; they are adjacent both in the source and in the
    packed operand."""
    a, chunk = ARGUMENTS.reader(f), Record(f, f["inner"], CHUNK)
    src, dst, step = geometry
    lanes = PAIRS if BYTES[element] == 2 else PAIRS // 2
    with f.loop(chunk["copies"], chunk["copies_end"]) as loop:
        record = Record.of(f, a["copies"], loop.index, COPY)
        line, to = src + record["src"] * step, dst + record["dst"]
        if spread:
            _spread(f, line, to, element, record["count"], *spread)
        else:
            count = record["count"] * position // 2
            Spans(f, count, lanes).each(partial(_copy_span, f, line, to, element))


def _spread(
    f: Function, line: Value, to: Value, element: str, count: Value, channels: int, lanes: int
) -> None:
    """Copy positions with `channels` channels as bfloat16, padded to `lanes` with zeros."""
    at_once, zero = PAIRS // lanes, f.constant(vector(I16, PAIRS), 0)
    numbers = [
        p * channels + i if i < channels else PAIRS for p in range(at_once) for i in range(lanes)
    ]
    numbers += [PAIRS] * (PAIRS - len(numbers))
    with f.loop(0, count, at_once) as loop:
        positions = f.min(count - loop.index, at_once)
        src = f.at(line, loop.index * channels, element)
        read, written = (f.lanes_below(positions * n, PAIRS) for n in (channels, lanes))
        bits = as_bits(f, f.load_lanes(vector(element, PAIRS), src, read), BFLOAT)
        dst = f.at(to, loop.index * lanes, I16)
        f.store_lanes(f.shuffle(bits, zero, numbers), dst, written)


def _copy_span(f: Function, line: Value, to: Value, element: str, span: Span) -> None:
    """Copy a span's numbers as bfloat16."""
    bits = as_bits(f, span.load(f.at(line, span.start, element), element), BFLOAT)
    span.store(bits, f.at(to, span.start, I16))


def _clear(f: Function, first: Value, span: Span) -> None:
    """Set a span's numbers to zero."""
    span.store(f.constant(vector(I16, PAIRS), 0), f.at(first, span.start, I16))


def _copies(
    f: Function, geometry: tuple[Value, Value, Value, Value], element: str, channels: Value | None,
    room: Value | None,
) -> None:  # fmt: skip
    """Copy the positions of all records in a chunk, each with all its blocks of channels, which are
    adjacent in channels-last data."""
    a, chunk, block = ARGUMENTS.reader(f), Record(f, f["inner"], CHUNK), f["outer"]
    blocks, block_bytes = Record(f, block, INPUT)["blocks"], a["block_bytes"]
    src, dst, step, position = geometry
    with f.loop(chunk["copies"], chunk["copies_end"]) as loop:
        record = Record.of(f, a["copies"], loop.index, COPY)
        line, to = src + record["src"] * step, dst + record["dst"]
        line_step = record["step"] * step
        with f.loop(0, record["count"]) as copied:
            first, packed = line + copied.index * line_step, to + copied.index * position
            with f.loop(0, blocks) as number:
                _copy(
                    f, packed + number.index * block_bytes,
                    f.at(first, number.index * PAIRS, element), element, channels, room,
                )  # fmt: skip


def _copy(
    f: Function, to: Value, line: Value, element: str, channels: Value | None, room: Value | None
) -> None:
    """Copy 32 of a position's channels as bfloat16, or `channels` of them and zeros; store `room`
    numbers, or all."""
    lanes = PAIRS if BYTES[element] == 2 else PAIRS // 2
    for part in range(0, PAIRS, lanes):
        kind = vector(element, lanes)
        if channels is None:
            value = f.load(kind, f.at(line, part, element))
        else:
            # The address stays within the line, even if no lane is active.
            mask, first = f.lanes_below(channels - part, lanes), f.min(channels - 1, part)
            value = f.load_lanes(kind, f.at(line, first, element), mask)
        bits = f.convert("bitcast", converted(f, value, BFLOAT), vector(I16, lanes))
        if channels is None or room is None:
            f.store(bits, f.at(to, part, I16))
        else:
            f.store_lanes(bits, f.at(to, part, I16), f.lanes_below(room - part, lanes))


@compiled("products", kept=4, opt=0)
def products_code(module: Module, cpu: Cpu) -> None:
    """Emit `products`, which computes part of the rows for a run of positions: all rows for
    `at_once` tiles, whose inputs stay in a near cache, and then for the next tiles.

    If a weight is used only once, the thread that multiplies by part of it packs that part into a
    slab that stays in its caches."""
    with module.function("products", walk.JOB) as f:
        a, run, part = ARGUMENTS.reader(f), Record(f, f["inner"], RUN), Record(f, f["outer"], PART)
        packs = f.compare("ne", f.convert("ptrtoint", a["pack_pieces"], I64), 0)
        slab = slab_of(f)
        with f.loop(0, a["slab"] * a["gaps"], LINE) as line:
            f.store(f.constant(vector(I64, LINE // 8), 0), a["w"] + (slab + line.index))
        with f.when(packs), f.loop(part["first"], part["last"]) as number:
            row = Record.of(f, a["rows"], number.index, ROW)
            into = a["w"] + (slab + row["slab"])
            pieces = row["group"], row["piece"], row["pieces"]
            f.call(a["pack_pieces"], a["pack_args"], into, *pieces)
        registers = TileRegisters(f, module, f["mine"] + REGISTERS_AT)
        registers.configure(a["configuration"])
        some_tiles, row_copy = f.scratch(RUN.itemsize), f.scratch(ROW.itemsize)
        step = a["at_once"]
        with f.loop(run["first"], run["last"], step) as tiles:
            f.store(tiles.index, some_tiles)
            f.store(f.min(tiles.index + step, run["last"]), some_tiles + 8)
            with f.loop(part["first"], part["last"]) as number:
                row = Record.of(f, a["rows"], number.index, ROW)
                w = f.select(packs, slab + row["slab"], row["w"])
                for i, name in enumerate(ROW.names or ()):
                    f.store(w if name == "w" else row[name], row_copy + 8 * i)
                code = f.convert("inttoptr", row["code"], PTR)
                f.call(code, f["args"], f["mine"], some_tiles, row_copy)
        registers.release()
