"""Checks of a model: ONNX's own checker, and checks that it leaves to its callers.

1. A model has opset 13 and IR version 4 or later, at most `MAX_NODES` nodes, and no cycle.
2. ONNX's checker accepts it. That checker refuses three things that runtimes accept, and that are
   allowed here: operators that ONNX does not define (TensorRT's plugins are in ONNX's domain);
   inputs and outputs without a declared type or shape; data outside the model (see `models`).
3. No declared size is negative, which would crash ONNX's shape inference (onnx issue 8481). Only -1
   is allowed, because exporters write it, and is read as a dynamic size.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import CheckerPass

from ..errors import ModelError, brief
from ..terminal import one_line
from .graphs import named, roots, values

OLDEST_OPSET = 13
NEWEST_OPSET: int = onnx.defs.onnx_opset_version()
OLDEST_IR_VERSION = 4
MAX_NODES = 250_000

_UNDEFINED = "upconv.undefined"


def require_sound(model: ir.Model) -> None:
    """Raise `ModelError` unless the model is valid ONNX; sort nodes that are out of order."""
    _require_versions(model)
    nodes = [node for body in roots(model) for node in body.all_nodes()]
    if len(nodes) > MAX_NODES:
        raise ModelError(f"It has {len(nodes)} nodes; expected at most {MAX_NODES}.")
    for body in roots(model):
        try:
            body.sort()
        except ValueError:
            raise ModelError("Its nodes form a cycle: some need their own results.") from None
    for value in values(model):
        smallest = min((n for n in value.shape or () if isinstance(n, int)), default=0)
        if smallest < -1:
            raise ModelError(f"{brief(value.name)} is declared with the negative size {smallest}.")
        if smallest < 0:
            value.shape = ir.Shape([None if n == -1 else n for n in value.shape or ()])
    read = [(f"{n.op_type} node {brief(named(n))} reads", n.inputs) for n in nodes]
    for verb, used in (*read, *(("The graph returns", graph.outputs) for graph in model.graphs())):
        for x in used:
            if x and not (x.producer() or x.is_graph_input() or x.is_initializer()):
                raise ModelError(f"{verb} {brief(x.name)}, which nothing defines.")
    try:
        CheckerPass()(_acceptable(model))
    except onnx.checker.ValidationError as error:
        raise ModelError(f"ONNX's checker: {one_line(error)}") from None


def _require_versions(model: ir.Model) -> None:
    if "" not in model.opset_imports:
        raise ModelError("It imports no opset of ONNX's own domain.")
    opsets = [body.opset_imports.get("", OLDEST_OPSET) for body in roots(model)]
    if min(opsets) < OLDEST_OPSET or model.ir_version < OLDEST_IR_VERSION:
        what = f"opset {min(opsets)} and IR version {model.ir_version}"
        expected = f"expected {OLDEST_OPSET} and {OLDEST_IR_VERSION} or later"
        remedy = "Convert it with onnx.version_converter.convert_version."
        raise ModelError(f"It has {what}; {expected}. {remedy}")
    if max(opsets) > NEWEST_OPSET:
        words = f"the installed onnx supports opset {NEWEST_OPSET} and earlier"
        raise ModelError(f"It has opset {max(opsets)}; {words}.")


def _acceptable(model: ir.Model) -> ir.Model:
    """Copy a model so that the checker accepts everything in it that runtimes accept."""
    copy = model.clone()
    for body in roots(copy):
        for node in body.all_nodes():
            if not (node.domain or onnx.defs.has(node.op_type, model.opset_imports[""], "")):
                node.domain = _UNDEFINED
        body.opset_imports[_UNDEFINED] = 1
    for graph in copy.graphs():
        for value in (*graph.inputs, *graph.outputs):
            value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
            value.shape = value.shape or ir.Shape([])
    return copy
