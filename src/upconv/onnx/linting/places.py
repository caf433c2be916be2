"""Where rules look: every ConvTranspose node of a model, with what is known about it.

A place's site is read by the target's rule where there is a target, by ONNX's text else. Its graph
is a text such as "main/branch 'If_3' then_branch": the graphs and functions it stands in.

What lives here: finding nodes and describing where they stand. What never does: judging.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ...dialects.onnx import Rule
from ..constants import DEFAULT_DOMAINS
from ..nodes import ConvTransposeNode, Unreadable, read

Shape = tuple[int | None, ...]

_MOST_TAPS = 1 << 16  # and phases: whoever lists them takes that much time and memory


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One ConvTranspose node as a rule sees it.

    `declared` is the shape that the model states for its output, None where it states none.
    """

    node: ir.Node
    graph: str
    opset: int
    found: ConvTransposeNode | Unreadable
    target: Rule | None
    declared: Shape | None

    @property
    def name(self) -> str:
        """The node's name, or its output's where it has none."""
        return self.node.name or next((str(y.name) for y in self.node.outputs if y.name), "")

    @property
    def site(self) -> ConvTransposeNode | None:
        """The site, of a node that can be read."""
        return self.found if isinstance(self.found, ConvTransposeNode) else None

    def aims(self, runtime: Rule) -> bool:
        """Whether what this runtime does matters: it is the target, or there is none."""
        return self.target in (None, runtime)

    def readings(self) -> dict[Rule, ConvTransposeNode]:
        """How ONNX's text and the runtimes that matter read it; those that refuse it are left out.

        With a target: the text and the target.
        """
        rules = [rule for rule in Rule if rule is Rule.SPEC or self.aims(rule)]
        found = {rule: read(self.node, self.opset, rule) for rule in rules}
        return {rule: site for rule, site in found.items() if isinstance(site, ConvTransposeNode)}


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """A ConvTranspose node and where it stands."""

    node: ir.Node
    graph: str
    opset: int


def standings(model: ir.Model) -> Iterator[Standing]:
    """Every ConvTranspose node, a graph's before those of graphs inside it, functions last."""
    for graph, path, opset in _bodies(model):
        for node in graph:
            if node.op_type == "ConvTranspose" and node.domain in DEFAULT_DOMAINS:
                yield Standing(node, path, opset)


def shape_of(value: ir.Value | None) -> Shape | None:
    """The sizes that are known, None for those that are not; None where not even the rank is."""
    if value is None or value.shape is None:
        return None
    return tuple(d if isinstance(d, int) and d >= 0 else None for d in value.shape)


def countable(site: ConvTransposeNode) -> bool:
    """Whether taps and phases are few enough to be listed; real layers have hundreds."""
    return all(max(axis.kernel, axis.stride) <= _MOST_TAPS for axis in site.axes)


def _bodies(model: ir.Model) -> Iterator[tuple[ir.Graph | ir.Function, str, int]]:
    own = model.opset_imports.get("", 0)
    waiting: list[tuple[ir.Graph | ir.Function, str, int]] = [
        (function, f"function {function.domain}::{function.name}", _opset(function, own))
        for function in reversed(list(model.functions.values()))
    ]
    waiting.append((model.graph, model.graph.name or "graph", own))
    while waiting:
        body, path, opset = waiting.pop()
        yield body, path, opset
        inner = [
            (graph, f"{path}/{node.name or node.op_type}.{attribute.name}", opset)
            for node in body
            for attribute in node.attributes.values()
            for graph in _graphs(attribute)
        ]
        waiting.extend(reversed(inner))


def _opset(function: ir.Function, absent: int) -> int:
    return function.opset_imports.get("", absent)


def _graphs(attribute: ir.Attr) -> list[ir.Graph]:
    if attribute.is_ref():
        return []
    if attribute.type == ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    return list(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else []
