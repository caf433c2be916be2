"""The loop over jobs of Winograd's algorithm, which finds out what lies where in each block.

run(args)   every thread: takes jobs, packs rows of the operand, calls the transforms and products
            of tile.py, and moves rows of the result to their places

There are always three axes; of fewer, the first ones have one position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from operator import add, and_, mul

from ....problem import DataLayout
from ..compile import compiled
from ..cpu import Cpu
from ..emit import Function, Module
from ..kernel_arguments import ArgumentLayout, Arguments, jobs
from ..values import I64, PTR, Operand, Value
from .tile import MADE

OF_AXIS = (
    "blocks",  # how many there are
    "box",  # groups of tiles of a block at most
    "groups",  # of the axis
    "behind",  # groups behind a block's that pieces read
    "apart",  # tiles of a group
    "makes",  # results of a phase, and operands of one, from one group to the next
    "step",  # phases of operands
    "tail",  # operands of a block beside `step * makes` of each group
    "first",  # the first operand of the first block
    "span",  # operands of a block at most
    "size",  # of the operand
    "stride",  # phases of results
    "base",  # the first result of the first block
    "stage",  # results of a phase of a block at most
    "out",  # size of the result
)
"""What the driver knows of each axis; the last axis is number 2."""

ARGUMENTS = ArgumentLayout(
    "buffer* x* y* residual* w* bias* phase* point* piece* groups*"
    " fill* transpose* transpose_back* finish* input* products* inverse*"
    " part v_at z_at stage_at transposed_at tile_at made_at shift_at"
    " jobs blocks blocks_n box_n groups_n "
    + " ".join(f"{name}_{axis}" for axis in range(3) for name in OF_AXIS)
    + " runs units all_units chunks reduction phases channels chunk element points pieces"
    " panels group_sizes"
    " x_image x_channel x_position y_image y_channel y_position"
    " w_unit w_point w_panel w_piece v_point v_row z_point z_row"
    " made active padded columns whole transposed"
    " x_step_0 x_step_1 y_step_0 y_step_1 y_step_2 line lanes",
    counters="next next_thread bad",
)

_AXES = range(3)


@compiled("run", kept=8, opt=0)
def driver_code(module: Module, layout: DataLayout, cpu: Cpu) -> None:
    """`run` for data of one layout."""
    with module.function("run", {"args": PTR}) as f:
        a = ARGUMENTS.reader(f)
        mine = a["buffer"] + f.take(a.address("next_thread")) * a["part"]
        with jobs(f, a.address("next"), a["jobs"]) as job:
            block, rest = job % a["blocks"], job // a["blocks"]
            run, group = rest % a["runs"], rest // a["runs"]
            work = _Work(f, a, mine, block, group)
            _emit_tiles(work)
            _emit_operand(work, layout)
            first = run * a["units"]
            stop = f.min(a["all_units"], first + a["units"])
            with f.loop(first, stop) as unit:
                _emit_unit(work, unit.index, layout)


class _Work:
    """A job inside `run`, a block of a group of channels: its images, and of each axis its groups
    of tiles, as the first and how many; and numbers of tiles along each axis, those that are only
    transformed included."""

    def __init__(self, f: Function, a: Arguments, mine: Value, block: Value, group: Value) -> None:
        self.f, self.a, self.mine, self.group = f, a, mine, group
        starts: list[Value] = []
        counts: list[Value] = []
        for axis in ("2", "1", "0", "n"):
            start = block % a[f"blocks_{axis}"] * a[f"box_{axis}"]
            block = block // a[f"blocks_{axis}"]
            starts.insert(0, start)
            counts.insert(0, f.min(a[f"box_{axis}"], a[f"groups_{axis}"] - start))
        (self.image, *self.starts), (self.images, *self.counts) = starts, counts
        self.along = [(counts[1 + i] + a[f"behind_{i}"]) * a[f"apart_{i}"] for i in _AXES]

    def each(self, name: str) -> list[Value]:
        """A number of all axes."""
        return [self.a[f"{name}_{axis}"] for axis in _AXES]

    def at(self, name: str) -> Value:
        """A place in the memory of the thread."""
        return self.mine + self.a[name]

    def transformed(self) -> Value:
        """Tiles that are transformed."""
        return reduce(mul, self.along, self.images)

    @contextmanager
    def tiles(self, counts: Sequence[Value]) -> Iterator[tuple[Value, list[Value], list[Value]]]:
        """A loop over tiles of so many groups along each axis: the image, and for each axis the
        number of the tile and that of its first result of a phase."""
        f, loops = self.f, [self.images]
        for count, apart in zip(counts, self.each("apart"), strict=True):
            loops += [count, apart]
        with _nested(f, loops) as (image, *places):
            groups, residues = places[::2], places[1::2]

            def numbers(name: str) -> list[Value]:
                pairs = zip(groups, self.each(name), residues, strict=True)
                return [group * step + residue for group, step, residue in pairs]

            yield image, numbers("apart"), numbers("makes")


@contextmanager
def _nested(f: Function, counts: Sequence[Operand]) -> Iterator[list[Value]]:
    """Loops in each other, the first one outside."""
    with ExitStack() as stack:
        yield [stack.enter_context(f.loop(0, count)).index for count in counts]


def _place(places: Sequence[Value], sizes: Sequence[Value]) -> Value:
    """The number of an element by its places along axes, of which the first one needs no size."""
    found, *more = places
    for place, size in zip(more, sizes, strict=True):
        found = found * size + place
    return found


def _emit_tiles(work: _Work) -> None:
    """Write where the tiles of a block have their operands, products and results, and how far
    behind a tile are those that pieces read."""
    f, a, steps = work.f, work.a, work.each("step")
    wide, position = a["chunk"] * a["element"], a["padded"] * a["element"]
    apart, behind, (*stages, _) = work.each("apart"), work.each("behind"), work.each("stage")
    with work.tiles(list(map(add, work.counts, behind))) as (image, tiles, starts):
        index = _place([image, *tiles], work.along)
        operand = _place([image, *list(map(mul, starts, steps))], work.each("span"))
        f.store(operand * wide, f.at(work.at("tile_at"), index, I64))
    along = list(map(mul, work.counts, apart))
    with work.tiles(work.counts) as (image, tiles, (*outer, last)):
        entry = _place([image, *tiles], along) * len(MADE)
        entry = f.at(work.at("made_at"), entry, I64)
        f.store(_place([image, *tiles], work.along) * a["z_row"], entry)
        results = [image, *outer, last * a["stride_2"]]
        place = _place(results, [*stages, a["line"]])
        f.store(place * position, f.at(entry, 1, I64))
    counts = [more + 1 for more in behind]
    with _nested(f, counts) as pieces:
        shift = _place(list(map(mul, pieces, apart)), work.along[1:])
        index = _place(pieces, counts[1:])
        f.store(shift * a["v_row"], f.at(work.at("shift_at"), index, I64))


def _emit_operand(work: _Work, layout: DataLayout) -> None:
    """Pack a block's rows and transform its windows, some channels at a time."""
    f, a = work.f, work.a
    wide = a["chunk"] * a["element"]
    src = a["x"] + work.group * a["channels"] * a["x_channel"]
    with f.loop(0, a["channels"], a["chunk"]) as loop:
        active = f.min(a["chunk"], a["channels"] - loop.index)
        here = src + loop.index * a["x_channel"]
        _emit_rows(work, here, active, layout)
        vectors = (active + (a["lanes"] - 1)) // a["lanes"]
        v = work.at("v_at") + loop.index * a["phases"] * a["element"]
        with f.loop(0, a["phases"]) as phase:
            first = f.word(a["phase"], phase.index)
            f.call(
                a["input"], work.mine + first * wide,
                v + phase.index * active * a["element"], work.at("tile_at"),
                work.transformed(), vectors, a["x_step_0"], a["x_step_1"], a["v_point"], a["v_row"],
            )  # fmt: skip


def _emit_rows(work: _Work, here: Value, active: Value, layout: DataLayout) -> None:
    """Pack `active` channels from `here` on: rows of what is there, zeros around."""
    f, a = work.f, work.a
    wide = a["chunk"] * a["element"]
    firsts, counts = [], []
    for axis in _AXES:
        step = a[f"step_{axis}"] * a[f"makes_{axis}"]
        firsts.append(a[f"first_{axis}"] + step * work.starts[axis])
        counts.append(a[f"tail_{axis}"] + step * work.counts[axis])
    start, count = firsts[2], counts[2]
    before = f.min(f.max(0 - start, 0), count)
    column = f.min(f.max(start, 0), a["size_2"])
    inside = f.max(f.min(start + count, a["size_2"]) - column, 0)
    with _nested(f, [work.images, *counts[:2]]) as (image, *rows):
        dst = work.mine + _place([image, *rows, f.integer(0)], work.each("span")) * wide
        places = list(map(add, firsts, rows))
        within = _inside(work, places, "size")
        with f.unless(within):
            _zeros(work, dst, count)
        with f.when(within):
            _zeros(work, dst, before)
            position = _place([*places, column], [a["size_1"], a["size_2"]])
            offset = (work.image + image) * a["x_image"]
            given = here + (offset + position * a["x_position"])
            if layout is DataLayout.NCX:
                f.call(
                    a["transpose"], dst + before * wide, given, active, inside, a["x_channel"], wide
                )
            else:
                zeros = a["chunk"] - active
                f.call(
                    a["fill"],
                    dst + before * wide,
                    given,
                    active,
                    zeros,
                    inside,
                    wide,
                    a["x_position"],
                )
            after = before + inside
            _zeros(work, dst + after * wide, count - after)


def _inside(work: _Work, places: Sequence[Value], name: str) -> Value:
    """Whether a row, by its places along the outer axes, is part of an array."""
    sizes = work.each(name)  # as unsigned numbers: what is below zero is beyond
    return reduce(and_, (work.f.compare("ult", *both) for both in zip(places, sizes, strict=False)))


def _zeros(work: _Work, dst: Value, positions: Value) -> None:
    f, a = work.f, work.a
    f.call(a["fill"], dst, dst, 0, positions * a["chunk"], 1, 0, 0)


def _emit_unit(work: _Work, unit: Value, layout: DataLayout) -> None:
    """Products of all points, their inverse, and where its results go."""
    f, a = work.f, work.a
    phase, chunk = unit // a["chunks"], unit % a["chunks"]
    number = work.group * a["all_units"] + unit
    u, z, stage = a["w"] + number * a["w_unit"], work.at("z_at"), work.at("stage_at")
    last = f.load(I64, f.at(work.at("shift_at"), a["pieces"] - 1, I64))
    tiles = work.transformed() - last // a["v_row"]
    with f.loop(0, a["points"]) as point:
        entry = f.at(a["point"], point.index * 2, I64)
        first, count = f.load(I64, entry), f.word(entry, 1)
        f.call(
            a["products"], work.at("v_at") + point.index * a["v_point"],
            u + point.index * a["w_point"], z + point.index * a["z_point"],
            f.at(a["piece"], first, I64), count, work.at("shift_at"), a["w_piece"], a["w_panel"],
            a["reduction"], a["panels"], a["z_row"],
            f.at(a["groups"], tiles * a["group_sizes"], I64),
        )  # fmt: skip
    biases = (work.group * a["chunks"] + chunk) * a["columns"]
    tiles = reduce(mul, (*work.counts, *work.each("apart")), work.images)
    f.call(
        a["inverse"], z, stage, work.at("made_at"), tiles, a["columns"] // a["lanes"],
        a["bias"] + biases * a["element"], a["y_step_0"], a["y_step_1"], a["y_step_2"],
        a["z_point"], a.address("bad"),
    )  # fmt: skip
    start = chunk * a["active"]
    active = f.min(a["active"], a["made"] - start)
    channel = (work.group * a["made"] + start) * a["y_channel"]
    _emit_results(work, phase, channel, active, layout)


def _emit_results(
    work: _Work, phase: Value, channel: Value, active: Value, layout: DataLayout
) -> None:
    """Rows of results of a unit, of `active` channels from `channel` bytes on, to y."""
    f, a, strides = work.f, work.a, work.each("stride")
    makes, (*stages, _) = work.each("makes"), work.each("stage")
    phases = [phase // strides[1], phase % strides[1], f.integer(0)]
    given = zip(strides, makes, work.starts, work.each("base"), phases, strict=True)
    firsts = [stride * (make * start) + base + g for stride, make, start, base, g in given]
    counts = list(map(mul, makes, work.counts))
    begin = f.max(firsts[2], 0)
    end = f.min(a["out_2"], firsts[2] + strides[2] * counts[2])
    skip = begin - firsts[2]
    with _nested(f, [work.images, *counts[:2]]) as (image, *rows):
        places = list(map(add, firsts, map(mul, strides, rows)))
        with f.when(_inside(work, places, "out")):
            place = _place([image, *rows, skip], [*stages, a["line"]])
            src = work.at("stage_at") + place * (a["padded"] * a["element"])
            to = _place([*places, begin], [a["out_1"], a["out_2"]])
            offset = (work.image + image) * a["y_image"]
            offset = offset + to * a["y_position"] + channel
            _emit_result(work, layout, src, offset, active, end - begin)


def _emit_result(
    work: _Work, layout: DataLayout, src: Value, offset: Value, active: Value, count: Value
) -> None:
    """A row of `count` results, of `active` channels, to its place in y."""
    f, a = work.f, work.a
    position = a["padded"] * a["element"]
    y, more = a["y"] + offset, a["residual"] + offset
    if layout is DataLayout.NXC:
        # Where a unit has all channels, a row is one run.
        runs = f.select(f.compare("ne", a["whole"], 0), f.integer(1), count)
        length = f.select(f.compare("ne", a["whole"], 0), count * active, active)
        f.call(
            a["finish"], src, y, more, 1, 0, 0, runs, length, position, a["y_position"]
        )  # fmt: skip
        return
    plain = f.compare("eq", a["transposed"], 0)
    with f.when(plain):
        f.call(a["transpose_back"], y, src, count, active, position, a["y_channel"])
    with f.unless(plain):
        transposed, line = work.mine + a["transposed_at"], count * a["element"]
        f.call(a["transpose_back"], transposed, src, count, active, position, line)
        f.call(a["finish"], transposed, y, more, active, line, a["y_channel"], 1, count, 0, 0)
