"""Steps that a compiled partition runs: one operation, or a deconvolution with all that was fused.

A step is made from shapes; one whose weight is constant is a `Plan`, its weight folded and packed
when it is made. Every other convolution is a call, which packs its weight each time.

What lives here: running. What never does: deciding what is fused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..arrays import Array
from ..engines.base import Engine
from ..ops import conv, conv_transpose, conv_transpose_backward
from ..plans import Plan
from . import elementwise
from .convolutions import Convolved
from .logical_tensors import Shape
from .operations import Operation

EngineChoice = str | Engine | None
Data = Mapping[int, Array]


class Step(Protocol):
    """One result from data that are there."""

    @property
    def output(self) -> int:
        """The id of the tensor it makes."""

    def run(self, data: Data, out: Array | None) -> Array:
        """The result, in `out` if that is given."""

    def close(self) -> None:
        """Let go of what it holds."""


@dataclass(frozen=True, slots=True, eq=False)
class Elementwise:
    """An operation that is no convolution, by NumPy."""

    operation: Operation
    shape: Shape

    @property
    def output(self) -> int:
        """The id of the tensor it makes."""
        return self.operation.output

    def run(self, data: Data, out: Array | None) -> Array:
        """The result, in `out` if that is given."""
        arrays = [data[tensor.id] for tensor in self.operation.inputs]
        return placed(elementwise.compute(self.operation, arrays, self.shape), out)

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """What was fused into a convolution: ids of biases and of a residual, the activation."""

    biases: tuple[int, ...] = ()
    residual: int | None = None
    activation: Any = None

    def bias(self, data: Data) -> Array | None:
        """The sum of all biases, rounded once."""
        return total([data[bias] for bias in self.biases])

    def residual_of(self, data: Data, shape: Shape) -> Array | None:
        """The residual with the result's shape, as a view."""
        return None if self.residual is None else np.broadcast_to(data[self.residual], shape)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A convolution of any of the six kinds, and its ends, by one call of upconv."""

    operation: Operation
    convolved: Convolved
    ends: Ends
    output: int
    engine: EngineChoice

    def run(self, data: Data, out: Array | None) -> Array:
        """The result, in `out` if that is given."""
        first, second = (data[tensor.id] for tensor in self.operation.inputs[:2])
        made = self.convolved
        if made.roles.output == "w":
            x, y = (first, second) if made.roles.inputs == ("x", "y") else (second, first)
            return placed(_weight_gradient(made, x, y, self.engine), out)
        function = conv_transpose if made.roles.output == "y" else conv
        return function(
            first,
            made.weight_in(second),
            self.ends.bias(data),
            **_keywords(made),
            activation=self.ends.activation,
            residual=self.ends.residual_of(data, made.result),
            engine=self.engine,
            out=out,
        )

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A deconvolution whose weight and biases are in a plan."""

    plan: Plan
    x: int
    ends: Ends
    output: int

    def run(self, data: Data, out: Array | None) -> Array:
        """The result, in `out` if that is given."""
        residual = self.ends.residual_of(data, self.plan.output_shape)
        return self.plan(data[self.x], residual, out)

    def close(self) -> None:
        """Close the plan."""
        self.plan.close()


def placed(result: Array, out: Array | None) -> Array:
    """`result`, copied to `out` if that is given."""
    if out is None:
        return result
    out[...] = result
    return out


def _keywords(made: Convolved) -> dict[str, Any]:
    """Keywords of `conv_transpose`, or those of `conv`, which calls the weight's axes O and I."""
    keywords = made.layer.keywords()
    if made.roles.output == "x":
        keywords["weight_layout"] = made.layer.weight_layout.swapped().value
    return keywords


def _weight_gradient(made: Convolved, x: Array, y: Array, engine: EngineChoice) -> Array:
    layer = made.layer
    rank, groups = len(layer.axes), layer.groups
    i, o = (shape[layer.layout.to_ncx(rank)[1]] for shape in (made.x, made.y))
    shape = layer.weight_layout.shape(i, o // groups, layer.kernel)
    unread = np.broadcast_to(x.dtype.type(0), shape)  # of the weight only the shape is looked at
    found = conv_transpose_backward(
        y, x, unread, **layer.keywords(), needs=("weight",), engine=engine
    )
    assert found.weight is not None  # noqa: S101 - our own invariant: it was asked for
    return made.weight_out(found.weight)


def total(biases: Sequence[Array]) -> Array | None:
    """The sum of vectors of one type, rounded once; None of none."""
    if len(biases) < 2:
        return biases[0] if biases else None
    with np.errstate(all="ignore"):
        summed: Array = np.sum([bias.astype(np.float64) for bias in biases], axis=0)
        return summed.astype(biases[0].dtype)
