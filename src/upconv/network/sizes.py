"""Sizes: declared shapes of inputs, and the graph for the extents that a use gives to open ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from ..arrays import as_shape
from ..checks import integer
from ..errors import ArgumentError, DTypeError, ShapeError, brief
from .graph import Graph, Node, Shape
from .kinds import KINDS, described_shape, output_shapes
from .operands import one_of

Declared = tuple[int | str | None, ...]
"""(N, C, *size); None and names are open extents."""


def declared(inputs: object) -> dict[str, Declared]:
    """The declared shapes of a network's inputs, by name."""
    if not isinstance(inputs, Mapping) or not inputs:
        expected = "a dict of at least one shape by name"
        raise ArgumentError("inputs", brief(inputs), expected, 'Write {"x": (1, 80, None)}.')
    return {_name(name): _declared_shape(name, shape) for name, shape in inputs.items()}


def _name(name: object) -> str:
    if isinstance(name, str) and name.isidentifier():
        return name
    remedy = "Shapes are given by it, as in network.graph(x=(1, 80, 64))."
    raise DTypeError("the name of an input", brief(name), "a name like 'x'", remedy)


def _declared_shape(name: str, value: object) -> Declared:
    argument = f"inputs[{name!r}]"
    extents = list(value) if isinstance(value, tuple | list) else []
    if len(extents) < 3:
        expected = "(N, C, *size), at least 3 extents"
        raise ShapeError(argument, brief(value), expected, "An open extent is None or a name.")
    if isinstance(extents[1], str | None):
        remedy = "Weights follow from the channels; only batch and sizes may be open."
        raise ShapeError(f"{argument}[1]", brief(extents[1]), "a number of channels", remedy)
    return tuple(
        extent if isinstance(extent, str | None) else integer(f"{argument}[{axis}]", extent, 1)
        for axis, extent in enumerate(extents)
    )


def sized_graph(
    nodes: Sequence[Node],
    inputs: dict[str, Declared],
    outputs: tuple[int, ...],
    shapes: Mapping[str, object],
) -> Graph:
    """The graph of known sizes, without the nodes that no output needs.

    inputs are values 0, 1, ... in order. An error names the line of the node that does not fit.
    """
    known: dict[int, Shape] = dict(enumerate(_known_shapes(inputs, shapes).values()))
    for node in nodes:
        try:
            results = output_shapes(node.operation, tuple(known[each] for each in node.inputs))
        except ArgumentError as error:
            where = f"{KINDS[type(node.operation)].name} at {node.line}: {error.argument}"
            raise type(error)(where, error.got, error.expected, error.remedy) from None
        known.update(zip(node.outputs, cast(tuple[Shape, ...], results), strict=True))
    nodes = _needed(nodes, outputs)
    live = {*range(len(inputs)), *(number for node in nodes for number in node.outputs)}
    numbers = {name: number for number, name in enumerate(inputs)}
    return Graph(nodes, numbers, outputs, {number: known[number] for number in sorted(live)})


def _needed(nodes: Sequence[Node], outputs: tuple[int, ...]) -> tuple[Node, ...]:
    """The nodes that outputs depend on."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    return tuple(reversed(kept))


def _known_shapes(inputs: dict[str, Declared], shapes: Mapping[str, object]) -> dict[str, Shape]:
    """The shapes of all inputs, where those with open extents are given by `shapes`.

    An input may be left out if its open extents have names that others know.
    """
    names: dict[str, int] = {}
    known = {}
    for name, shape in shapes.items():
        one_of("the name of an input", name, tuple(inputs))
        known[name] = _fitted(name, inputs[name], as_shape(name, shape), names)
    for name, extents in inputs.items():
        if name not in known:
            shape = tuple(names.get(n, n) if isinstance(n, str) else n for n in extents)
            known[name] = _fitted(name, extents, shape, names)
    return {name: known[name] for name in inputs}


def _fitted(name: str, extents: Declared, shape: Declared, names: dict[str, int]) -> Shape:
    """A shape that fits the declared one; `names` learns and holds what names stand for."""
    argument, pattern = f"the shape of input {name!r}", described_shape(extents)
    if len(shape) != len(extents):
        raise ShapeError(argument, brief(shape), f"{pattern}, {len(extents)} extents")
    result = []
    for extent, size in zip(extents, shape, strict=True):
        if not isinstance(size, int):
            remedy = f"Give the whole shape of {name!r}, as in graph({name}=(1, 80, 64))."
            raise ShapeError(argument, f"open, {pattern}", "known extents", remedy)
        wanted = names.setdefault(extent, size) if isinstance(extent, str) else extent
        if size < 1 or (wanted is not None and size != wanted):
            meaning = f", where {extent} is {wanted}" if isinstance(extent, str) else ""
            remedy = "Open extents are at least 1." if size < 1 else ""
            raise ShapeError(argument, brief(shape), pattern + meaning, remedy)
        result.append(size)
    return tuple(result)
