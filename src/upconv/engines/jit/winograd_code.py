"""What computes by Winograd's algorithm: transforms, products, and the loop that walks the tables.

    input(...)      windows of the packed rows of a block, transformed, into V[point][tile][channel]
    products(...)   Z[point] = V[point] U[point], a product of matrices for one point
    inverse(...)    columns of Z, transformed back, + bias, into rows of results
    run(args)       every thread: takes jobs, packs rows, and calls the three above

All run in memory of a thread that fits its second-level cache. Vectors lie along channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product

from ...activations import Activation
from ...problem import DataLayout
from .activation import activated
from .compile import Code
from .cpu import Cpu
from .emit import Function, Module
from .slots import Arguments, Slots, jobs
from .tile import multiply_add
from .values import BYTES, I64, PTR, Value, split, vector
from .winograd import Matrix

BLOCK = ("rows", "row_count", "before", "count", "column", "tiles", "tile_count", "results", "skip")
"""Of a block: its rows of the operand; of each the positions before what is there, those that are,
and where they begin; its tiles; its results [skip, skip + results) of a row. Then, for each
combination of outer phases, its rows of the result: the first, and how many."""
ROW = ("place", "image", "position")
TILE = ("operand", "result")
"""Where a row or a tile lies, in positions; a row of the operand that is not there has image -1."""

SLOTS = Slots(
    ("buffer", "x", "y", "residual", "w", "bias", "block", "row", "tile", "result", "phase",
     "fill", "turn", "turn_back", "finish", "input", "products", "inverse"),
    ("part", "v_at", "z_at", "stage_at", "turned_at", "jobs", "blocks", "runs", "units",
     "all_units", "chunks", "depth", "phases", "block_size", "channels", "chunk", "element",
     "points", "rows",
     "panels", "x_image", "x_channel", "x_position", "y_image", "y_channel", "y_position",
     "x_group", "y_group", "w_unit", "w_point", "v_point", "v_row", "z_point", "z_row",
     "made", "live", "padded", "columns", "whole", "late",
     "x_step_0", "x_step_1", "y_step_0", "y_step_1", "span", "lanes"),
    ("next", "next_thread", "bad"),
)  # fmt: skip

_INPUT = {
    "src": PTR,
    "dst": PTR,
    "tiles": PTR,
    "count": I64,
    "vectors": I64,
    "step_0": I64,  # bytes from one position to the next along the outer axes
    "step_1": I64,
    "point": I64,  # bytes from one point to the next
    "row": I64,  # bytes from one tile to the next
}
_PRODUCTS = {
    "v": PTR,
    "u": PTR,
    "z": PTR,
    "channels": I64,
    "rows": I64,  # groups of rows
    "panels": I64,
    "z_row": I64,
}
_INVERSE = {
    "src": PTR,
    "dst": PTR,
    "tiles": PTR,
    "count": I64,
    "vectors": I64,
    "bias": PTR,
    "step_0": I64,
    "step_1": I64,
    "step_2": I64,  # bytes from one q of the last axis to the next
    "position": I64,  # bytes of a position
    "point": I64,
    "row": I64,
    "bad": PTR,  # set to 1 where a result is not finite
}


@dataclass(frozen=True, slots=True)
class Products:
    """The class of a register tile: `rows` by `vectors`, rows of V being `pitch` bytes apart."""

    element: str
    lanes: int
    rows: int
    vectors: int
    pitch: int


@dataclass(frozen=True, slots=True)
class Inverse:
    """The class of an inverse transform, by the matrix of each axis, with what comes after it."""

    element: str
    matrices: tuple[Matrix, ...]
    activation: Activation
    slope: float


@lru_cache(maxsize=64)
def products_code(kind: Products, cpu: Cpu) -> Code:
    """`products` of one class."""
    module, line = Module(cpu.attributes), vector(kind.element, kind.lanes)
    size = BYTES[kind.element]
    width = kind.vectors * kind.lanes * size
    zeros = [Value(line, "zeroinitializer")] * (kind.rows * kind.vectors)
    with module.function("products", _PRODUCTS) as f:
        panel_bytes = f.mul(f["channels"], width)
        with f.loop(0, f["panels"]) as panel, f.loop(0, f["rows"]) as group:
            u = f.at(f["u"], f.mul(panel.index, panel_bytes))
            v = f.at(f["v"], f.mul(group.index, kind.rows * kind.pitch))
            # The panel that comes next is asked for by the first groups of this one.
            part = f.mul(f.rem(group.index, kind.vectors), f.mul(f["channels"], kind.lanes * size))
            ahead = f.at(u, f.add(panel_bytes, part))
            with f.loop(0, f["channels"], carried=[u, v, ahead, *zeros]) as loop:
                u, v, ahead, *sums = loop.carried
                f.prefetch(ahead)
                weights = [
                    f.load(line, f.at(u, i * kind.lanes * size)) for i in range(kind.vectors)
                ]
                for r in range(kind.rows):
                    number = f.load(kind.element, f.at(v, r * kind.pitch))
                    factor = f.broadcast(number, kind.lanes)
                    for i, weight in enumerate(weights):
                        place = r * kind.vectors + i
                        sums[place] = multiply_add(f, cpu, factor, weight, sums[place])
                loop.next([f.at(u, width), f.at(v, size), f.at(ahead, kind.lanes * size), *sums])
            z = f.at(f["z"], f.mul(panel.index, width))
            z = f.at(z, f.mul(f.mul(group.index, kind.rows), f["z_row"]))
            for r in range(kind.rows):
                for i in range(kind.vectors):
                    total = loop.results[3 + r * kind.vectors + i]
                    f.store(total, f.at(z, i * kind.lanes * size))
                z = f.at(z, f["z_row"])
    return Code(module, ("products",), cpu)


@lru_cache(maxsize=64)
def input_code(
    element: str, matrices: tuple[Matrix, ...], position: int, step: int, cpu: Cpu
) -> Code:
    """`input` of one class; `position` are the bytes from one position to the next, of which a
    window has every `step`-th along the last axis."""
    module, lanes = Module(cpu.attributes), cpu.lanes(BYTES[element])
    line, nbytes = vector(element, lanes), lanes * BYTES[element]
    *outer, last = (len(matrix[0]) for matrix in matrices)
    with module.function("input", _INPUT) as f, f.loop(0, f["count"]) as tile:
        entry = f.at(f["tiles"], f.mul(tile.index, len(TILE)), I64)
        window = f.at(f["src"], f.mul(f.load(I64, entry), position))
        dst = f.at(f["dst"], f.mul(tile.index, f["row"]))
        with f.loop(0, f["vectors"], carried=[window, dst]) as loop:
            src, to = loop.carried
            numbers = {}
            for place, start in _lines(f, src, outer):
                for i in range(last):
                    numbers[(*place, i)] = f.load(line, f.at(start, i * step * position))
            for value in _transformed(f, cpu, numbers, matrices).values():
                f.store(value, to)
                to = f.at(to, f["point"])
            loop.next([f.at(src, nbytes), f.at(loop.carried[1], nbytes)])
    return Code(module, ("input",), cpu)


@lru_cache(maxsize=64)
def inverse_code(kind: Inverse, cpu: Cpu) -> Code:
    """`inverse` of one class."""
    module, lanes = Module(cpu.attributes), cpu.lanes(BYTES[kind.element])
    line, nbytes = vector(kind.element, lanes), lanes * BYTES[kind.element]
    points = [len(matrix[0]) for matrix in kind.matrices]
    *outer, last = (len(matrix) for matrix in kind.matrices)
    zero = Value(line, "zeroinitializer")
    with module.function("inverse", _INVERSE) as f:
        with f.loop(0, f["count"], carried=[zero]) as tile:
            entry = f.at(f["tiles"], f.mul(tile.index, len(TILE)), I64)
            place = f.load(I64, f.at(entry, 1, I64))
            dst = f.at(f["dst"], f.mul(place, f["position"]))
            src = f.at(f["src"], f.mul(tile.index, f["row"]))
            starts = [src, dst, f["bias"], tile.carried[0]]
            with f.loop(0, f["vectors"], carried=starts) as loop:
                src, dst, bias, bad = loop.carried
                numbers, of_point = {}, src
                for point in product(*map(range, points)):
                    numbers[point] = f.load(line, of_point)
                    of_point = f.at(of_point, f["point"])
                made = _transformed(f, cpu, numbers, kind.matrices)
                start = f.load(line, bias)
                for rows, to in _lines(f, dst, outer):
                    for i in range(last):
                        value = made[(*rows, i)]
                        bad = multiply_add(f, cpu, value, zero, bad)
                        value = f.arithmetic("fadd", value, start)
                        f.store(activated(f, cpu, kind.activation, kind.slope, value), to)
                        to = f.at(to, f["step_2"])
                moved = [f.at(each, nbytes) for each in loop.carried[:3]]
                loop.next([*moved, bad])
            tile.next([loop.results[3]])
        _report(f, tile.results[0])
    return Code(module, ("inverse",), cpu)


def _report(f: Function, bad: Value) -> None:
    """Set the flag where a lane of `bad` is NaN."""
    lanes = split(bad.type)[1]
    odd = f.convert("bitcast", f.fcompare("uno", bad, bad), f"i{lanes}")
    with f.when(f.compare("ne", f.convert("zext", odd, I64), 0)):
        f.publish(1, f["bad"])


def _lines(f: Function, start: Value, outer: Sequence[int]) -> list[tuple[tuple[int, ...], Value]]:
    """The places of all combinations of positions along the outer axes, of which there are 0 to 2,
    and their addresses."""
    steps = ("step_0", "step_1")[2 - len(outer) :] if outer else ()
    found: list[tuple[tuple[int, ...], Value]] = [((), start)]
    for count, step in zip(outer, steps, strict=True):
        more = []
        for place, address in found:
            for i in range(count):
                more.append(((*place, i), address))
                address = f.at(address, f[step])
        found = more
    return found


Numbers = dict[tuple[int, ...], Value]


def _transformed(f: Function, cpu: Cpu, numbers: Numbers, matrices: Sequence[Matrix]) -> Numbers:
    """Vectors by their place along all axes, multiplied by the matrix of each axis."""
    for axis in reversed(range(len(matrices))):
        matrix, made = matrices[axis], {}
        sizes = [1 + max(place[i] for place in numbers) for i in range(len(matrices))]
        sizes[axis] = 1
        for first in product(*map(range, sizes)):
            before, after = first[:axis], first[axis + 1 :]
            column = [numbers[(*before, i, *after)] for i in range(len(matrix[0]))]
            for i, row in enumerate(matrix):
                made[(*before, i, *after)] = _combined(f, cpu, row, column)
        numbers = made
    return dict(sorted(numbers.items()))


def _combined(f: Function, cpu: Cpu, row: Sequence[Fraction], column: Sequence[Value]) -> Value:
    """The sum of vectors times the numbers of a row."""
    terms = [(c, v) for c, v in zip(row, column, strict=True) if c]
    terms.sort(key=lambda term: term[0] != 1)  # one that is just added comes first
    factor, total = terms[0]
    if factor != 1:
        total = f.arithmetic("fmul", total, f.constant(total.type, float(factor)))
    for factor, value in terms[1:]:
        if abs(factor) == 1:
            total = f.arithmetic("fadd" if factor > 0 else "fsub", total, value)
        else:
            total = multiply_add(f, cpu, value, f.constant(value.type, float(factor)), total)
    return total


# The loop over jobs -------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def driver_code(layout: DataLayout, cpu: Cpu) -> Code:
    """`run` for data of one layout."""
    module = Module(cpu.attributes)
    with module.function("run", {"args": PTR}) as f:
        a = SLOTS.reader(f)
        mine = f.at(a["buffer"], f.mul(f.take(a.address("next_thread")), a["part"]))
        with jobs(f, a.address("next"), a["jobs"]) as job:
            block, rest = f.rem(job, a["blocks"]), f.div(job, a["blocks"])
            run, group = f.rem(rest, a["runs"]), f.div(rest, a["runs"])
            record = f.at(a["block"], f.mul(block, a["block_size"]), I64)
            fields = {name: f.load(I64, f.at(record, i, I64)) for i, name in enumerate(BLOCK)}
            tiles = f.at(a["tile"], f.mul(fields["tiles"], len(TILE)), I64)
            work = _Work(f, a, mine, record, fields, tiles, group)
            _emit_operand(work, layout)
            first = f.mul(run, a["units"])
            stop = f.min(a["all_units"], f.add(first, a["units"]))
            with f.loop(first, stop) as unit:
                _emit_unit(work, unit.index, layout)
    return Code(module, ("run",), cpu, opt=1)


@dataclass(frozen=True, slots=True)
class _Work:
    """A job inside `run`."""

    f: Function
    a: Arguments
    mine: Value
    record: Value
    fields: dict[str, Value]
    tiles: Value
    group: Value


def _emit_operand(work: _Work, layout: DataLayout) -> None:
    """Pack a block's rows and transform its windows, some channels at a time."""
    f, a, b = work.f, work.a, work.fields
    wide = f.mul(a["chunk"], a["element"])
    src = f.at(a["x"], f.mul(work.group, a["x_group"]))
    with f.loop(0, a["channels"], a["chunk"]) as loop:
        live = f.min(a["chunk"], f.sub(a["channels"], loop.index))
        here = f.at(src, f.mul(loop.index, a["x_channel"]))
        with f.loop(b["rows"], f.add(b["rows"], b["row_count"])) as row:
            entry = f.at(a["row"], f.mul(row.index, len(ROW)), I64)
            place, image, position = (f.load(I64, f.at(entry, i, I64)) for i in range(len(ROW)))
            dst = f.at(work.mine, f.mul(place, wide))
            branch = f.either(f.compare("slt", image, 0))
            with branch.so():
                _zeros(work, dst, a["span"])
            with branch.otherwise():
                _zeros(work, dst, b["before"])
                inside = f.at(dst, f.mul(b["before"], wide))
                position = f.add(position, b["column"])
                offset = f.add(f.mul(image, a["x_image"]), f.mul(position, a["x_position"]))
                given = f.at(here, offset)
                if layout is DataLayout.NCX:
                    f.call(a["turn"], inside, given, live, b["count"], a["x_channel"], wide)
                else:
                    f.call(
                        a["fill"], inside, given, live, f.sub(a["chunk"], live), b["count"], wide,
                        a["x_position"],
                    )  # fmt: skip
                after = f.add(b["before"], b["count"])
                _zeros(work, f.at(dst, f.mul(after, wide)), f.sub(a["span"], after))
        vectors = f.div(f.add(live, f.sub(a["lanes"], 1)), a["lanes"])
        v = f.at(work.mine, a["v_at"])
        v = f.at(v, f.mul(f.mul(loop.index, a["phases"]), a["element"]))
        with f.loop(0, a["phases"]) as phase:
            first = f.load(I64, f.at(a["phase"], phase.index, I64))
            f.call(
                a["input"], f.at(work.mine, f.mul(first, wide)),
                f.at(v, f.mul(f.mul(phase.index, live), a["element"])), work.tiles,
                b["tile_count"], vectors, a["x_step_0"], a["x_step_1"], a["v_point"], a["v_row"],
            )  # fmt: skip


def _zeros(work: _Work, dst: Value, positions: Value) -> None:
    f, a = work.f, work.a
    f.call(a["fill"], dst, dst, 0, f.mul(positions, a["chunk"]), 1, 0, 0)


def _emit_unit(work: _Work, unit: Value, layout: DataLayout) -> None:
    """Products of all points, their inverse, and where its results go."""
    f, a, b, mine = work.f, work.a, work.fields, work.mine
    phase, chunk = f.div(unit, a["chunks"]), f.rem(unit, a["chunks"])
    number = f.add(f.mul(work.group, a["all_units"]), unit)
    u = f.at(a["w"], f.mul(number, a["w_unit"]))
    rows = f.div(f.add(b["tile_count"], f.sub(a["rows"], 1)), a["rows"])
    z, stage = f.at(mine, a["z_at"]), f.at(mine, a["stage_at"])
    with f.loop(0, a["points"]) as point:
        f.call(
            a["products"], f.at(f.at(mine, a["v_at"]), f.mul(point.index, a["v_point"])),
            f.at(u, f.mul(point.index, a["w_point"])), f.at(z, f.mul(point.index, a["z_point"])),
            a["depth"], rows, a["panels"], a["z_row"],
        )  # fmt: skip
    biases = f.mul(f.add(f.mul(work.group, a["chunks"]), chunk), a["columns"])
    position = f.mul(a["padded"], a["element"])
    f.call(
        a["inverse"], z, stage, work.tiles, b["tile_count"], f.div(a["columns"], a["lanes"]),
        f.at(a["bias"], f.mul(biases, a["element"])), a["y_step_0"], a["y_step_1"],
        f.mul(a["columns"], a["element"]), position, a["z_point"], a["z_row"], a.address("bad"),
    )  # fmt: skip
    start = f.mul(chunk, a["live"])
    live = f.min(a["live"], f.sub(a["made"], start))
    channel = f.add(f.mul(work.group, a["y_group"]), f.mul(start, a["y_channel"]))
    of_phase = f.at(work.record, f.add(f.mul(phase, 2), len(BLOCK)), I64)
    first, count = f.load(I64, of_phase), f.load(I64, f.at(of_phase, 1, I64))
    with f.loop(first, f.add(first, count)) as row:
        entry = f.at(a["result"], f.mul(row.index, len(ROW)), I64)
        place, image, to = (f.load(I64, f.at(entry, i, I64)) for i in range(len(ROW)))
        src = f.at(stage, f.mul(f.add(place, b["skip"]), position))
        offset = f.add(f.mul(image, a["y_image"]), f.mul(to, a["y_position"]))
        _emit_result(work, layout, src, f.add(offset, channel), live)


def _emit_result(work: _Work, layout: DataLayout, src: Value, offset: Value, live: Value) -> None:
    """A row of results, of `live` channels, to its place in y."""
    f, a, count = work.f, work.a, work.fields["results"]
    position = f.mul(a["padded"], a["element"])
    y, more = f.at(a["y"], offset), f.at(a["residual"], offset)
    if layout is DataLayout.NXC:
        # Where a unit has all channels, a row is one run.
        runs = f.select(f.compare("ne", a["whole"], 0), f.integer(1), count)
        length = f.select(f.compare("ne", a["whole"], 0), f.mul(count, live), live)
        f.call(
            a["finish"], src, y, more, 1, 0, 0, runs, length, position, a["y_position"]
        )  # fmt: skip
        return
    branch = f.either(f.compare("eq", a["late"], 0))
    with branch.so():
        f.call(a["turn_back"], y, src, count, live, position, a["y_channel"])
    with branch.otherwise():
        turned, line = f.at(work.mine, a["turned_at"]), f.mul(count, a["element"])
        f.call(a["turn_back"], turned, src, count, live, position, line)
        f.call(a["finish"], turned, y, more, live, line, a["y_channel"], 1, count, 0, 0)
