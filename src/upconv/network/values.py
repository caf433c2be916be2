"""Values of a network, and the nodes that compute them: what each call of the builder adds to."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError, DTypeError, brief
from .graph import Input, Node, Op, Operation, Pointwise
from .kinds import OpenShape, described_shape, output_shapes
from .operands import factor_or_term


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Value:
    """A value of a network: (N, C, *size), None where an extent is open.

    `+` and `*` take another value, a number, or an array of one number per channel.
    """

    network: Nodes
    number: int
    shape: OpenShape

    __array_ufunc__ = None  # so that array + value is a value, too

    @property
    def channels(self) -> int:
        """The number of channels."""
        return self.shape[1] or 0

    def __add__(self, other: Any) -> Value:
        return self.network.combined("add", self, other)

    def __mul__(self, other: Any) -> Value:
        return self.network.combined("mul", self, other)

    def __radd__(self, other: Any) -> Value:
        # sum() begins with 0.
        return self if type(other) is int and other == 0 else self + other

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"<Value {self.number} {described_shape(self.shape)}>"


class Nodes:
    """The nodes of a network in order, the shapes of values, and the outputs once they are known.

    With outputs the network is ended: nothing can be added.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.shapes: list[OpenShape] = []
        self.outputs: tuple[int, ...] = ()

    def value(self, shape: OpenShape) -> Value:
        """A new value."""
        self.shapes.append(shape)
        return Value(self, len(self.shapes) - 1, shape)

    def insert(self, operation: Operation, *values: Value) -> Value:
        """The value that a new node writes."""
        if self.outputs:
            remedy = "Call output last, or build another network."
            raise ArgumentError("the network", "ended by output", "a network to add to", remedy)
        for i, value in enumerate(values):
            self.check("x" if len(values) == 1 else f"value {i}", value)
        (shape,) = output_shapes(operation, tuple(value.shape for value in values))
        result = self.value(shape)
        numbers = tuple(value.number for value in values)
        self.nodes.append(Node(operation, numbers, (result.number,), _line_of_caller()))
        return result

    def combined(self, name: str, x: Value, y: Any) -> Value:
        """The "add" or "mul" of x and a value, a number, or one number per channel."""
        channels = self.check("x", x).channels
        if isinstance(y, Value):
            return self.insert(Pointwise((Op(name, Input(1)),)), x, y)
        return self.insert(Pointwise((factor_or_term(name, y, channels),)), x)

    def check(self, argument: str, value: object) -> Value:
        """The argument, if it is a value of this network."""
        if not isinstance(value, Value):
            got = f"{brief(value)} ({type(value).__name__})"
            remedy = 'Begin with an input, as in network.inputs["x"].'
            raise DTypeError(argument, got, "a Value of this network", remedy)
        if value.network is not self:
            remedy = "Build all parts with one Network."
            raise ArgumentError(argument, "of another network", "a value of this one", remedy)
        return value

    def rank(self, x: object) -> int:
        """The number of spatial axes."""
        return len(self.check("x", x).shape) - 2


def _line_of_caller() -> str:
    """The file and line of the call into this package."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "upconv":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
