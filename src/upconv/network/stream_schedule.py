"""The phases of a stream: the positions that each push computes, and the graph that computes them.

Every value has a *buffer*: the positions that later results still need, followed by those that this
push adds. From its inputs' buffers, each node computes the results that have become final.
Positions that are needed again are outputs of the graph, and inputs of the next one. Nothing is
therefore computed twice, and the results are those of the network on the whole input.

Counts are absolute, from the beginning of the stream. Graphs depend only on differences between
counts, so a stream of equal chunks soon repeats one graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, lcm
from operator import add, sub
from typing import NamedTuple

from ..errors import EngineRefusal, ShapeError
from . import graph as ir
from .kinds import located
from .parts import Part, PartBuilder
from .reach import Reach, reach

_FAR = 1 << 30  # a position at which the beginning no longer matters
_LONGEST_PERIOD = 1 << 10


class State(NamedTuple):
    """A stream's progress: for each value, the positions computed so far and the first one kept."""

    produced: tuple[int, ...]
    first: tuple[int, ...]

    @property
    def kept(self) -> dict[int, int]:
        """Value -> the number of positions kept for the next push, if there are any."""
        pairs = enumerate(zip(self.produced, self.first, strict=True))
        return {value: count - first for value, (count, first) in pairs if count > first}

    def less(self, other: State) -> State:
        """Subtract all counts of another state."""
        return State(*(tuple(map(sub, a, b)) for a, b in zip(self, other, strict=True)))

    def plus(self, other: State) -> State:
        """Add all counts of another state."""
        return State(*(tuple(map(add, a, b)) for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, eq=False)
class Phase(Part):
    """The graph of one push.

    graph: its inputs are the network's inputs with new positions, then the values that the previous
    push kept. Its outputs are the network's outputs with new positions, then the values to keep.
    results: the indices of the network's outputs that are in `graph`. waiting, kept: network value
    -> input or output of `graph`, for values kept by the previous push and by this one, in order.
    buffers: for each of these values, and for other outputs of the same nodes, the value of `graph`
    that holds both the kept and the new positions.
    """

    results: tuple[int, ...]
    waiting: dict[int, int]
    kept: dict[int, int]
    buffers: dict[int, int]


class Schedule:
    """The schedule of a network along one spatial axis.

    graph: a simplified graph with any size along the axis. axis: an axis of (N, C, *size).
    """

    def __init__(self, graph: ir.Graph, axis: int) -> None:
        self.graph, self.axis = graph, axis
        self.values = 1 + max(graph.shapes)
        self._reaches = [_reach(node, graph, axis - 2) for node in graph.nodes]
        for node in graph.nodes:
            extent = graph.shapes[node.outputs[0]][self.axis]
            if any(graph.shapes[value][self.axis] != extent for value in node.inputs[1:]):
                raise refused(located(node), "it broadcasts a value over all positions", "network")
        self.begin = State((0,) * self.values, (0,) * self.values)

    @property
    def rate(self) -> Fraction:
        """Results of the first output per position of an input."""
        return self._rates()[self.graph.outputs[0]]

    def final(self, taken: int) -> int:
        """Return how many results of the first output are final after `taken` inputs."""
        return self.after(self.begin, taken, ended=False).produced[self.graph.outputs[0]]

    @property
    def latency(self) -> int:
        """The largest number of results by which a running stream is behind rate * inputs."""
        begin, counts = self._far_counts()
        return max(ceil(self.rate * (begin + i) - count) for i, count in enumerate(counts))

    @property
    def lookahead(self) -> int:
        """The largest number of inputs that a result needs after the one at its own time."""
        begin, counts = self._far_counts()
        # Of the results that one input makes final, the first has waited longest.
        return max(int(begin + i - count // self.rate) for i, count in enumerate(counts[:-1]))

    def _far_counts(self) -> tuple[int, list[int]]:
        """Return a large number of inputs, and the counts of final results in the period after."""
        begin = self.period * (_FAR // self.period)
        return begin, [self.final(begin + i) for i in range(min(self.period, _LONGEST_PERIOD) + 1)]

    @property
    def period(self) -> int:
        """The smallest number of inputs that adds an integer number of positions to every value."""
        return lcm(*(rate.denominator for rate in self._rates()))

    def _rates(self) -> list[Fraction]:
        rates = [Fraction(1)] * self.values
        for node, rule in zip(self.graph.nodes, self._reaches, strict=True):
            for value in node.outputs:
                rates[value] = rates[node.inputs[0]] * rule.rate
        return rates

    def after(self, state: State, count: int, *, ended: bool) -> State:
        """Return the state after `count` more positions of every input."""
        produced = list(state.produced)
        for value in self.graph.inputs.values():
            produced[value] += count
        for node, rule in zip(self.graph.nodes, self._reaches, strict=True):
            results = self._results(node, rule, produced, ended)
            for value in node.outputs:
                produced[value] = max(produced[value], results)
        needed = list(produced)
        for node, rule in zip(self.graph.nodes, self._reaches, strict=True):
            result = produced[node.outputs[0]]
            if rule.recurs:
                needed[node.outputs[0]] = result - 1
            for number, value in enumerate(node.inputs):
                start = rule.first(result) if number == 0 else result
                if number == 0 and rule.trails:
                    start = min(start, produced[value] - 1)
                needed[value] = min(needed[value], start)
        first = produced if ended else map(max, state.first, needed)
        return State(tuple(produced), tuple(first))

    def key(self, state: State) -> tuple[int, ...]:
        """Return the differences between counts that determine all phases after a state."""
        kept = (count - first for count, first in zip(state.produced, state.first, strict=True))
        shifts = []
        for node, rule in zip(self.graph.nodes, self._reaches, strict=True):
            result, (first, *others) = state.produced[node.outputs[0]], node.inputs
            shifts.append(rule.shift(state.first[first], result))
            shifts += [result - state.first[value] for value in others]
        return (*kept, *shifts)

    def extents(self, before: State, after: State) -> dict[int, int]:
        """Return the buffer sizes of the values kept before or after a phase, and of other outputs
        of the same nodes."""
        held = {*before.kept, *after.kept}
        for node in self.graph.nodes:
            if held.intersection(node.outputs):
                held.update(node.outputs)
        sizes = {value: after.produced[value] - before.first[value] for value in sorted(held)}
        return {value: size for value, size in sizes.items() if size}

    def phase(self, before: State, after: State) -> Phase:
        """Return the phase that leads from one state to another."""
        build = _Build(self.graph, self.axis, before, after)
        for node, rule in zip(self.graph.nodes, self._reaches, strict=True):
            if after.produced[node.outputs[0]] > before.produced[node.outputs[0]]:
                build.add(node, rule)
        return build.phase(self.extents(before, after))

    def _results(self, node: ir.Node, rule: Reach, produced: list[int], ended: bool) -> int:
        counts = [produced[value] for value in node.inputs]
        if not ended:
            return min(rule.final(counts[0]), *counts[1:]) if counts[1:] else rule.final(counts[0])
        totals = {rule.total(counts[0]), *counts[1:]}
        if len(totals) > 1:
            got = " and ".join(map(str, sorted(totals)))
            raise ShapeError("the sizes along the stream's axis", got, "equal sizes", node.line)
        return totals.pop()


def _reach(node: ir.Node, graph: ir.Graph, number: int) -> Reach:
    try:
        return reach(node, graph, number)
    except EngineRefusal as refusal:
        raise refused(located(node), str(refusal), "network") from None


def refused(where: str, why: str, whole: str = "model") -> EngineRefusal:
    """Return the error for an operation of a model (or another `whole`) that cannot be streamed."""
    remedy = f"Run the {whole} on whole inputs, or stream the part before it."
    return EngineRefusal(f"A stream cannot compute {where}: {why}. {remedy}")


class _Build(PartBuilder):
    """The builder of a phase's graph."""

    def __init__(self, graph: ir.Graph, axis: int, before: State, after: State) -> None:
        super().__init__()
        self._network, self._axis, self._before, self._after = graph, axis, before, after
        self._new: dict[int, int] = {}  # network value -> its new positions
        self._buffers: dict[int, int] = {}
        for name, value in graph.inputs.items():
            if after.produced[value] > before.produced[value]:
                count = after.produced[value] - before.produced[value]
                self._new[value] = self._input_of(name, value, count)
        self._kept = {
            value: self._input_of(f"kept {value}", value, count)
            for value, count in before.kept.items()
        }

    def add(self, node: ir.Node, rule: Reach) -> None:
        """Compute the new results of a node."""
        result, starts = self._before.produced[node.outputs[0]], self._before.first
        count = self._after.produced[node.outputs[0]] - result
        value, *others = node.inputs
        number = self._buffer(value)
        shift, size = rule.shift(starts[value], result), self.shapes[number][self._axis]
        window = rule.window(shift, size, count)
        inputs = [self.cropped(number, {self._axis - 2: window.before}, value)]
        for value in others:
            number, shift = self._buffer(value), result - starts[value]
            size = self.shapes[number][self._axis]
            ends = shift, size - shift - count
            inputs.append(self.cropped(number, {self._axis - 2: ends}, value))
        if rule.recurs and node.outputs[0] in self._kept:
            inputs.append(self._kept[node.outputs[0]])
        outputs = self.node(window.operation, tuple(inputs), node.outputs[0], node.line)
        for value, number in zip(node.outputs, outputs, strict=True):
            self._new[value] = self.cropped(number, {self._axis - 2: window.after}, value)

    def phase(self, buffered: Iterable[int]) -> Phase:
        """Return the phase, with the values to keep and the buffers of the values in `buffered`."""
        results = tuple(i for i, value in enumerate(self._network.outputs) if value in self._new)
        outputs, kept = [self._new[self._network.outputs[i]] for i in results], dict[int, int]()
        for value, count in self._after.kept.items():
            buffer = self._buffer(value)
            size = self.shapes[buffer][self._axis]
            begin = self._after.first[value] - self._before.first[value]
            ends = begin, size - begin - count
            number = self.cropped(buffer, {self._axis - 2: ends}, value)
            if number == buffer:
                (number,) = self.node(ir.Convert(), (number,), value)
            kept[value] = number
        buffers = {value: self._buffer(value) for value in buffered}
        graph, values = self.graph(*outputs, *kept.values()), tuple(self.values)
        return Phase(graph, values, results, self._kept, kept, buffers)

    def _input_of(self, name: str, value: int, count: int) -> int:
        return self.input(name, ir.with_extent(self._network.shapes[value], self._axis, count))

    def _buffer(self, value: int) -> int:
        """Concatenate the kept positions of a value and the new ones."""
        parts = [numbers[value] for numbers in (self._kept, self._new) if value in numbers]
        if value not in self._buffers:
            if len(parts) > 1:
                parts = self.node(ir.Concat(self._axis), tuple(parts), value)
            self._buffers[value] = parts[0]
        return self._buffers[value]
