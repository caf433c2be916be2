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
"""Puts new nodes in the place of the node, and perhaps of its neighbours."""


class Refusal(UpconvError):
    """Why a pass does not rewrite a node, in one sentence."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One rewriting of ConvTranspose nodes and, for some passes, of their neighbours.

    name: what people call it, options included.
    match: the rewriting of a node; raises `Refusal`, or another `UpconvError` that says why not.
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
    """The outcome of one pass at one node: `refusal` is None where it rewrote it."""

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

    rule, only: as in `upconv.onnx.rewrite`.
    """
    steps: list[Step] = []
    for each in passes:
        reading = each.rule or rule
        for found in conv_transpose_nodes(model, reading, only):
            name, refusal = named(found.node), None  # a rewriting takes the names of its outputs
            try:
                rewriting = _matched(each, found, strict=reading is None)
            except UpconvError as error:
                refusal = str(error)
            else:
                rewriting(Builder(model, found.node, found.opset, each.name))
            steps.append(Step(name, each.name, refusal))
    return steps


def _matched(each: Pass, found: ConvTransposeNode | Unreadable, *, strict: bool) -> Rewriting:
    """strict: refuse nodes that rules read differently."""
    if isinstance(found, Unreadable):
        raise Refusal(found.reason)
    if strict and found.departures:
        who = " and ".join(rule.value for rule in found.departures)
        what = "output_shape" if found.has_output_shape else "auto_pad"
        raise Refusal(
            f"{who} reads its {what} differently;"
            " say by which rule it is meant, for all passes or by normalise:spec,"
            " normalise:onnxruntime or normalise:openvino before them"
        )
    return each.match(found)


_ELEMENTWISE = (
    *("Relu", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "HardSigmoid", "HardSwish"),
    *("Sigmoid", "Tanh", "Softplus", "Softsign", "Gelu", "Mish"),
)


def elementwise(y: ir.Value) -> ir.Node | None:
    """The activation, said by attributes alone, that alone reads y, if one does."""
    node = follower(y)
    if node is None or len(node.inputs) != 1 or not is_op(node, *_ELEMENTWISE):
        return None
    return None if any(one.is_ref() for one in node.attributes.values()) else node
