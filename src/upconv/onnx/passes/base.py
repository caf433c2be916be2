"""The interface of a pass, and the driver that runs passes over a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ...dialects.onnx import Rule
from ...errors import UpconvError
from ..building import Builder
from ..graphs import follower, is_op, named
from ..nodes import ConvTransposeNode, Unreadable, conv_transpose_nodes

Rewriting = Callable[[Builder], None]
"""Function that writes the nodes to replace a node, and perhaps its neighbours."""


class Refusal(UpconvError):
    """The reason why a pass does not rewrite a node, in one sentence."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One way to rewrite ConvTranspose nodes and, for some passes, their neighbours.

    name: the name that users type, including options.
    match: returns the rewriting of a node, or raises `Refusal` or another `UpconvError`.
    rule: how to read auto_pad and output_shape; None means by the rule passed to `run`.
    """

    name: str
    match: Callable[[ConvTransposeNode], Rewriting]
    rule: Rule | None = None

    def refuses(self, conv: ConvTransposeNode) -> str | None:
        """Return why the pass does not rewrite the node, in one sentence; None if it does."""
        try:
            self.match(conv)
        except UpconvError as refusal:
            return str(refusal)
        return None


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of one pass at one node: `refusal` is None if it rewrote the node."""

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
    """Run every pass, in order, on every ConvTranspose node of `model`, which is changed.

    rule, only: as in `upconv.onnx.rewrite`.
    """
    steps: list[Step] = []
    for pass_ in passes:
        reading = pass_.rule or rule
        for conv in conv_transpose_nodes(model, reading, only):
            name, refusal = named(conv.node), None  # rewriting a node removes its outputs' names
            try:
                rewriting = _match(pass_, conv, strict=reading is None)
            except UpconvError as error:
                refusal = str(error)
            else:
                rewriting(Builder(model, conv.node, conv.opset, pass_.name))
            steps.append(Step(name, pass_.name, refusal))
    return steps


def _match(pass_: Pass, conv: ConvTransposeNode | Unreadable, *, strict: bool) -> Rewriting:
    """Match a pass with a node; strict: refuse nodes that rules read differently."""
    if isinstance(conv, Unreadable):
        raise Refusal(conv.reason)
    if strict and conv.departures:
        who = " and ".join(rule.value for rule in conv.departures)
        what = "output_shape" if conv.has_output_shape else "auto_pad"
        raise Refusal(
            f"its {what} is read differently by {who};"
            " choose a rule for all passes, or run normalise:spec, normalise:onnxruntime or"
            " normalise:openvino before them"
        )
    return pass_.match(conv)


_ELEMENTWISE = (
    *("Relu", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "HardSigmoid", "HardSwish"),
    *("Sigmoid", "Tanh", "Softplus", "Softsign", "Gelu", "Mish"),
)


def elementwise(y: ir.Value) -> ir.Node | None:
    """Return the activation that alone reads y; None unless y is its only input."""
    node = follower(y)
    if not is_op(node, *_ELEMENTWISE) or len(node.inputs) != 1:
        return None
    return None if any(a.is_ref() for a in node.attributes.values()) else node
