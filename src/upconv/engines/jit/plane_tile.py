"""The code of the planes kernel: depthwise layers, read where they lie.

A tile is some rows of an output plane by a vector of positions or several. It loads each line of
the input once, cuts the shifts from neighbouring vectors in registers, and adds each to all rows
that the line is for. Masks leave out what lies beside a row, so nothing is copied or padded; a line
above or below a plane is one of zeros.

Of channels-last data a plane is a row of positions by their channels: the lines are positions, and
vectors run along channels, which are not shifted and have weights and biases of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...activations import Activation
from .activation import activated
from .compile import compiled
from .cpu import Cpu
from .emit import Function, Module
from .kernel_arguments import Arguments, Slots, jobs
from .rows import converted
from .values import BYTES, I1, I64, PTR, Value, vector

SLOTS = Slots(
    "x* y* w* bias* residual* finish*"
    " ranges*"  # per outer position: number of its first tap, count of its taps
    " taps*"  # per tap of the outer axes: byte offsets of its input plane, and of its weights
    " x_image x_channel x_row y_image y_channel y_plane y_row w_channel w_tap"
    " made each"  # channels of the result, and how many of them an input channel has
    " x_rows x_width y_rows y_width"
    " planes bands band"  # of a channel, of a plane, and rows of a band
    " units run jobs",  # bands of everything, and of a job
    counters="next",
)


@dataclass(frozen=True, slots=True)
class PlaneTile:
    """What the code depends on: its class. `steps` and `shifts` are those of rows and of positions
    in a row; `staged` results go by way of `finish`, to others `activation` is applied. `last`:
    vectors run along channels."""

    element: str
    stored: str
    lanes: int
    rows: int
    vectors: int
    steps: tuple[int, int]
    shifts: tuple[tuple[int, ...], tuple[int, ...]]
    activation: Activation
    slope: float
    staged: bool
    last: bool = False

    @property
    def kept(self) -> bool:
        """Whether the weights of an outer tap are kept in registers, of which there are 32."""
        count = len(self.shifts[0]) * len(self.shifts[1])
        if self.last:
            return (self.rows + count + 1) * self.vectors <= _MOST_REGISTERS
        return count <= _KEPT

    @property
    def width(self) -> int:
        """Positions of a row."""
        return self.lanes * self.vectors

    @property
    def lines(self) -> dict[int, list[tuple[int, int]]]:
        """For each line of the input, counted from the first row's, (row, row tap) it is for."""
        found: dict[int, list[tuple[int, int]]] = {}
        for row in range(self.rows):
            for tap, shift in enumerate(self.shifts[0]):
                found.setdefault(self.steps[0] * row - shift, []).append((row, tap))
        return dict(sorted(found.items()))

    @property
    def back(self) -> tuple[int, ...]:
        """How many results before a tile's first each shift of a row reads."""
        return tuple(-(-shift // self.steps[1]) for shift in self.shifts[1])

    @property
    def loads(self) -> int:
        """Vectors of a line."""
        return self.steps[1] * (self.vectors - (min(self.back) - max(self.back)) // self.lanes)

    @property
    def cycles(self) -> float:
        """What it takes for one outer tap: products, loads, cuts. Fitted on a Zen 4, 2026-11-22."""
        products: float = self.rows * self.vectors * len(self.shifts[0]) * len(self.shifts[1])
        line = 1.5 * self.loads + 0.3 * self.vectors * len(self.shifts[1])
        if self.last:
            # A line begins elsewhere, and each weight that is not kept is a load.
            line, products = line + 1.5, products * (1 if self.kept else 1.5)
        return products + line * len(self.lines) + 4 * self.rows * self.vectors + 30


@compiled("planes", kept=256, opt=1)
def plane_code(module: Module, tile: PlaneTile, cpu: Cpu) -> None:
    """The function `planes(args)`, which every thread runs: a job is some bands of rows, each of
    one plane of one channel."""
    with module.function("planes", {"args": PTR}) as f:
        a = SLOTS.reader(f)
        line = vector(_bits(tile.stored), tile.lanes * tile.loads)
        zeros = f.scratch(tile.loads * tile.lanes * BYTES[tile.stored])
        f.store(Value(line, "zeroinitializer"), zeros)
        stage = f.scratch(tile.rows * tile.width * BYTES[tile.element] if tile.staged else 1)
        with jobs(f, a.address("next"), a["jobs"]) as job:
            first = job * a["run"]
            with f.loop(first, f.min(a["units"], first + a["run"])) as unit:
                _emit_band(f, a, tile, unit.index, zeros, stage)


def _emit_band(
    f: Function, a: Arguments, tile: PlaneTile, unit: Value, zeros: Value, stage: Value
) -> None:
    band, rest = unit % a["bands"], unit // a["bands"]
    plane, rest = rest % a["planes"], rest // a["planes"]
    channel, image = rest % a["made"], rest // a["made"]
    place = channel // a["each"] * a["x_channel"]
    x = a["x"] + (image * a["x_image"] + place)
    place = image * a["y_image"] + channel * a["y_channel"]
    place = place + plane * a["y_plane"]
    w = a["w"] + channel * a["w_channel"]
    bias = f.at(a["bias"], channel, tile.element)
    taps = f.at(a["ranges"], plane * 2, I64)
    count = f.word(taps, 1)
    taps = f.at(a["taps"], f.load(I64, taps) * 2, I64)
    top = band * a["band"]
    bottom = f.min(a["y_rows"], top + a["band"])
    with (
        f.loop(top, bottom, tile.rows) as row,
        f.loop(0, a["y_width"], tile.width) as column,
    ):
        start = (column.index - max(tile.back)) * tile.steps[1]
        masks = _masks(f, tile, start, a["x_width"])
        first = column.index if tile.last else 0
        sums = _lane_values(f, tile, f.at(bias, first, tile.element)) * tile.rows
        with f.loop(0, count, carried=sums) as tap:
            pair = f.at(taps, tap.index * 2, I64)
            source = x + (f.load(I64, pair) + start * BYTES[tile.stored])
            weights = w + f.word(pair, 1)
            weights = f.at(weights, first, tile.element)
            found = _Plane(source, row.index * tile.steps[0], a["x_rows"], a["x_row"], zeros)
            given = masks, weights, a["w_tap"]
            tap.next(_products(f, tile, found, *given, list(tap.carried)))
        live, left = bottom - row.index, a["y_width"] - column.index
        here = row.index * a["y_row"] + column.index * BYTES[tile.stored]
        _leave(f, a, tile, place + here, live, left, tap.results, stage)


@dataclass(frozen=True, slots=True)
class _Plane:
    """The input of a tile: its lines from row `first` on."""

    x: Value
    first: Value
    rows: Value
    pitch: Value
    zeros: Value

    def line(self, f: Function, number: int) -> Value:
        """Where a line lies: one outside in zeros."""
        row = self.first + f.integer(number)
        place = self.x + row * self.pitch
        return f.select(f.compare("ult", row, self.rows), place, self.zeros)


def _masks(f: Function, tile: PlaneTile, start: Value, width: Value) -> list[Value]:
    """For each vector of a line from position `start` on, its lanes that lie in the row."""
    masks = []
    for first in range(0, tile.loads * tile.lanes, tile.lanes):
        bits = _below(f, width - start - first, tile.lanes)
        if first < max(tile.back) * tile.steps[1]:
            before = _below(f, 0 - start - first, tile.lanes)
            bits = bits & (before ^ -1)
        masks.append(_mask(f, bits, tile.lanes))
    return masks


def _below(f: Function, count: Value, lanes: int) -> Value:
    """A bit for each lane whose number is less than `count`."""
    return (1 << f.max(f.min(count, lanes), 0)) - 1


def _mask(f: Function, bits: Value, lanes: int) -> Value:
    """Bits as a mask: integers are computed beside the sums, vectors instead of them."""
    return f.convert("bitcast", f.convert("trunc", bits, f"i{lanes}"), vector(I1, lanes))


def _lane_values(f: Function, tile: PlaneTile, address: Value) -> list[Value]:
    """A bias or a weight for each vector: a number in all lanes, or one for each."""
    if not tile.last:
        return [f.broadcast(f.load(tile.element, address), tile.lanes)] * tile.vectors
    kind = vector(tile.element, tile.lanes)
    places = (f.at(address, v * tile.lanes, tile.element) for v in range(tile.vectors))
    return [f.load(kind, place) for place in places]


def _products(
    f: Function,
    tile: PlaneTile,
    plane: _Plane,
    masks: list[Value],
    w: Value,
    w_tap: Value,
    sums: list[Value],
) -> list[Value]:
    """Add the products of one outer tap."""
    across, kind = len(tile.back), vector(tile.element, tile.lanes)

    def weight(number: int) -> list[Value]:
        step = w_tap * number if tile.last else number * BYTES[tile.element]
        return _lane_values(f, tile, w + step)

    kept = [weight(i) for i in range(len(tile.shifts[0]) * across)] if tile.kept else []
    for line, uses in tile.lines.items():
        f.order()
        parts = _parts(f, tile, plane.line(f, line), masks)
        for tap, (shift, back) in enumerate(zip(tile.shifts[1], tile.back, strict=True)):
            part = parts[back * tile.steps[1] - shift]
            for v in range(tile.vectors):
                number, lane = divmod(v * tile.lanes + max(tile.back) - back, tile.lanes)
                cut = part[number]
                if lane:
                    cut = f.shuffle(cut, part[number + 1], range(lane, lane + tile.lanes))
                cut = f.convert("bitcast", cut, kind)
                for row, row_tap in uses:
                    i, n = row * tile.vectors + v, row_tap * across + tap
                    factor = (kept[n] if kept else weight(n))[v]
                    sums[i] = f.multiply_add(cut, factor, sums[i])
    return sums


_KEPT, _MOST_REGISTERS = 9, 28
"""Up to how many weights are kept in registers, and registers for sums, weights and an input."""


def _parts(f: Function, tile: PlaneTile, line: Value, masks: list[Value]) -> list[list[Value]]:
    """The vectors of a line: as they lie, or of its even and of its odd positions.

    As integers, which LLVM cuts by one instruction, and numbers by a copy, an index and one more.
    """
    lanes, read = tile.lanes, _bits(tile.stored)
    found = []
    for i, mask in enumerate(masks):
        numbers = f.load_lanes(vector(read, lanes), f.at(line, i * lanes, read), mask)
        if tile.stored != tile.element:
            numbers = f.convert("bitcast", numbers, vector(tile.stored, lanes))
            numbers = converted(f, numbers, tile.element)
            numbers = f.convert("bitcast", numbers, vector(_bits(tile.element), lanes))
        found.append(numbers)
    if tile.steps[1] == 1:
        return [found]
    pairs = list(zip(found[::2], found[1::2], strict=True))
    return [[f.shuffle(*pair, range(i, 2 * lanes, 2)) for pair in pairs] for i in (0, 1)]


def _bits(element: str) -> str:
    return f"i{8 * BYTES[element]}"


def _leave(
    f: Function,
    a: Arguments,
    tile: PlaneTile,
    place: Value,
    live: Value,
    left: Value,
    sums: list[Value],
    stage: Value,
) -> None:
    """Store the sums, as many rows and positions as there are."""
    pitch, y = a["y_row"], a["y"] + place
    sums = [activated(f, tile.activation, tile.slope, value) for value in sums]
    if tile.staged:
        for i, value in enumerate(sums):
            f.store(value, f.at(stage, i * tile.lanes, tile.element))
        shape = f.min(live, tile.rows), f.min(left, tile.width)
        row = tile.width * BYTES[tile.element]
        f.call(a["finish"], stage, y, a["residual"] + place, 1, 0, 0, *shape, row, pitch)
        return
    masks = [
        _mask(f, _below(f, left - first, tile.lanes), tile.lanes)
        for first in range(0, tile.width, tile.lanes)
    ]
    for row in range(tile.rows):
        with f.when(live > row):
            to = y + pitch * row
            for v, mask in enumerate(masks):
                value, there = sums[row * tile.vectors + v], f.at(to, v * tile.lanes, tile.element)
                f.store_lanes(value, there, mask)
