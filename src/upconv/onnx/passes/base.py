"""What a pass is, and the driver that walks one over a model.

A pass is a frozen value: its fields are its options, its name is what people write. It refuses in
words or rewrites:

    refuses(site) -> None where it fires, else one sentence: why it must not, or need not
    rewrite(site, builder)   puts new nodes in the place of the node, and perhaps of its neighbours

Each pass's docstring numbers the cases it does; its code repeats the numbers. A pass never looks at
the clock: what is faster is for the optimiser to measure.

What lives here: the protocol, the driver, and questions that several passes ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import onnx_ir as ir

from ...dialects.onnx import Rule
from ..building import Builder
from ..nodes import ConvTransposeNode, Unreadable, conv_transpose_nodes, read

_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class Pass(Protocol):
    """One rewriting of a ConvTranspose node and, for some passes, its neighbours."""

    @property
    def name(self) -> str:
        """What people call it, options included."""

    def refuses(self, site: ConvTransposeNode) -> str | None:
        """None where the pass fires; else why not, in one sentence."""

    def rewrite(self, site: ConvTransposeNode, builder: Builder) -> None:
        """Write the new nodes; only where `refuses` said None."""


@runtime_checkable
class Reading(Protocol):
    """A pass that says itself how a node is read, and so settles what runtimes read differently."""

    @property
    def rule(self) -> Rule | None:
        """By which auto_pad and output_shape are read; None: as the run reads them."""


class Refusal(Exception):
    """Why a pass does not fire, as an exception for passes whose plan finds out midway."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one pass did at one node: `refusal` is None where it rewrote it."""

    node: str
    by: str
    refusal: str | None

    @property
    def fired(self) -> bool:
        """Whether the node was rewritten."""
        return self.refusal is None


def run(
    model: ir.Model,
    passes: Sequence[Pass],
    *,
    rule: Rule | None = None,
    only: Callable[[ir.Node], bool] | None = None,
) -> list[Step]:
    """Walk every pass, in order, over every ConvTranspose node of `model`, which is changed.

    rule: by which auto_pad and output_shape are read; None reads them by ONNX's text, and leaves
    nodes alone that a runtime reads otherwise. `only` chooses the nodes.
    """
    steps: list[Step] = []
    for each in passes:
        reading = (each.rule if isinstance(each, Reading) else None) or rule
        steps += [
            visit(model, each, found, strict=reading is None)
            for found in conv_transpose_nodes(model, reading, only)
        ]
    return steps


def visit(
    model: ir.Model, each: Pass, found: ConvTransposeNode | Unreadable, *, strict: bool
) -> Step:
    """Have one pass refuse or rewrite one node. strict: nodes with departures are left alone."""
    if isinstance(found, Unreadable):
        return Step(found.node.name or "", each.name, found.reason)
    refusal = (strict and contradicted(found)) or each.refuses(found)
    if refusal is None:
        each.rewrite(found, Builder(model, found.node, found.opset, each.name))
    return Step(found.name, each.name, refusal or None)


def again(site: ConvTransposeNode, rule: Rule | None) -> ConvTransposeNode | Unreadable:
    """The site read anew, after its node or its neighbours changed."""
    return read(site.node, site.opset, rule)


def contradicted(site: ConvTransposeNode) -> str | None:
    """That runtimes read the node differently, if they do."""
    if not site.departures:
        return None
    who = " and ".join(rule.value for rule in site.departures)
    return (
        f"{who} reads its {'output_shape' if site.has_output_shape else 'auto_pad'} differently;"
        " say by which rule it is meant, for all passes or by normalise:spec,"
        " normalise:onnxruntime or normalise:openvino before them"
    )


def constant_float_weight(site: ConvTransposeNode) -> str | None:
    """Why a pass that computes a new weight cannot: no constant, or not of floats."""
    if site.weight.array is None:
        return f"its weight is not constant: {site.weight.reason}"
    if site.w.dtype is not None and site.w.dtype not in _FLOATS:
        return f"its weight is of type {site.w.dtype}"
    return None


def dequantised(site: ConvTransposeNode) -> str | None:
    """That nodes between would part the node from its quantised pair, if they would.

    A node computed in integers has a weight out of DequantizeLinear: runtimes then take the node,
    what stands right before it and QuantizeLinear right after it for one. Where the weight is of
    floats no runtime does, and other nodes may come between: all values stay what they are.
    """
    if is_op(site.w.producer(), "DequantizeLinear"):
        return "its weight is dequantised, and quantised pairs are left whole"
    return None


def only_use(value: ir.Value) -> ir.Node | None:
    """The one node that reads a value which nobody else sees; None where there is no such node."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    return uses[0].node


def follower(y: ir.Value) -> ir.Node | None:
    """The one node that reads y, in the graph that makes it."""
    node, producer = only_use(y), y.producer()
    return node if node is not None and producer and node.graph is producer.graph else None


_ELEMENTWISE = (
    *("Relu", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "HardSigmoid", "HardSwish"),
    *("Sigmoid", "Tanh", "Softplus", "Softsign", "Gelu", "Mish"),
)
"""Activations of one input that are said by attributes alone."""


def elementwise(y: ir.Value) -> ir.Node | None:
    """The activation that alone reads y, if one does."""
    node = follower(y)
    known = node is not None and any(is_op(node, kind) for kind in _ELEMENTWISE)
    if node is None or not known or len(node.inputs) != 1:
        return None
    return None if any(one.is_ref() for one in node.attributes.values()) else node


_MOVES_ZERO = ("HardSigmoid", "Sigmoid", "Softplus")


def keeps_zero(activation: ir.Node) -> bool:
    """Whether an activation that `elementwise` found makes 0 of 0."""
    return activation.op_type not in _MOVES_ZERO


def is_op(node: ir.Node | None, kind: str) -> bool:
    """Whether a node is ONNX's own operator of this kind."""
    return node is not None and node.op_type == kind and node.domain in ("", "ai.onnx")
