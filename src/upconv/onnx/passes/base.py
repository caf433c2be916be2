"""What a pass is, and the driver that runs passes over a model.

    match(conv)   the rewriting of one ConvTranspose node, as a function of a `Builder`; raises
                  `Refusal`, or another `UpconvError`, with one sentence: why the pass must not
                  rewrite it, or need not

A rewriting puts new nodes in the place of the node, and perhaps of its neighbours. No pass
measures: what is faster is for `optimize` to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ...dialects.onnx import Rule
from ...errors import UpconvError
from ..building import Builder
from ..nodes import ConvTransposeNode, Unreadable, conv_transpose_nodes, named

Rewriting = Callable[[Builder], None]
"""Writes the new nodes."""


class Refusal(UpconvError):
    """Why a pass does not rewrite a node, in one sentence."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One rewriting of ConvTranspose nodes and, for some passes, of their neighbours.

    name: what people call it, options included.
    match: the rewriting of a node; raises `Refusal`.
    rule: by which auto_pad and output_shape are read; None: as the run reads them.
    """

    name: str
    match: Callable[[ConvTransposeNode], Rewriting]
    rule: Rule | None = None

    def refuses(self, conv: ConvTransposeNode) -> str | None:
        """None where the pass rewrites the node; else why not, in one sentence."""
        try:
            self.match(conv)
        except UpconvError as refusal:
            return str(refusal)
        return None


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
    """Run every pass, in order, over every ConvTranspose node of `model`, which is changed.

    rule: by which auto_pad and output_shape are read; None reads them by ONNX's text, and leaves
    nodes alone that a runtime reads otherwise. `only` chooses the nodes.
    """
    steps: list[Step] = []
    for each in passes:
        reading = each.rule or rule
        for found in conv_transpose_nodes(model, reading, only):
            name = named(found.node)  # before: a rewriting takes the names of its outputs
            refusal = _rewritten(model, each, found, strict=reading is None)
            steps.append(Step(name, each.name, refusal))
    return steps


def _rewritten(
    model: ir.Model, each: Pass, found: ConvTransposeNode | Unreadable, *, strict: bool
) -> str | None:
    """Have one pass rewrite one node; why it does not, if so. strict: refuse contradicted nodes."""
    if isinstance(found, Unreadable):
        return found.reason
    try:
        if strict:
            _require_one_reading(found)
        rewriting = each.match(found)
    except UpconvError as refusal:
        return str(refusal)
    rewriting(Builder(model, found.node, found.opset, each.name))
    return None


def _require_one_reading(conv: ConvTransposeNode) -> None:
    if conv.departures:
        who = " and ".join(rule.value for rule in conv.departures)
        what = "output_shape" if conv.has_output_shape else "auto_pad"
        raise Refusal(
            f"{who} reads its {what} differently;"
            " say by which rule it is meant, for all passes or by normalise:spec,"
            " normalise:onnxruntime or normalise:openvino before them"
        )


def follower(y: ir.Value) -> ir.Node | None:
    """The one node that reads y, in the graph that makes it; None where others see y too."""
    uses, producer = list(y.uses()), y.producer()
    if len(uses) != 1 or y.is_graph_output() or producer is None:
        return None
    return uses[0].node if uses[0].node.graph is producer.graph else None


_ELEMENTWISE = (
    *("Relu", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "HardSigmoid", "HardSwish"),
    *("Sigmoid", "Tanh", "Softplus", "Softsign", "Gelu", "Mish"),
)
"""Activations of one input that are said by attributes alone."""


def elementwise(y: ir.Value) -> ir.Node | None:
    """The activation that alone reads y, if one does."""
    node = follower(y)
    if node is None or len(node.inputs) != 1 or not is_op(node, *_ELEMENTWISE):
        return None
    return None if any(one.is_ref() for one in node.attributes.values()) else node


def is_op(node: ir.Node | None, *kinds: str) -> bool:
    """Whether a node is ONNX's own operator of one of these kinds."""
    return node is not None and node.op_type in kinds and node.domain in ("", "ai.onnx")
