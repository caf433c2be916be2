"""The functions that the walk calls for a weight gradient on tile registers.

    job(args, mine, job, set)       packs operands and computes the sums of a job's units, for a
                                    set's spatial blocks
    finish(args, mine, block, _)    adds the sets' sums of a block, and stores them in dw

A thread's memory `mine` begins with the key of its packed panels of x. A unit's sums (if there is
one spatial block), space to transpose a block, panels, and emulated registers follow.
"""

from __future__ import annotations

from .. import walk
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module, signature
from ..kernel_arguments import ArgumentLayout, Arguments
from ..tiles.operations import ROW_BYTES, ROWS, TILE_BYTES, TileRegisters
from ..values import FLOAT, I64, Value, vector
from .driver import DELIVER, SUMS, emit_deliver, emit_finish, fields, row_of
from .tables import BLOCK
from .tile_tables import JOB, PHASE, PIECE, RANGE, SET, TAP, UNIT

_OPERAND = "image channel position line step panel"
ARGUMENTS = ArgumentLayout(
    walk.NUMBERS
    + "stages* dw* x* g* configuration* x_copy* g_copy* transpose* deliver* add*"
    + " products11* products12* products21* products22*"
    + " units* blocks* pieces* ranges* phases_of_g* taps* "
    + "".join(f"{side}_{name} " for side in "xg" for name in _OPERAND.split())
    + "x_size x_parities x_parity g_row set_count set_bytes element tile_rows tile_width spare"
    " registers taps_inside transposed by_row by_lane by_tap sums_row sums_tap block_bytes single"
    " keys phases_count chunks chunks_at_once",
    counters=walk.COUNTERS + "bad",
)
_PACK_X = signature("args* mine* number unit*")
_PHASE = signature("args* mine* number unit* phase* sums* fresh")


@compiled("job", "finish", kept=8, opt=1)
def tile_driver_code(module: Module, cpu: Cpu) -> None:
    """Emit all functions except products and copies."""
    _emit_pack_x(module)
    _emit_pack_g(module)
    _emit_products(module)
    emit_deliver(module, ARGUMENTS, "store")
    _emit_checked_deliver(module, cpu)
    emit_finish(module, ARGUMENTS)
    with module.function("job", walk.JOB) as f:
        a = ARGUMENTS.reader(f)
        tiles = TileRegisters(f, module, f["mine"])
        tiles.configure(a["configuration"])
        job, sums_set = fields(f, f["inner"], JOB), fields(f, f["outer"], SET)
        start, stop = sums_set["works"], sums_set["works"] + sums_set["count"]
        # The last spatial block stores the sums in dw, unless other sets have sums to add.
        last = f.select(a["set_count"] > 1, -1, stop + -1)
        units = job["units"], job["units"] + job["count"]
        with f.loop(start, stop) as number, f.loop(*units) as unit_number:
            at = row_of(f, a["units"], unit_number.index, UNIT)
            unit, mine = fields(f, at, UNIT), (f["args"], f["mine"])
            shared = a["stages"] + (sums_set["sums"] + unit["sums"])
            sums = f.select(a["single"] > 0, f["mine"] + SUMS, shared)
            fresh = f.select(f.compare("eq", number.index, start), 1, 0)
            f.call("pack_x", *mine, number.index, at)
            with f.loop(0, a["phases_count"]) as loop:
                phase = row_of(f, a["phases_of_g"], loop.index, PHASE)
                f.call("pack_g", *mine, number.index, at, phase, sums, fresh)
                f.call("products", *mine, number.index, at, phase, sums, fresh)
            with (
                f.when(f.compare("eq", number.index, last)),
                f.loop(0, unit["block_count"]) as loop,
            ):
                block = row_of(f, a["blocks"], unit["blocks"] + loop.index, BLOCK)
                f.call("deliver", *mine, block, sums + loop.index * a["block_bytes"])
        tiles.release()


def _emit_pack_x(module: Module) -> None:
    """Emit `pack_x`, which packs a unit's panels of x, unless the thread has them."""
    with module.function("pack_x", _PACK_X, exported=False) as f:
        a, unit = ARGUMENTS.reader(f), fields(f, f["unit"], UNIT)
        key = f["number"] * a["keys"] + unit["key"] + 1
        first, stop = _range(f, a, f["number"])
        with f.when(f.compare("ne", f.load(I64, f["mine"]), key)):
            f.store(key, f["mine"])
            with f.loop(0, a["x_parities"]) as parity, f.loop(first, stop) as loop:
                piece = fields(f, row_of(f, a["pieces"], loop.index, PIECE), PIECE)
                # Pairs begin at positions of one parity, so half of the first may be outside.
                head = (piece["at"] + parity.index) % 2
                pair = (piece["at"] + 2 - parity.index) // 2 + -1
                dst = f["mine"] + a["x_panel"] + parity.index * a["x_parity"] + pair * ROW_BYTES
                _copy(f, a, "x", piece, unit, dst, piece["position"], a["x_size"], head)


def _emit_pack_g(module: Module) -> None:
    """Emit `pack_g`, which packs a unit's panels of g for a phase."""
    with module.function("pack_g", _PHASE, exported=False) as f:
        a, unit = ARGUMENTS.reader(f), fields(f, f["unit"], UNIT)
        phase = fields(f, f["phase"], PHASE)
        first, stop = _range(f, a, phase["ranges"] + f["number"])
        with f.loop(first, stop) as loop:
            piece = fields(f, row_of(f, a["pieces"], loop.index, PIECE), PIECE)
            dst = f["mine"] + a["g_panel"] + piece["at"] * 2
            position = piece["position"] + phase["position"]
            _copy(f, a, "g", piece, unit, dst, position, a["g_row"], f.integer(0))


def _range(f: Function, a: Arguments, number: Value) -> tuple[Value, Value]:
    """Return a panel's first piece, and the end of its pieces."""
    row = fields(f, row_of(f, a["ranges"], number, RANGE), RANGE)
    return row["first"], row["first"] + row["count"]


def _copy(
    f: Function, a: Arguments, side: str, piece: dict[str, Value], unit: dict[str, Value],
    dst: Value, position: Value, dst_row: Value, head: Value,
) -> None:  # fmt: skip
    """Call the code that packs a piece for all of a unit's channels."""
    src = a[side] + (piece["image"] * a[f"{side}_image"] + position * a[f"{side}_position"])
    f.call(
        a[f"{side}_copy"], dst, src + unit[side] * a[f"{side}_channel"], unit[f"{side}_count"],
        piece["length"], piece["zeros"], a[f"{side}_line"], a[f"{side}_step"], dst_row, head,
    )  # fmt: skip


def _emit_products(module: Module) -> None:
    """Emit `products` for a phase, on as many chunks at once as fit in the first-level cache."""
    with module.function("products", _PHASE, exported=False) as f:
        a, unit = ARGUMENTS.reader(f), fields(f, f["unit"], UNIT)
        phase = fields(f, f["phase"], PHASE)
        columns, rows = ((unit[f"{s}_count"] + (ROWS - 1)) // ROWS for s in "xg")
        by_row = columns * a["block_bytes"]
        with (
            f.loop(0, a["chunks"], a["chunks_at_once"]) as chunk,
            f.loop(0, columns, 2) as column,
            f.loop(phase["taps"], phase["taps"] + phase["count"]) as loop,
        ):
            tap = fields(f, row_of(f, a["taps"], loop.index, TAP), TAP)
            fresh = f.select(chunk.index < 1, f["fresh"], 0)
            g = f["mine"] + a["g_panel"] + chunk.index * ROW_BYTES
            x = f["mine"] + a["x_panel"] + column.index * a["x_size"]
            x = x + chunk.index * TILE_BYTES + tap["offset"]
            both = column.index + 1 < columns
            one_row = f.select(both, a["products12"], a["products11"])
            two_rows = f.select(both, a["products22"], a["products21"])
            f.call(
                f.select(rows > 1, two_rows, one_row), g, a["g_row"], x, a["x_size"],
                f.min(a["chunks"] - chunk.index, a["chunks_at_once"]),
                f["sums"] + column.index * a["block_bytes"] + tap["number"] * a["sums_tap"],
                a["sums_row"], by_row, a["block_bytes"], fresh, f["mine"] + a["registers"],
            )  # fmt: skip


def _emit_checked_deliver(module: Module, cpu: Cpu) -> None:
    """Emit `deliver`, which stores a block's sums in dw, and sets `bad` if one is not finite."""
    lanes = min(ROWS, cpu.lanes(4))
    kind = vector(FLOAT, lanes)
    with module.function("deliver", DELIVER, exported=False) as f:
        a, block = ARGUMENTS.reader(f), fields(f, f["block"], BLOCK)
        zero = f.constant(kind, 0.0)
        for part in range(0, ROWS, lanes):
            mask = f.lanes_below(block["active_lanes"] - part, lanes)
            with f.loop(0, block["active_rows"], carried=[zero]) as row:
                at = f["sums"] + (row.index * a["sums_row"] + 4 * part)
                with f.loop(0, block["count"], carried=row.carried) as tap:
                    sums = f.load_lanes(kind, at + tap.index * a["sums_tap"], mask)
                    tap.next([f.multiply_add(sums, zero, tap.carried[0])])
                row.next(tap.results)
            odd = f.compare("uno", row.results[0], zero)
            with f.when(f.compare("ne", f.convert("bitcast", odd, f"i{lanes}"), 0)):
                f.publish(1, a.address("bad"))
        f.call("store", f["args"], f["mine"], f["block"], f["sums"])
