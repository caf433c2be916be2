"""Parts of a model that upconv computes, and the model with operators in their place.

A part is a convex group of nodes with a convolution, and becomes a network. A node that does not
fit (`fits.py`) ends a part, and so does a value whose axes are not (N, C, *size), since parts
cannot exchange such values; reports state the reason. In models that are not float32, a part is a
single convolution, which becomes a plan (`layers.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ...network import Network
from ..graphs import follower, is_op, named
from . import layers
from .computations import Part, Run, Shapes
from .fits import CONVOLUTIONS, Fits, RefusedError, network_of
from .partition import boundary, makers, partition
from .units import Unit, units

DOMAIN = "upconv.session"
OPERATOR = "Part_{}"  # with the element type

_MAX_CHOICES = 8
"""How often parts are chosen before all operators that move axes are left to ONNX Runtime."""


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """A model's parts, and `left`: the convolutions outside them, with the reasons."""

    parts: tuple[Part, ...] = ()
    left: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def _prepared(network: Network, threads: int, shapes: Shapes) -> tuple[Shapes, Run]:
    """Prepare a network; for an empty batch, infer the shapes from a single image's."""
    known = dict(zip(network.inputs, shapes, strict=True))
    if any(shape[:1] == (0,) for shape in shapes):
        graph = network.graph(**{name: (1, *shape[1:]) for name, shape in known.items()})
        return tuple((0, *graph.shapes[y][1:]) for y in graph.outputs), lambda *_: None
    program = network.program(known, threads=threads)
    return program.output_shapes, lambda xs, ys: program.run(*xs, out=ys)


def parts_of(model: ir.Model, kinds: Sequence[str], threads: int, alone: bool = False) -> Partition:
    """Return the parts that contain convolutions of these kinds.

    kinds: operators, such as "Conv". alone: each part is a convolution and the activation after it.
    """
    opset = model.graph.opset_imports.get("", 0)
    every = units(model.graph)
    fits = Fits(opset)
    others = [u for u in every if is_op(u.last, *CONVOLUTIONS) and u.last.op_type not in kinds]
    kept = dict.fromkeys(others, "These parts contain only other kinds of layers.")
    for attempt in count():
        refused, arranged = fits.among(every, kept, moves=attempt < _MAX_CHOICES)
        fitting = {unit: None for unit in every if unit not in refused}
        seeds = {unit: None for unit in fitting if is_op(unit.last, *kinds)}
        groups = [_with_follower(unit, fitting) for unit in seeds]
        groups = groups if alone else partition(every, fitting, seeds)
        moved = _rearranged_ends(every, groups, refused, arranged)
        kept |= dict.fromkeys(moved, "Its axes are in another order where a part ends.")
        try:
            if not moved:
                parts = [_part(group, opset, threads, _ends(group, refused)) for group in groups]
                break
        except RefusedError as error:
            kept[error.unit] = error.reason
    parts += layers.parts_of(model, kinds, threads)
    inside = {name for part in parts for name in part.nodes}
    left = {
        named(unit.last): (unit.last.op_type, refused.get(unit, "It is not a part by itself."))
        for unit in every
        if is_op(unit.last, *CONVOLUTIONS) and _result(unit.last) not in inside
    }
    return Partition(tuple(parts), left)


def _rearranged_ends(
    every: list[Unit],
    groups: list[list[Unit]],
    refused: Collection[Unit],
    arranged: Collection[ir.Value],
) -> set[Unit]:
    """Return the units whose values would enter or leave a part with rearranged axes.

    This includes units outside all parts whose values a refused unit reads, and units whose values
    only such units read.
    """
    made_by = makers(every)
    inside = {unit for group in groups for unit in group}
    ends = {y for group in groups for values in boundary(group) for y in values}
    ends |= {x for unit in refused for x in unit.inputs if made_by.get(x) not in inside}
    moved = {made_by[y] for y in ends if y in arranged}
    unit_of = {node: unit for unit in every for node in unit.nodes}
    for unit in reversed(every) if moved else ():
        results = [y for y in unit.last.outputs if y in arranged]
        readers = {unit_of[use.node] for y in results for use in y.uses()}
        if readers and all(reader in moved or reader in refused for reader in readers):
            moved.add(unit)
    return moved


def _with_follower(unit: Unit, fitting: Mapping[Unit, None]) -> list[Unit]:
    """Return a convolution, with the activation if that alone reads its result."""
    activation = follower(unit.last.outputs[0])
    if not is_op(
        activation,
        *("LeakyRelu", "Relu", "Tanh", "Sigmoid", "PRelu", "Elu", "Gelu", "HardSwish", "Clip"),
    ):
        return [unit]
    return [unit, *(other for other in fitting if other.nodes == (activation,))]


def _part(group: list[Unit], opset: int, threads: int, ends: tuple[str, ...]) -> Part:
    network = network_of(group, opset)
    inputs, outputs = boundary(group)
    convolutions = [unit.last for unit in group if is_op(unit.last, *CONVOLUTIONS)]
    nodes = [unit.last for unit in group]
    name = named(nodes[0]) if len(nodes) == 1 else f"{named(nodes[0])} ... {named(nodes[-1])}"
    kinds = Counter(node.op_type for node in nodes)
    return Part(
        name,
        ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in kinds.items()),
        len(convolutions),
        tuple(_result(node) for unit in group for node in unit.nodes),
        tuple(str(x.name) for x in inputs),
        tuple(str(y.name) for y in outputs),
        partial(_prepared, network, threads),
        ends=ends,
    )


def _ends(group: list[Unit], refused: Mapping[Unit, str]) -> tuple[str, ...]:
    """Describe the units next to a group that no network computes, with the reasons."""
    inputs, outputs = boundary(group)
    nodes = [x.producer() for x in inputs] + [use.node for y in outputs for use in y.uses()]
    reasons = {unit.last: why for unit, why in refused.items()}
    ends = {node: reasons[node] for node in nodes if node in reasons}
    return tuple(f"{node.op_type} {named(node)}: {why}" for node, why in ends.items() if node)


def _result(node: ir.Node) -> str:
    """Return the name of a node's first result, which identifies the node in copies."""
    return next(str(y.name) for y in node.outputs if y.name)


def with_operators(model: ir.Model, parts: Mapping[int, Part]) -> ir.Model:
    """Copy a model, with an operator in place of each part; parts: by their kernels' numbers."""
    copy = model.clone()
    graph = copy.graph
    makers = {str(y.name): node for node in graph for y in node.outputs}
    values = {str(x.name): x for x in (*graph.inputs, *graph.initializers.values())}
    values |= {str(y.name): y for node in graph for y in node.outputs}
    for number, part in parts.items():
        operator = ir.Node(
            DOMAIN,
            OPERATOR.format(part.dtype),
            [values[name] for name in part.inputs],
            [ir.AttrInt64("part", number)],
            num_outputs=len(part.outputs),
            name=f"{DOMAIN}/{part.name}",
        )
        graph.append(operator)
        for name, result in zip(part.outputs, operator.outputs, strict=True):
            old = values[name]
            # The shape stays: ONNX Runtime infers none for a custom operator.
            kind = ir.DataType.from_numpy(np.dtype(part.dtype))
            result.type, result.shape = ir.TensorType(kind), old.shape
            ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
            old.name, result.name, values[name] = None, name, result
        graph.remove([makers[name] for name in part.nodes], safe=True)
    graph.opset_imports[DOMAIN] = 1
    RemoveUnusedNodesPass()(copy)
    graph.sort()
    return copy
