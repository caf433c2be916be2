"""How a problem is computed by the positions kernel, as plain data: windows, jobs, threads.

Nothing here touches an array or emits code. Tiles are chosen in tiling.py, by the layer's class;
how the work is cut into windows and jobs depends on all extents.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ...problem import Problem
from .cells import Cells, Line
from .cpu import Cpu
from .tile import Tile
from .tiling import (
    NO_WISHES,
    Block,
    Wishes,
    cycles_per_channel,
    placing_cycles,
    single_vector_cost,
    tiles_for,
)
from .values import BYTES


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that is decided about one problem.

    A job does `block_run` blocks of `window` lanes, reading `front` lanes before them and `back`
    after them; with `shared` the input is packed by all threads first, else each job packs its
    window. `by_row` starts tiles at every row's begin.
    """

    cells: Cells
    tiles: tuple[Tile, ...]
    blocks: tuple[Block, ...]
    front: int
    back: int
    window: int
    by_row: bool
    block_run: int
    shared: bool
    threads: int
    buffer_lanes: int

    @property
    def windows(self) -> int:
        """How many windows cover all lanes."""
        return -(-self.cells.total // self.window)

    @property
    def most_narrow(self) -> int:
        """Up to how many vectors at a row's end tiles of one vector compute."""
        return int(self.tiles[0].vectors / single_vector_cost(self.tiles[0]))

    @property
    def block_runs(self) -> int:
        """How many runs of blocks there are."""
        return -(-len(self.blocks) // self.block_run)

    def __str__(self) -> str:
        tile = self.tiles[0]
        order = "rows" if self.by_row else "lanes"
        packing = "packed by all first" if self.shared else "packed by each job"
        return (
            f"positions: tile of {tile.channels} channels x {tile.phases} phases x"
            f" {tile.vectors} vectors of {tile.lanes}, {len(self.blocks)} blocks,"
            f" {self.windows} windows of {self.window} lanes by {order}, {packing},"
            f" {self.threads} threads"
        )


def too_much(problem: Problem) -> str | None:
    """Why a problem would take more code or tables than it is worth, or None."""
    *outer, last = problem.axes
    shifts = min(last.kernel, last.dilation * (last.kernel - 1) // last.stride + 2)
    combos = prod(min(axis.stride, axis.out) for axis in outer)
    rows = combos * prod(Line.of(axis).cells for axis in outer)
    blocks = problem.out_channels // problem.groups * -(-min(last.stride, last.out) // 16)
    for name, number, most in (
        ("shifts of the input along the last axis", shifts, 48),
        ("taps along the last axis", last.kernel, 1 << 16),
        ("taps over the other axes", prod(axis.kernel for axis in outer), 1 << 16),
        ("combinations of phases over the other axes", combos, 1 << 12),
        ("rows of one image, times combinations of phases", rows, 1 << 22),
        ("blocks of output channels", blocks, 1 << 17),
    ):
        if number > most:
            return f"it makes tables for at most {most} {name}, and this has {number}"
    return None


_WORTH_A_THREAD = 200_000  # multiply-adds: about as long as it takes to wake a thread


def schedule(problem: Problem, threads: int, cpu: Cpu, wishes: Wishes = NO_WISHES) -> Schedule:
    """The schedule of a forward problem that has outputs."""
    cells = Cells.of(problem)
    tiles, blocks = tiles_for(problem, cells.last, cpu, wishes)
    front, back = cells.high, tiles[0].width - cells.low
    room = _room(problem, tiles[0], front + back, cpu)
    whole = Schedule(
        cells,
        tiles,
        blocks,
        front,
        back,
        window=cells.total,
        by_row=_fits_rows(cells, tiles[0]) and cells.pitch <= room,
        block_run=len(blocks),
        shared=True,
        threads=max(1, min(threads, problem.multiply_adds // _WORTH_A_THREAD)),
        buffer_lanes=cells.total + front + back,
    )
    return _cut(whole, problem, cpu, wishes)


def predicted_cycles(problem: Problem, plan: Schedule) -> float:
    """Cycles that each thread takes: tiles, placing their results, packing the input."""
    own = problem.in_channels // problem.groups
    cells, tile = plan.cells, plan.tiles[0]
    taps = sum(prod(len(phase.taps) for phase in phases) for phases in cells.combos())
    combos = prod(len(each.phases) for each in cells.outer)
    lanes = cells.total
    if plan.by_row:
        row = -(-cells.last.phases[0].length // tile.lanes) * tile.lanes
        lanes = row * -(-cells.total // cells.pitch)
    computing = own * taps * cycles_per_channel(tile.vectors, tile.channels, tile.steps)
    placing = combos * placing_cycles(tile.vectors, tile.channels, tile.phases)
    packing = 3 * own * (lanes + plan.front + plan.back) / tile.lanes
    tiles = len(plan.blocks) * lanes / tile.width
    return problem.groups * (tiles * (computing + placing) + packing) / plan.threads


def _fits_rows(cells: Cells, tile: Tile) -> bool:
    """Whether tiles that start at every row's begin cost less than tiles that run on across rows.

    Those waste lanes at a row's end, or compute them in slow tiles of one vector; these compute the
    cells between rows and must sort results out that lie in two rows (8 %).
    """
    wide, rest = divmod(cells.last.phases[0].length, tile.width)
    narrow = -(-rest // tile.lanes)
    by_row = tile.vectors * wide + min(single_vector_cost(tile) * narrow, tile.vectors)
    return by_row <= 1.08 * cells.pitch / tile.lanes


def _evened(total: int, window: int, width: int, groups: int, threads: int) -> int:
    """A window of at most `window` lanes that gives every thread as many jobs as the others."""
    windows = -(-total // window)
    while groups * windows % threads and groups * windows < 16 * threads:
        windows += 1
    return min(window, max(width, -(-total // windows // width) * width))


def _room(problem: Problem, tile: Tile, halo: int, cpu: Cpu) -> int:
    """Lanes of which the input of a group takes half of the second-level cache."""
    own = problem.in_channels // problem.groups
    return cpu.l2 // 2 // (BYTES[tile.element] * own) - halo


def _cut(whole: Schedule, problem: Problem, cpu: Cpu, wishes: Wishes) -> Schedule:
    """Windows and jobs: panels that stay in L2, and work for every thread."""
    own, total = problem.in_channels // problem.groups, whole.cells.total
    width = whole.cells.pitch if whole.by_row else whole.tiles[0].width
    halo = whole.front + whole.back
    fitting = max(width, _room(problem, whole.tiles[0], halo, cpu) // width * width)
    wanted = 1 if whole.threads == 1 else 4 * whole.threads
    even = -(-total // -(-wanted // problem.groups))
    window = max(width, min(fitting, -(-even // width) * width))
    window = _evened(total, window, width, problem.groups, whole.threads)
    enough = problem.groups * -(-total // window) >= wanted
    itemsize = BYTES[whole.tiles[0].element]
    packed = problem.in_channels * (total + halo) * itemsize
    small = whole.threads * own * (window + halo) * itemsize
    bound = 1.3 * prod(problem.x_shape) * problem.dtype.itemsize + (whole.threads << 22)
    each = (enough and halo <= window // 3) or packed > max(bound, small)
    if wishes.shared is not None:
        each = not wishes.shared
    if each:
        return replace(whole, shared=False, window=window, buffer_lanes=window + halo)
    window = max(width, min(fitting, -(-total // width) * width))
    runs = min(len(whole.blocks), -(-wanted // (problem.groups * -(-total // window))))
    return replace(whole, window=window, block_run=-(-len(whole.blocks) // runs))
