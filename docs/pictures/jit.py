"""The drawings of docs/jit.md: phases, tiles, padded positions, jobs.

Tiles, positions and the order of interleaving come from the engine itself, for a fixed processor,
so that the drawings are the same on every machine. pool.py draws the thread pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from strips import sentence
from svg import Drawing

from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import target
from upconv.engines.jit.positions.schedule import PaddedPositions, schedule
from upconv.engines.jit.positions.tile import Tile, interleaved
from upconv.geometry import Axis, Phase
from upconv.problem import Direction, Problem

AXIS = Axis(5, 4, 2, 1, crop_begin=1, crop_end=1)
AVX2 = target("x86_64", "haswell", "", {"avx", "avx2", "fma", "f16c"})
MINUS = "\N{MINUS SIGN}"


def shifted(shift: int, more: int = 0) -> str:
    """Format the index j - shift + more."""
    return f"j{more - shift:+d}".replace("+0", "").replace("-", MINUS)


# Phases -------------------------------------------------------------------------------------------

LANE, LEFT = 66, 128


def phases() -> Drawing:
    """Draw each phase as a correlation over the same inputs, with the results interleaved."""
    title = "kernel 4, stride 2, crops (1, 1): two correlations with stride 1"
    drawing = Drawing(LEFT + LANE * 7 + 300, 360, title)
    drawing.text(18, 34, title, 16, "bold ink")
    drawing.text(18, 162, "input x", 14, "bold ink")
    for j in range(-1, AXIS.size + 1):
        real = 0 <= j < AXIS.size
        words = (f"x{j}",) if real else ("0",)
        drawing.cell(_lane(j) + 3, 142, LANE - 6, 30, words, "box" if real else "gone")
    above, below = AXIS.phases()
    _correlation(drawing, 0, above, 58, 141, 87)
    _correlation(drawing, 1, below, 228, 173, 227)
    drawing.text(18, 306, "output y", 14, "bold ink")
    half = LANE / 2
    for o in range(AXIS.out):
        j, number = divmod(o, AXIS.stride)
        x = _lane(j) + half * number
        drawing.cell(x + 1.5, 286, half - 3, 30, (f"y{o}",), f"fill{number}", 13)
    drawing.brace(_lane(0) + 4, _lane(AXIS.size) - 4, 320)
    middle = (_lane(0) + _lane(AXIS.size)) / 2
    drawing.text(middle, 344, "interleaved: one contiguous run", 14, "quiet", "middle")
    return drawing


def _lane(j: int) -> float:
    return LEFT + LANE * (j + 1)


def _correlation(
    drawing: Drawing, number: int, phase: Phase, top: float, start: float, stop: float
) -> None:
    """Draw one phase at height `top`, and arrows to it from the inputs that it reads."""
    drawing.text(18, top + 19, f"phase {number}", 14, "bold ink")
    for j in range(phase.length):
        for tap in phase.taps:
            x, to = _lane(j - tap.shift) + LANE / 2, _lane(j) + LANE / 2
            to += 9 if tap.shift < 0 else -9 if tap.shift > 0 else 0
            drawing.arrow(x, start, to, stop, f"line{number}", f"tip{number}")
    for j in range(phase.length):
        words = (f"y{AXIS.stride * j + phase.offset}",)
        drawing.cell(_lane(j) + 3, top, LANE - 6, 28, words, f"fill{number}")
    drawing.text(LEFT + LANE * 7 + 12, top + 19, sentence(AXIS, number), 13.5, "mono ink")


# The tile -----------------------------------------------------------------------------------------

COLUMN, ROW, TAP = 212, 34, 50


def tile() -> Drawing:
    """Draw the accumulators of a real tile, the loads above and the weights to the left."""
    axis = Axis(100, 4, 2, 1, crop_begin=1, crop_end=1)
    problem = Problem(Direction.FORWARD, (axis,), 1, 16, 6)
    own = schedule(Correlation.of(problem), 1, AVX2).tiles[0]
    left, top = 152 + TAP * len(own.steps), 82 + 34 * len(own.steps)
    rows = own.channels * own.phases
    bottom = top + ROW * rows
    title = (
        f"a tile: {own.channels} channels x {own.phases} phases, {own.vectors} vectors of"
        f" {own.lanes} positions: {rows * own.vectors} accumulators"
    )
    drawing = Drawing(left + COLUMN * own.vectors + 20, bottom + 104, title)
    drawing.text(18, 34, title, 16, "bold ink")
    drawing.text(18, 76, "one load each", 14, "bold ink")
    drawing.text(18, top - 12, "broadcast", 14, "bold ink")
    for s, step in enumerate(own.steps):
        y = 56 + 34 * s
        for v in range(own.vectors):
            first, last = (shifted(step.shift, v * own.lanes + i) for i in (0, own.lanes - 1))
            words = (f"x[{first} \N{HORIZONTAL ELLIPSIS} {last}]",)
            drawing.cell(left + COLUMN * v + 3, y, COLUMN - 6, 28, words, "box", 13)
    for row in range(rows):
        _tile_row(drawing, own, axis, row, left, top + ROW * row)
    _stream(drawing, own, axis, bottom + 34)
    return drawing


def _tap(own: Tile, axis: Axis, s: int, phase: int) -> int | None:
    """Return the tap that a phase uses at step s."""
    taps = axis.phases()[phase].taps
    return next((t.index for t in taps if t.shift == own.steps[s].shift), None)


def _tile_row(drawing: Drawing, own: Tile, axis: Axis, row: int, left: float, y: float) -> None:
    channel, phase = divmod(row, own.phases)
    drawing.text(18, y + 21, f"channel {channel}, phase {phase}", 13, "ink")
    for s in range(len(own.steps)):
        tap, x = _tap(own, axis, s, phase), left - TAP * (len(own.steps) - s)
        if tap is not None:
            drawing.cell(x, y + 3, TAP - 8, ROW - 6, (f"w{tap}",), "box", 13)
    used = [
        (step.shift, _tap(own, axis, s, phase))
        for s, step in enumerate(own.steps)
        if phase in step.phases
    ]
    for v in range(own.vectors):
        words = " + ".join(f"x[{shifted(e, v * own.lanes)}]·w{tap}" for e, tap in used)
        x = left + COLUMN * v + 3
        drawing.cell(x, y + 3, COLUMN - 6, ROW - 6, (words,), f"fill{phase}", 13)


def _stream(drawing: Drawing, own: Tile, axis: Axis, y: float) -> None:
    """Draw the weights of one input channel in memory order."""
    drawing.text(18, y - 6, "weights of one input channel, in memory:", 14, "bold ink")
    x, width = 18.0, 44
    for s, step in enumerate(own.steps):
        for channel in range(own.channels):
            for phase in step.phases:
                words = (f"w{_tap(own, axis, s, phase)}", f"c{channel}")
                drawing.cell(x, y + 6, width, 42, words, f"fill{phase}", 13)
                x += width + 3
        x += 10


# Interleaving -------------------------------------------------------------------------------------

CELL = 40


class _Names:
    """A stand-in for the emitter that shuffles names instead of registers."""

    def shuffle(self, a: list[str], b: list[str], order: list[int]) -> list[str]:
        return [(a + b)[i] for i in order]


def interleaving() -> Drawing:
    """Draw two and three phases interleaved into runs, as the emitter interleaves them."""
    title = "interleaving in registers: a vector holds one phase, memory holds the run"
    drawing = Drawing(36 + 20 * CELL + 70, 268, title)
    drawing.text(18, 34, title, 16, "bold ink")
    _weave(drawing, 2, 18)
    _weave(drawing, 3, 18 + 8 * CELL + 70)
    return drawing


def _weave(drawing: Drawing, ways: int, left: float) -> None:
    lanes = 4
    rows = [[[f"{'abc'[r]}{i}" for i in range(lanes)]] for r in range(ways)]
    run = [name for part in interleaved(_Names(), rows, lanes) for name in part]
    each = "1 shuffle" if ways == 2 else f"{ways - 1} shuffles"
    drawing.text(left, 64, f"{ways} phases: {each} for each vector of the run", 14, "ink")
    start = {}
    for r, ((names,),) in enumerate(zip(rows, strict=True)):
        for i, name in enumerate(names):
            x = left + (r * lanes + i) * CELL
            drawing.cell(x + 2, 80, CELL - 4, 30, (name,), f"fill{r}", 13)
            start[name] = x + CELL / 2
    for place, name in enumerate(run):
        hue = "abc".index(name[0])
        to = left + (place + 0.5) * CELL
        drawing.arrow(start[name], 111, to, 190, f"line{hue}", f"tip{hue}")
    for place, name in enumerate(run):
        x, hue = left + place * CELL, "abc".index(name[0])
        drawing.cell(x + 2, 192, CELL - 4, 30, (name,), f"fill{hue}", 13)
        drawing.text(x + CELL / 2, 242, f"y{place}", 12, "quiet", "middle")


# Padded positions ---------------------------------------------------------------------------------

LANES, EDGE = 29, 22


def padded_positions() -> Drawing:
    """Draw two small images as one long row, in which each tap is a constant distance."""
    axes = (Axis(2, 4, 2, 1, 1, 1), Axis(4, 4, 2, 1, 1, 1))
    problem = Problem(Direction.FORWARD, axes, 2, 1, 1)
    found = PaddedPositions.of(Correlation.of(problem))
    title = "2 images of 2x4 inputs, kernel 4x4, stride 2: one long row of positions"
    drawing = Drawing(2 * EDGE + LANES * 2 * found.rows * found.row_stride, 356, title)
    drawing.text(EDGE, 34, title, 16, "bold ink")
    top = 128
    _lay_positions(drawing, problem, found, top)
    q = found.row_stride + 2  # row 1, position 2 of the first image; phase 0 of both axes
    taps = product(*(line.phases[0].taps for line in found.lines))
    distances = sorted(outer.shift * found.row_stride + inner.shift for outer, inner in taps)
    named = [f"q{MINUS}{distance}" if distance else "q" for distance in distances]
    words = f"for every q, the result of phases (0, 0) reads {', '.join(named)}"
    drawing.text(EDGE, 66, words, 14)
    for distance, name in zip(distances, named, strict=True):
        x = EDGE + (q - distance + 0.5) * LANES
        drawing.arrow(x, top - 26, x, top - 2, "line1", "tip1")
        drawing.text(x, top - 30, name, 12, "mono ink", "middle")
    _cache_blocks(drawing, found, top + 90)
    return drawing


def _lay_positions(drawing: Drawing, problem: Problem, found: PaddedPositions, top: float) -> None:
    height, width = problem.size
    for lane in range(2 * found.rows * found.row_stride):
        row, column = divmod(lane, found.row_stride)
        image, own = divmod(row, found.rows)
        real = own < height and column < width
        words = (f"{own * width + column}",) if real else ("0",)
        x = EDGE + lane * LANES
        drawing.cell(x + 1, top, LANES - 2, 28, words, f"fill{2 * image}" if real else "gone", 12)
    for image in range(2):
        for row in range(found.rows):
            start = EDGE + (image * found.rows + row) * found.row_stride * LANES
            drawing.brace(start + 3, start + found.row_stride * LANES - 3, top + 32)
            name = f"row {row}" if row < height else "zeros between"
            words = f"image {image}, {name}" if row < height else name
            drawing.text(
                start + found.row_stride * LANES / 2, top + 56, words, 12, "quiet", "middle"
            )


def _cache_blocks(drawing: Drawing, found: PaddedPositions, top: float) -> None:
    """Draw three cache blocks, and the halo that the second one reads."""
    size = 10
    drawing.text(EDGE, top, f"cache blocks of {size} positions; a job packs one with its halo:", 14)
    count = -(-found.total // size)
    for number in range(count):
        first, last = number * size, min(found.total, (number + 1) * size)
        x, to = EDGE + first * LANES, EDGE + last * LANES
        drawing.cell(x + 2, top + 14, to - x - 4, 28, (f"block {number}",), "box", 13, "ink")
    first, last = EDGE + size * LANES, EDGE + 2 * size * LANES
    before, after = found.high * LANES, -found.low * LANES
    y = top + 52
    drawing.cell(first - before, y, before, 28, (f"halo {found.high}",), "gone", 13, "quiet")
    drawing.cell(first, y, last - first, 28, ("block 1",), "fill3", 13, "dark")
    drawing.cell(last, y, after, 28, (f"halo {-found.low}",), "gone", 13, "quiet")
    words = f"{found.total} positions hold all outputs: {count} cache blocks"
    drawing.text(EDGE, top + 108, words, 14, "quiet")


# Channels -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """One kernel: its rows and lanes, the vectors that it loads and the numbers it broadcasts."""

    name: str
    rows: tuple[str, ...]
    lanes: tuple[str, ...]
    loaded: str
    broadcast: tuple[str, ...]


SIDES = (
    Side(
        "positions: vectors along positions",
        ("c0 phase 0", "c0 phase 1", "c1 phase 0", "c1 phase 1"),
        ("j", "j+1", "j+2", "j+3", "j+4", "j+5", "j+6", "j+7"),
        "load inputs x[j], x[j+1], \N{HORIZONTAL ELLIPSIS}",
        ("w c0", "w c0", "w c1", "w c1"),
    ),
    Side(
        "channels: vectors along output channels",
        ("point 0", "point 1", "point 2", "point 3"),
        ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"),
        "load weights of c0, c1, \N{HORIZONTAL ELLIPSIS}",
        ("x at 0", "x at 1", "x at 2", "x at 3"),
    ),
)


def channels() -> Drawing:
    """Draw both kernels side by side: each broadcasts what the other loads as vectors."""
    width = 184 + 8 * 34
    drawing = Drawing(2 * width + 60, 300, "The two kernels: what runs along a vector")
    for number, side in enumerate(SIDES):
        left = 18 + number * (width + 24)
        drawing.text(left, 34, side.name, 16, "bold ink")
        grid = left + 176
        drawing.cell(grid, 56, 8 * 34, 30, (side.loaded,), "fill3", 13, "dark")
        drawing.text(left, 108, "broadcast", 13, "quiet")
        for i, lane in enumerate(side.lanes):
            drawing.text(grid + 34 * i + 17, 108, lane, 12, "quiet", "middle")
        for r, row in enumerate(side.rows):
            y = 118 + 36 * r
            drawing.text(left, y + 21, row, 13, "ink")
            drawing.cell(left + 92, y, 72, 30, (side.broadcast[r],), "fill1", 13)
            for i in range(8):
                drawing.rect(grid + 34 * i + 1.5, y, 31, 30, "fill0" if not number else "fill2")
        words = "stores interleave phases" if number == 0 else "stores hold neighbouring channels"
        drawing.text(grid + 4 * 34, 286, words, 13, "quiet", "middle")
    return drawing


DRAWINGS = {
    "jit-phases.svg": phases,
    "jit-tile.svg": tile,
    "jit-interleaving.svg": interleaving,
    "jit-padded.svg": padded_positions,
    "jit-channels.svg": channels,
}
