"""The input of a rule: one ConvTranspose node, parsed, and its surroundings in the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import onnx_ir as ir

from ...dialects.onnx import Rule as Reading
from ..graphs import is_op, named, opset_of, roots
from ..nodes import ConvTransposeNode, Sizes, Unreadable, known_sizes, read

READERS = {
    Reading.SPEC: "the ONNX specification",
    Reading.ONNXRUNTIME: "ONNX Runtime",
    Reading.OPENVINO: "OpenVINO",
}


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """One node, in the graph, subgraph or function `graph`; `declared` is its output's shape.

    `runtime` is the runtime for which the model is checked; None means any.
    """

    parsed: ConvTransposeNode | Unreadable
    graph: str
    runtime: Reading | None
    declared: Sizes | None

    @property
    def location(self) -> tuple[str, str]:
        """The names of the graph and of the node."""
        return self.graph, named(self.parsed.node)

    @property
    def conv(self) -> ConvTransposeNode:
        """The node, for rules that run only on nodes that could be read."""
        return cast(ConvTransposeNode, self.parsed)

    def concerns(self, runtime: Reading) -> bool:
        """Return whether the model is being checked for this runtime, or for any."""
        return self.runtime in (None, runtime)

    def readings(self) -> dict[Reading, ConvTransposeNode]:
        """Read the node as the specification and the checked runtimes do, unless they refuse it."""
        rules = [rule for rule in Reading if rule is Reading.SPEC or self.concerns(rule)]
        parsed = {rule: read(self.conv.node, self.conv.opset, rule) for rule in rules}
        return {rule: conv for rule, conv in parsed.items() if isinstance(conv, ConvTransposeNode)}


def contexts(
    model: ir.Model, runtime: Reading | None, declared: Mapping[ir.Value, Sizes | None]
) -> Iterator[Context]:
    """Yield the ConvTranspose nodes; nodes that the runtime refuses are read by the spec."""
    for body in roots(model):
        opset = opset_of(model, body)
        for node in body.all_nodes():
            if is_op(node, "ConvTranspose") and node.outputs:
                parsed = read(node, opset, runtime)
                if runtime is not None and isinstance(parsed, Unreadable):
                    parsed = read(node, opset)
                graph = str((node.graph.name if node.graph else None) or body.name)
                yield Context(parsed, graph, runtime, declared.get(node.outputs[0]))


def output_shape(conv: ConvTransposeNode) -> Sizes:
    """Return the output's true shape, as far as it is known."""
    x, w = known_sizes(conv.x), known_sizes(conv.w)
    channels = w[1] if w is not None and len(w) == conv.rank + 2 else None
    sizes = (None if n is None else a.out for a, n in zip(conv.axes, conv.sizes, strict=True))
    batch = None if x is None else x[0]
    return (batch, None if channels is None else channels * conv.groups, *sizes)


def shape_in_words(shape: Sizes) -> str:
    """Describe a shape, with ? for dynamic sizes."""
    return f"({', '.join('?' if size is None else str(size) for size in shape)})"


def attribute(node: ir.Node, name: str) -> Any:
    """Return the value of an attribute; None if it is absent, or a function's parameter."""
    entry = node.attributes.get(name)
    return None if entry is None or entry.is_ref() else entry.value


def axes_in_words(axes: Sequence[int]) -> str:
    """Name these spatial axes, for use in a sentence."""
    return f"spatial {'axis' if len(axes) == 1 else 'axes'} {' and '.join(map(str, axes))}"
