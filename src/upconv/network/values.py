"""A network's values and the nodes that compute them, first for open sizes, then for known ones.

An input's declared shape is (N, C, *size); None and names are open extents.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from ..arrays import as_shape
from ..checks import integer, number
from ..errors import ArgumentError, DTypeError, ShapeError, brief
from .graph import EXCHANGED, Graph, Input, Node, Op, Operation, Pointwise, Shape
from .kinds import OpenShape, described_shape, located, output_shapes
from .operands import one_of, one_or_all, per_channel, with_constant

Declared = tuple[int | str | None, ...]


def _operator(name: str) -> Callable[[Value, Any], Value]:
    """Return a method that combines a value with another operand."""
    return lambda value, other: value.network.combined(name, value, other)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Value:
    """A value of a network: (N, C, *size), with None for open extents.

    `+`, `-`, `*` and `/` accept another value, a number, or an array with one number per channel.
    """

    network: Nodes
    number: int
    shape: OpenShape

    __array_ufunc__ = None  # so that array + value is also a value

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.shape[1] or 0

    __add__ = _operator("add")
    __sub__ = _operator("sub")
    __mul__ = __rmul__ = _operator("mul")
    __truediv__ = _operator("div")
    __rtruediv__ = _operator("rdiv")

    def __radd__(self, other: Any) -> Value:
        # sum() starts with 0.
        return self if type(other) is int and other == 0 else self + other

    def __rsub__(self, other: Any) -> Value:
        return self.network.combined("add", -self, other)

    def __neg__(self) -> Value:
        return self * -1.0

    def __repr__(self) -> str:
        return f"<Value {self.number} {described_shape(self.shape)}>"


class Nodes:
    """The inputs of a network, its nodes in order, and its outputs once they are known.

    Inputs are values 0, 1, ... After the outputs are set, no node can be added.
    """

    def __init__(self, inputs: object) -> None:
        if not isinstance(inputs, Mapping) or not inputs:
            expected = "a dict of at least one shape by name"
            raise ArgumentError("inputs", brief(inputs), expected, 'Write {"x": (1, 80, None)}.')
        self.declared = {name: declared_shape(name, shape) for name, shape in inputs.items()}
        self.nodes: list[Node] = []
        self.shapes: list[OpenShape] = []
        self.outputs: tuple[int, ...] = ()
        self.line = ""  # for the next nodes, if a front end knows better than Python's frames
        self.inputs = {
            name: self._value(tuple(None if isinstance(n, str) else n for n in shape))
            for name, shape in self.declared.items()
        }

    def _value(self, shape: OpenShape) -> Value:
        self.shapes.append(shape)
        return Value(self, len(self.shapes) - 1, shape)

    def insert(self, operation: Operation, *values: Value) -> Value:
        """Add a node; return the value that it writes."""
        if self.outputs:
            remedy = "Call output last, or build another network."
            raise ArgumentError("the network", "complete", "one whose output is not set", remedy)
        for i, value in enumerate(values):
            self.check("x" if len(values) == 1 else f"value {i}", value)
        (shape,) = output_shapes(operation, tuple(value.shape for value in values))
        result = self._value(shape)
        numbers = tuple(value.number for value in values)
        line = self.line or _line_of_caller()
        self.nodes.append(Node(operation, numbers, (result.number,), line))
        return result

    def replay(self, other: Nodes) -> None:
        """Insert the nodes and outputs of another network that has as many inputs."""
        for node in other.nodes:
            self.line = node.line
            self.insert(node.operation, *(Value(self, i, self.shapes[i]) for i in node.inputs))
        self.outputs = other.outputs

    def combined(self, name: str, x: Value, y: Any) -> Value:
        """Add an operation on x and a value, a number, or one number per channel."""
        channels = self.check("x", x).channels
        if not isinstance(y, Value):
            plain = isinstance(y, int | float | np.number)
            operand = number("y", y) if plain else per_channel("y", y, channels)
            return self.insert(Pointwise((with_constant(name, operand),)), x)
        pairs = list(zip(x.shape, y.shape, strict=False))
        if any(a == 1 != b for a, b in pairs):  # the broadcast value must be second
            x, y, name = y, x, EXCHANGED[name]
            pairs = [(b, a) for a, b in pairs]
        broadcast = len(x.shape) == len(y.shape) and any(b == 1 != a for a, b in pairs)
        if broadcast:
            one_or_all(name, x.shape, y.shape)
        return self.insert(Pointwise((Op(name, Input(1, broadcast)),)), x, y)

    def check(self, argument: str, value: object) -> Value:
        """Return the argument if it is a value of this network, else raise an error."""
        if not isinstance(value, Value):
            got = f"{brief(value)} ({type(value).__name__})"
            remedy = 'Start with an input, as in network.inputs["x"].'
            raise DTypeError(argument, got, "a Value of this network", remedy)
        if value.network is not self:
            remedy = "Build all parts with one Network."
            raise ArgumentError(argument, "from another network", "a value of this one", remedy)
        return value

    def rank(self, x: object) -> int:
        """Return the number of spatial axes."""
        return len(self.check("x", x).shape) - 2

    def graph(self) -> Graph:
        """Return the graph of all nodes in the order of the calls; open extents are None."""
        numbers = {name: value.number for name, value in self.inputs.items()}
        shapes = cast(dict[int, Shape], dict(enumerate(self.shapes)))
        return Graph(tuple(self.nodes), numbers, self.outputs, shapes)

    def sized(self, sizes: Mapping[str, object]) -> Graph:
        """Return the graph for known sizes, without the nodes that no output needs.

        sizes: the shapes of inputs with open extents, by name. An input may be omitted if other
        inputs determine its open extents, which then have names.
        """
        known: dict[int, Shape] = dict(enumerate(self.input_shapes(sizes)))
        for node in self.nodes:
            try:
                shapes = output_shapes(node.operation, tuple(known[value] for value in node.inputs))
            except ArgumentError as error:
                where = f"{located(node)}: {error.argument}"
                raise type(error)(where, error.got, error.expected, error.remedy) from None
            known.update(zip(node.outputs, cast(tuple[Shape, ...], shapes), strict=True))
        needed = set(self.outputs)
        nodes: list[Node] = []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.inputs)
                nodes.insert(0, node)
        needed.update(range(len(self.inputs)))
        live = {number: known[number] for number in sorted(needed)}
        return replace(self.graph(), nodes=tuple(nodes), shapes=live)

    def input_shapes(self, sizes: Mapping[str, object]) -> list[Shape]:
        """Check shapes against the declared ones; return the shapes of all inputs, in order."""
        names: dict[str, int] = {}
        known = {}
        for name, shape in sizes.items():
            one_of("the name of an input", name, tuple(self.declared))
            known[name] = _fitted(name, self.declared[name], as_shape(name, shape), names)
        for name, extents in self.declared.items():
            if name not in known:
                shape = tuple(names.get(n, n) if isinstance(n, str) else n for n in extents)
                known[name] = _fitted(name, extents, shape, names)
        return [known[name] for name in self.declared]


def declared_shape(name: object, value: object) -> Declared:
    """Check and return the declared shape of an input."""
    if not isinstance(name, str) or not name.isidentifier():
        remedy = "The name is used as a keyword, as in network.graph(x=(1, 80, 64))."
        raise DTypeError("the name of an input", brief(name), "a name like 'x'", remedy)
    argument = f"inputs[{name!r}]"
    extents = list(value) if isinstance(value, tuple | list) else []
    if len(extents) < 3:
        expected = "(N, C, *size), at least 3 extents"
        raise ShapeError(argument, brief(value), expected, "An open extent is None or a name.")
    if isinstance(extents[1], str | None):
        remedy = "Weights depend on the channels; only batch and sizes may be open."
        raise ShapeError(f"{argument}[1]", brief(extents[1]), "a number of channels", remedy)
    return tuple(
        extent if isinstance(extent, str | None) else integer(f"{argument}[{axis}]", extent, 1)
        for axis, extent in enumerate(extents)
    )


def _fitted(name: str, extents: Declared, shape: Declared, names: dict[str, int]) -> Shape:
    """Check and return a shape; record the extents of its declared names in `names`."""
    argument, pattern = f"the shape of input {name!r}", described_shape(extents)
    if len(shape) != len(extents):
        raise ShapeError(argument, brief(shape), f"{pattern}, {len(extents)} extents")
    result = []
    for extent, size in zip(extents, shape, strict=True):
        if not isinstance(size, int):
            remedy = f"Pass the whole shape of {name!r}, such as (1, 80, 64)."
            raise ShapeError(argument, f"open, {pattern}", "known extents", remedy)
        wanted = names.setdefault(extent, size) if isinstance(extent, str) else extent
        if size < 1 or wanted not in (None, size):
            meaning = f", where {extent} is {wanted}" if isinstance(extent, str) else ""
            remedy = "Open extents are at least 1." if size < 1 else ""
            raise ShapeError(argument, brief(shape), pattern + meaning, remedy)
        result.append(size)
    return tuple(result)


def _line_of_caller() -> str:
    """Return the file and line that called this package."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "upconv":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
