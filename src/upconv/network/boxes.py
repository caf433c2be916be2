"""Boxes: graphs that compute one box of a result's positions, including the halo of all layers.

Every value has a range of positions along each axis: the positions that its readers need. Nodes
compute their range from the ranges of their inputs. At the ends of an axis they pad like the whole
network; elsewhere they read the neighbouring positions. Boxes of the same form share one program,
which uses the kernels of the whole network.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

from ..errors import EngineRefusal
from ..geometry import same_padding
from ..keywords import Same, paddings
from ..threads import resolved
from . import graph as ir
from .compile import Choice, Compiler, resized
from .convolutions import problem_of
from .digests import digest
from .kinds import located
from .layout_choice import laid_out
from .parts import Part, PartBuilder
from .program import Program
from .reach import Edges, Everything, Reach, ends_of, reach, with_ends

_MAX_PROGRAMS = 32
Span = tuple[int, int]
"""Positions [begin, end) along one axis."""
Box = tuple[Span, ...]
"""The positions along each spatial axis."""


class Boxes:
    """A network of known sizes that is computed in parts.

    An operation that reads all positions cannot compute only a part of its results. For such an
    operation the methods raise an `EngineRefusal` that names the line.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._reaches = [_reaches(node, graph) for node in graph.nodes]

    def rates(self, output: int) -> tuple[Fraction, ...]:
        """Return the number of output positions per position of the first input, for each axis."""
        rank = len(self.graph.shapes[output]) - 2
        rates = dict.fromkeys(self.graph.inputs.values(), (Fraction(1),) * rank)
        for node, rules in zip(self.graph.nodes, self._reaches, strict=True):
            before = rates[node.inputs[0]]
            after = tuple(rate * rule.rate for rate, rule in zip(before, rules, strict=True))
            rates |= dict.fromkeys(node.outputs, after)
        return rates[output]

    def reads(self, output: int, box: Box) -> list[Box]:
        """Return the positions of each input that a box of a result depends on."""
        ranges = self._ranges(output, box)
        return [ranges[value] for value in self.graph.inputs.values()]

    def part(self, output: int, box: Box, batch: int) -> Part:
        """Build the graph that computes a box of a result for `batch` images."""
        ranges = self._ranges(output, box)
        build = _Build(self.graph, ranges, batch)
        for node, rules in zip(self.graph.nodes, self._reaches, strict=True):
            if node.outputs[0] in ranges:
                build.add(node, rules)
        return build.part(output, box)

    def _ranges(self, output: int, box: Box) -> dict[int, Box]:
        """Return the positions of each value that a box of a result depends on."""
        ranges = {output: self._several(output, box)}
        for node, rules in zip(self.graph.nodes[::-1], self._reaches[::-1], strict=True):
            wanted = [ranges[value] for value in node.outputs if value in ranges]
            if not wanted:
                continue
            hull = _hull(wanted)
            size = self.graph.shapes[node.outputs[0]][2:]
            hull = tuple(map(_with_begin, rules, hull, size))
            if hull != tuple((0, n) for n in size):
                _require_local(node, rules)
            ranges |= dict.fromkeys(node.outputs, hull)
            for number, value in enumerate(node.inputs):
                extents = self.graph.shapes[value][2:]
                read = map(_read, rules, hull, extents) if number == 0 else _within(hull, extents)
                several = self._several(value, tuple(read))
                ranges[value] = _hull([several, *([ranges[value]] if value in ranges else [])])
        for value in self.graph.inputs.values():  # inputs without readers
            ranges.setdefault(value, tuple((0, 1) for _ in box))
        return ranges

    def _several(self, value: int, box: Box) -> Box:
        """Extend a box to at least two positions along the last axis with more than one.

        Kernels drop axes with one position, which would change the summation order.
        """
        sizes = self.graph.shapes[value][2:]
        last = max((axis for axis, size in enumerate(sizes) if size > 1), default=-1)
        spans = list(box)
        if last >= 0 and spans[last][1] - spans[last][0] < 2:
            begin, end = spans[last]
            spans[last] = (begin, end + 1) if end < sizes[last] else (begin - 1, end)
        return tuple(spans)


def _reaches(node: ir.Node, graph: ir.Graph) -> tuple[Reach, ...]:
    shape = graph.shapes[node.inputs[0]]
    try:
        rules = tuple(reach(node, graph, number) for number in range(len(shape) - 2))
        if any(rule.recurs for rule in rules):
            raise EngineRefusal("it computes one position after another")
        return rules
    except EngineRefusal as refusal:
        results = graph.shapes[node.outputs[0]][2:]
        pairs = zip(shape[2:], results, strict=True)
        return tuple(Everything(node.operation, *pair, str(refusal)) for pair in pairs)


def _require_local(node: ir.Node, rules: tuple[Reach, ...]) -> None:
    if isinstance(rules[0], Everything):
        message = f"A network with {located(node)} cannot be computed in chunks: {rules[0].reason}"
        remedy = "Use one chunk along the spatial axes, or end the network before this operation."
        raise EngineRefusal(f"{message}. {remedy}")


def _hull(boxes: Sequence[Box]) -> Box:
    """Return the smallest box that contains all others."""
    spans = zip(*boxes, strict=True)
    return tuple((min(a for a, _ in axis), max(b for _, b in axis)) for axis in spans)


def _within(box: Box, extents: Sequence[int]) -> Box:
    """Return an operand's box; the operand is broadcast along axes with one position."""
    return tuple((0, 1) if n == 1 else span for span, n in zip(box, extents, strict=True))


def _read(rule: Reach, span: Span, size: int) -> Span:
    """Return the span of inputs, out of `size`, that a span of results reads."""
    begin = max(0, rule.first(span[0]))
    end = min(size, bisect_left(range(size + 1), span[1], key=rule.final))
    if isinstance(rule, Edges) and end == size:  # results at the end may need all reflected inputs
        begin = min(begin, max(0, size - max(0, rule.ends[1]) - 1))
    begin = min(begin, end, size - 1)
    return (min(begin, size - 1) if rule.trails else begin), max(end, begin + 1)


def _with_begin(rule: Reach, span: Span, size: int) -> Span:
    """Extend a span of results that contains padding at the beginning to all of that padding and
    the positions that it copies; return any other span unchanged."""
    ends = rule.ends if isinstance(rule, Edges) else (0, 0)
    return (0, min(size, max(span[1], 2 * ends[0] + 1))) if span[0] < ends[0] else span


def _merge(operations: Sequence[ir.Operation]) -> ir.Operation:
    """Merge operations into one that pads axis i like the i-th operation."""
    ends = map(ends_of, operations)
    return with_ends(operations[0], [pairs[axis] for axis, pairs in enumerate(ends) if pairs])


class _Build(PartBuilder):
    """The builder of a box's graph."""

    def __init__(self, graph: ir.Graph, ranges: dict[int, Box], batch: int) -> None:
        super().__init__()
        self._network, self._ranges = graph, ranges
        self._numbers: dict[int, int] = {}
        for name, value in graph.inputs.items():
            images, channels = graph.shapes[value][:2]
            size = (end - begin for begin, end in ranges[value])
            self._numbers[value] = self.input(name, (min(images, batch), channels, *size))

    def add(self, node: ir.Node, rules: tuple[Reach, ...]) -> None:
        """Compute the range of a node from the ranges of its inputs."""
        box, first = self._ranges[node.outputs[0]], node.inputs[0]
        windows = [
            rule.window(rule.shift(begin, low), end - begin, high - low)
            for rule, (begin, end), (low, high) in zip(rules, self._ranges[first], box, strict=True)
        ]
        before = {axis: window.before for axis, window in enumerate(windows)}
        after = {axis: window.after for axis, window in enumerate(windows)}
        inputs = [self.cropped(self._numbers[first], before, first)]
        for value in node.inputs[1:]:
            wanted = _within(box, self._network.shapes[value][2:])
            inputs.append(self._part(value, wanted))
        operation = _merge([window.operation for window in windows])
        outputs = self.node(operation, tuple(inputs), node.outputs[0], node.line)
        for value, number in zip(node.outputs, outputs, strict=True):
            self._numbers[value] = self.cropped(number, after, value)

    def part(self, output: int, box: Box) -> Part:
        """Return the graph of a box of an output."""
        number = self._part(output, box)
        if number in self.inputs.values():
            (number,) = self.node(ir.Convert(), (number,), output)
        return Part(self.graph(number), tuple(self.values))

    def _part(self, value: int, box: Box) -> int:
        pairs = enumerate(zip(self._ranges[value], box, strict=True))
        ends = {i: (low - begin, end - high) for i, ((begin, end), (low, high)) in pairs}
        return self.cropped(self._numbers[value], ends, value)


class BoxPrograms:
    """A network of known sizes that is computed box by box; it can be pickled."""

    def __init__(self, graph: ir.Graph, choice: Choice, options: ir.Options) -> None:
        self.boxes, self._choice, self._options = Boxes(graph), choice, options
        self._compiler = Compiler(graph, fused=False)  # `graph` is fused already
        self._programs: dict[object, Program] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls, compiler: Compiler, shapes: Mapping[str, ir.Shape], options: ir.Options
    ) -> BoxPrograms:
        """Divide a network for inputs of these shapes; boxes use the whole network's kernels."""
        sized = resized(compiler.graph, shapes)
        graph = sized.with_nodes([_explicit(node, sized) for node in sized.nodes])
        choice = compiler.choice(shapes, options)
        variants = {
            node.operation: choice.variants[before.operation]  # type: ignore[index]
            for before, node in zip(sized.nodes, graph.nodes, strict=True)
            if isinstance(node.operation, ir.Convolution)
        }
        return cls(graph, Choice(choice.layouts, variants), options)

    def __reduce__(self) -> tuple[Any, ...]:
        return BoxPrograms, (self.boxes.graph, self._choice, self._options)

    @property
    def digest(self) -> str:
        """A digest of everything that results depend on."""
        variants = tuple(self._choice.variants.values())
        dtype, _, algorithm = self._options
        settings = dtype, algorithm, self._choice.layouts, variants
        return digest(self.boxes.graph, settings).hex()

    def program(self, part: Part) -> Program:
        """Return the program of a part; parts of the same form share a program."""
        ends = tuple(ends_of(node.operation) for node in part.graph.nodes)
        key = part.values, part.graph.outputs, *part.graph.shapes.values(), ends
        with self._lock:
            if key not in self._programs:
                while len(self._programs) >= _MAX_PROGRAMS:
                    del self._programs[next(iter(self._programs))]
                self._programs[key] = self._compiled(part)
            return self._programs[key]

    def _compiled(self, part: Part) -> Program:
        network, options = self.boxes.graph, self._options._replace(threads=resolved(None))
        layouts = {
            value: layout
            for node, layout in zip(network.nodes, self._choice.layouts, strict=True)
            for value in node.outputs
        }
        first = ir.Form().layout
        graph = laid_out(part.graph, [layouts.get(v, first) for v in part.values], options.dtype)
        variants = part.variants(network, self._choice.variants)
        make = partial(self._compiler.assembled, graph, variants, part=True)
        return Program(make, options)


def _explicit(node: ir.Node, graph: ir.Graph) -> ir.Node:
    """Return the node with explicit padding and factors, which do not depend on the size."""
    operation, size = node.operation, graph.shapes[node.inputs[0]][2:]
    if isinstance(operation, ir.Resample):
        return replace(node, operation=operation.at(size))
    if not isinstance(operation, ir.Convolution) or operation.transposed:
        return node
    padding = paddings(operation.keywords.padding, len(size))
    if not isinstance(padding, Same):
        return node
    axes, upper = problem_of(operation, graph.shapes[node.inputs[0]], ir.Form()).axes, padding
    pairs = tuple(
        same_padding(n, a.kernel, a.stride, a.dilation, upper=upper is Same.UPPER)
        for n, a in zip(size, axes, strict=True)
    )
    keywords = operation.keywords._replace(padding=pairs)
    return replace(node, operation=replace(operation, keywords=keywords))
