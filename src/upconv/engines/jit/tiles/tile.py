"""The register tile: several tiles of positions by several blocks of 16 outputs.

Sums begin with the bias. A step takes up to 32 inputs of one tap, or of neighbouring taps. It loads
a tile of inputs for each tile of positions and a tile of weights for each block, and multiplies all
pairs of them. Complete sums are stored to a stage in the first-level cache, and moved from there to
the output, with the epilogue unless they are transposed back first.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import walk
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module
from ..kernel_arguments import Record
from ..rows import Finish, Span, finish_span
from ..values import Value
from .driver import ARGUMENTS, PIECE, REGISTERS_AT, ROW, RUN, STAGE_AT, TILE
from .operations import PAIRS, REGISTERS, ROW_BYTES, ROWS, TILE_BYTES, TileRegisters, emit_product


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """A register tile's class: `rows` tiles of positions by `columns` blocks of outputs
    (`max_columns` in full tiles), with `width` inputs per product. `finish` says how to finish
    results; `flushes` is as in `converted`."""

    rows: int
    columns: int
    max_columns: int
    width: int
    finish: Finish
    flushes: bool = False

    @property
    def keeps_weights(self) -> bool:
        """Whether weights stay in registers during a step, while inputs pass through the others."""
        return self.max_columns <= self.rows

    @property
    def operands(self) -> tuple[range, range]:
        """The registers for inputs and for weights, which do not depend on `columns`."""
        sums = self.rows * self.max_columns
        kept = range(sums, sums + min(self.rows, self.max_columns))
        passing = range(kept.stop, REGISTERS)
        return (passing, kept) if self.keeps_weights else (kept, passing)

    @property
    def line(self) -> int:
        """Bytes of one position's sums in the stage."""
        return self.columns * ROW_BYTES


@compiled("tile", kept=64)
def tile_code(module: Module, tile: RegisterTile, cpu: Cpu) -> None:
    """Emit `tile`, which computes a run, `tile.rows` tiles at a time; it may repeat the last."""
    emit_product(module)
    with module.function("tile", walk.JOB) as f:
        a, run, row = ARGUMENTS.reader(f), Record(f, f["inner"], RUN), Record(f, f["outer"], ROW)
        registers = TileRegisters(f, module, f["mine"] + REGISTERS_AT)
        weights, bias = a["w"] + row["w"], a["bias"] + row["bias"]
        x, steps, last = a["x"] + row["x"], a["steps"] + row["steps"], run["last"] - 1
        spans = _spans(f, tile, row["active"])
        with f.loop(run["first"], run["last"], tile.rows) as loop:
            numbers = [f.min(loop.index + i, last) for i in range(tile.rows)]
            tiles = [Record.of(f, a["tiles"] + row["tiles"], n, TILE) for n in numbers]
            _start(registers, tile, bias)
            _products(f, registers, tile, [x + record["x"] for record in tiles], weights, steps)
            stage = f["mine"] + STAGE_AT
            for i in range(tile.rows):
                for j in range(tile.columns):
                    address = stage + (i * ROWS * tile.line + j * ROW_BYTES)
                    registers.store(i * tile.columns + j, address, tile.line)
            for i, record in enumerate(tiles):
                # A repeated tile is stored once, because results may be added to old ones.
                with f.when(loop.index + i < run["last"]):
                    _finish_rows(f, tile, row, record, stage + i * ROWS * tile.line, spans)


def _start(registers: TileRegisters, tile: RegisterTile, bias: Value) -> None:
    """Begin all sums with the bias: the same row 16 times."""
    for i in range(tile.rows):
        for j in range(tile.columns):
            registers.load(i * tile.columns + j, bias + j * ROW_BYTES, 0)


def _products(
    f: Function, registers: TileRegisters, tile: RegisterTile, inputs: list[Value],
    weights: Value, steps: Value,
) -> None:  # fmt: skip
    """Emit all steps. The operand with more tiles passes through the remaining registers."""
    row = Record(f, f["outer"], ROW)
    slab = row["count"] * TILE_BYTES
    with f.loop(0, row["count"], carried=[weights]) as loop:
        offset, block = f.word(steps, loop.index), loop.carried[0]
        addresses = [[x + offset for x in inputs], [block + slab * j for j in range(tile.columns)]]
        row_steps, widths = (ARGUMENTS.reader(f)["x_row"], ROW_BYTES), (tile.width, PAIRS)
        kept, other = (1, 0) if tile.keeps_weights else (0, 1)
        held, free = tile.operands[kept], tile.operands[other]
        for register, address in zip(held, addresses[kept], strict=False):
            registers.load(register, address, row_steps[kept], widths[kept])
        for i, address in enumerate(addresses[other]):
            register = free[i % len(free)]
            registers.load(register, address, row_steps[other], widths[other])
            for j, fixed in zip(range(len(addresses[kept])), held, strict=False):
                if tile.keeps_weights:
                    registers.multiply_add(i * tile.columns + j, register, fixed)
                else:
                    registers.multiply_add(j * tile.columns + i, fixed, register)
        loop.next([block + TILE_BYTES])


def _spans(f: Function, tile: RegisterTile, active: Value) -> list[Span]:
    """Return the spans of a position's results; their masks exclude inactive channels."""
    # One instruction narrows two vectors, and another stores them.
    lanes = ROWS if tile.columns % 2 else 2 * ROWS
    return [
        Span(f, f.integer(start), lanes, f.lanes_below(active - start, lanes))
        for start in range(0, tile.columns * ROWS, lanes)
    ]


def _finish_rows(
    f: Function, tile: RegisterTile, row: Record, record: Record, stage: Value, spans: list[Span]
) -> None:
    """Finish the rows in a tile of positions that are results."""
    a, kind = ARGUMENTS.reader(f), tile.finish
    slopes = a["bias"] + (a["slopes"] + row["bias"])
    addresses = {"dst": a["y"], "residual": a["residual"], "second": a["second"]}
    with f.loop(record["pieces"], record["pieces_end"]) as loop:
        piece = Record.of(f, a["pieces"], loop.index, PIECE)
        first, offset = stage + piece["row"] * tile.line, row["y"] + piece["y"]
        with f.loop(0, piece["count"], carried=[first, offset]) as line:
            sums, to = line.carried
            for span in spans:
                finish_span(f, kind, addresses, sums, to, slopes, span, flushes=tile.flushes)
            line.next([sums + tile.line, to + a["y_position"]])
