"""The register tile: some tiles of positions by some blocks of 16 outputs.

Sums begin with the bias. A step takes 32 input channels of one tap: it loads a tile of inputs for
each tile of positions, a tile of weights for each block, and multiplies each by each. Finished sums
go to a stage in the first-level cache, and from there, with the whole epilogue, to the output.
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
    """The class of a register tile: `rows` tiles of positions, `columns` blocks of outputs, which
    are `most` elsewhere; `width` inputs of a product; what is done to results, and whether
    subnormal ones are zero, as an instruction leaves them."""

    rows: int
    columns: int
    most: int
    width: int
    finish: Finish
    flushes: bool = False

    @property
    def keeps_weights(self) -> bool:
        """Whether weights stay in registers while inputs pass through, or the other way."""
        return self.most <= self.rows

    @property
    def operands(self) -> tuple[range, range]:
        """The registers of inputs, and those of weights: the same for all `columns`."""
        sums = self.rows * self.most
        kept = range(sums, sums + min(self.rows, self.most))
        passing = range(kept.stop, REGISTERS)
        return (passing, kept) if self.keeps_weights else (kept, passing)

    @property
    def line(self) -> int:
        """Bytes of the sums of one position in the stage."""
        return self.columns * ROW_BYTES


@compiled("tile", kept=64)
def tile_code(module: Module, tile: RegisterTile, cpu: Cpu) -> None:
    """The tiles of a run of positions, `tile.rows` at a time; the last ones may be the same."""
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
            _products(f, registers, tile, [x + each["x"] for each in tiles], weights, steps)
            stage = f["mine"] + STAGE_AT
            for i in range(tile.rows):
                for j in range(tile.columns):
                    place = stage + (i * ROWS * tile.line + j * ROW_BYTES)
                    registers.store(i * tile.columns + j, place, tile.line)
            for i, each in enumerate(tiles):
                # Not twice: results may be added to what is there.
                with f.when(loop.index + i < run["last"]):
                    _leave(f, tile, row, each, stage + i * ROWS * tile.line, spans)


def _start(registers: TileRegisters, tile: RegisterTile, bias: Value) -> None:
    """Begin all sums with the bias: the same row sixteen times."""
    for i in range(tile.rows):
        for j in range(tile.columns):
            registers.load(i * tile.columns + j, bias + j * ROW_BYTES, 0)


def _products(
    f: Function, registers: TileRegisters, tile: RegisterTile, inputs: list[Value],
    weights: Value, steps: Value,
) -> None:  # fmt: skip
    """All steps. The operand of which there are more tiles passes through what registers remain."""
    row = Record(f, f["outer"], ROW)
    slab = row["count"] * TILE_BYTES
    with f.loop(0, row["count"], carried=[weights]) as loop:
        offset, block = f.word(steps, loop.index), loop.carried[0]
        places = [[x + offset for x in inputs], [block + slab * j for j in range(tile.columns)]]
        apart, widths = (ARGUMENTS.reader(f)["x_row"], ROW_BYTES), (tile.width, PAIRS)
        kept, other = (1, 0) if tile.keeps_weights else (0, 1)
        held, free = tile.operands[kept], tile.operands[other]
        for register, place in zip(held, places[kept], strict=False):
            registers.load(register, place, apart[kept], widths[kept])
        for i, place in enumerate(places[other]):
            register = free[i % len(free)]
            registers.load(register, place, apart[other], widths[other])
            for j, fixed in zip(range(len(places[kept])), held, strict=False):
                if tile.keeps_weights:
                    registers.multiply_add(i * tile.columns + j, register, fixed)
                else:
                    registers.multiply_add(j * tile.columns + i, fixed, register)
        loop.next([block + TILE_BYTES])


def _spans(f: Function, tile: RegisterTile, active: Value) -> list[Span]:
    """The results of a position, under masks that leave out what is no output channel."""
    # One instruction narrows two vectors, and another stores them.
    lanes = ROWS if tile.columns % 2 else 2 * ROWS
    return [
        Span(f, f.integer(start), lanes, f.lanes_below(active - start, lanes))
        for start in range(0, tile.columns * ROWS, lanes)
    ]


def _leave(
    f: Function, tile: RegisterTile, row: Record, each: Record, stage: Value, spans: list[Span]
) -> None:
    """Finish the rows of a tile of positions that are results."""
    a, kind = ARGUMENTS.reader(f), tile.finish
    slopes = a["bias"] + (a["slopes"] + row["bias"])
    places = {"dst": a["y"], "residual": a["residual"], "second": a["second"]}
    with f.loop(each["pieces"], each["pieces_end"]) as loop:
        piece = Record.of(f, a["pieces"], loop.index, PIECE)
        first, offset = stage + piece["row"] * tile.line, row["y"] + piece["y"]
        with f.loop(0, piece["count"], carried=[first, offset]) as line:
            sums, to = line.carried
            for span in spans:
                finish_span(f, kind, places, sums, to, slopes, span, flushes=tile.flushes)
            line.next([sums + tile.line, to + a["y_position"]])
