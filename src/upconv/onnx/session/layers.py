"""Layers of a model that upconv can compute, and the model with operators in their place.

A layer is a ConvTranspose or Conv of the main graph with a constant weight, and the activation that
alone reads its result. What it is for an input is read when the input's shape is known, as ONNX
Runtime reads it: sizes may be open, and differ from run to run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass, ShapeInferencePass

from ...arrays import Array
from ...dialects import from_onnx
from ...dialects.onnx import Rule
from ...plans import Plan, conv_plan, plan
from ..constants import constant_value
from ..graphs import follower, is_op, named, plain
from ..models import load, stored
from ..nodes import ConvTransposeNode, read
from ..operators import conv_keywords
from ..passes import PASSES
from ..passes.base import run

DOMAIN = "upconv.session"
OPERATOR = "Convolution_{}"  # of an element type
_MOST_KNOWN = 4
Known = tuple[dict[str, Any], Plan]
_FOLDS = ("fold_batch_norm", "fold_slice", "fold_pad")
_DTYPES = ("float32", "float16", "float64", "bfloat16")


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """`output` is the value that the layer's node makes, `last` what its activation makes of that.

    follower: the activation's node. slopes: of a PRelu, per channel; the plan does not compute it.
    """

    name: str
    kind: str
    output: str
    last: str
    follower: str
    weight: Array
    bias: Array | None
    activation: Any
    slopes: Array | None
    attributes: Mapping[str, Any]

    @property
    def title(self) -> str:
        """The operators, as in "ConvTranspose + leaky_relu"."""
        activation = self.activation
        said = activation[0] if isinstance(activation, tuple) else activation
        said = said if self.slopes is None else "prelu"
        return f"{self.kind} + {said}" if said else self.kind

    def keywords(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """The layer for an input of this shape in the words of `plan` or `conv_plan`."""
        if self.kind == "Conv":
            return conv_keywords(self.attributes)
        kernel, rule = self.weight.shape[2:], Rule.ONNXRUNTIME.value
        return from_onnx(shape[2:], kernel, **self.attributes, rule=rule).keywords()

    def plan(self, shape: tuple[int, ...], threads: int, known: list[Known]) -> Plan:
        """The layer for an input of this shape; `EngineRefusal` where the JIT engine refuses it.

        known: plans of other shapes, which it shares the weight with where they differ in the shape
        alone; a new one is added.
        """
        keywords = self.keywords(shape)
        for others, first in known:
            if others == keywords:
                return first.resized(shape)
        # Other engines have threads of their own, which ONNX Runtime's leave no processor to.
        end = {"activation": self.activation, "threads": threads, "engine": "jit"}
        make = conv_plan if self.kind == "Conv" else plan
        made = make(shape, self.weight, self.bias, **keywords, **end)
        known[:] = [*known[-_MOST_KNOWN + 1 :], (keywords, made)]
        return made


def prepared(model: ir.Model) -> tuple[ir.Model, bool]:
    """A copy with what stands around ConvTranspose folded into it, and whether anything was."""
    copy = _simplified(model)
    ShapeInferencePass(check_type=False, strict_mode=False)(copy)
    steps = run(copy, [PASSES[name] for name in _FOLDS], rule=Rule.ONNXRUNTIME)
    changed = any(step.fired for step in steps)
    for node in list(copy.graph):
        slope = constant_value(node.inputs[1]).array if is_op(node, "PRelu") else None
        if slope is not None and slope.size == 1 and slope.dtype == np.float32:
            node.op_type = "LeakyRelu"  # which ONNX Runtime computes on all threads and with a Conv
            node.resize_inputs(1)
            node.attributes["alpha"] = ir.AttrFloat32("alpha", float(slope.item()))
            changed = True
    RemoveUnusedNodesPass()(copy)
    return copy, changed


def _simplified(model: ir.Model) -> ir.Model:
    """With constants folded by ONNX Runtime, shapes too, and BatchNormalization into Conv."""
    import onnxruntime

    from ..runtimes.onnxruntime import options

    settings = options(1)
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with TemporaryDirectory(prefix="upconv-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "simplified.onnx"
        settings.optimized_model_filepath = str(path)
        try:
            with stored(model) as file:
                onnxruntime.InferenceSession(file, settings)
            return load(path).clone()
        except Exception:  # it refuses the model, or cannot write it: as it was given, then
            return model.clone()


def layers(model: ir.Model) -> list[Layer]:
    """The layers of a model, in its order."""
    opset = model.graph.opset_imports.get("", 0)
    found = (_layer(node, opset) for node in model.graph if is_op(node, "ConvTranspose", "Conv"))
    return [each for each in found if each is not None]


def _layer(node: ir.Node, opset: int) -> Layer | None:
    x, w, b = [*node.inputs, None, None, None][:3]
    if x is None or w is None:
        return None
    weight, bias = constant_value(w).array, constant_value(b).array
    if weight is None or weight.ndim < 3 or not weight.size or weight.dtype.name not in _DTYPES:
        return None
    if b is not None and (bias is None or bias.dtype != weight.dtype):
        return None
    if not np.isfinite(weight).all():  # no machine code of upconv's computes with it
        return None
    attributes = {name: plain(each.value) for name, each in node.attributes.items()}
    if attributes.pop("kernel_shape", [*weight.shape[2:]]) != [*weight.shape[2:]]:
        return None
    channels = weight.shape[0]
    if node.op_type == "ConvTranspose":
        if not isinstance(read(node, opset, Rule.ONNXRUNTIME), ConvTransposeNode):
            return None
        channels = weight.shape[1] * attributes.get("group", 1)
        attributes["opset"] = opset
    y = node.outputs[0]
    end = follower(y)
    activation, slopes = _activation(end), _slopes(end, y, weight, channels)
    if end is None or (activation is None and slopes is None):
        last, ending = y, ""
    else:
        last, ending = end.outputs[0], named(end)
    names = named(node), node.op_type, str(y.name), str(last.name), ending
    return Layer(*names, weight, bias, activation, slopes, attributes)


def _activation(node: ir.Node | None) -> Any:
    """The activation that a node is, as plans have it; None for any other node."""
    if node is None or not is_op(node, "LeakyRelu", "Gelu", "Relu", "Tanh", "Sigmoid"):
        return None
    if node.op_type == "LeakyRelu":
        return "leaky_relu", node.attributes.get_float("alpha", 0.01)
    exact = node.attributes.get_string("approximate", "none") == "none"
    return node.op_type.lower() if exact else None


def _slopes(node: ir.Node | None, y: ir.Value, weight: Array, channels: int) -> Array | None:
    """The slopes of a PRelu that has one per channel of y."""
    if node is None or not is_op(node, "PRelu") or node.inputs[0] is not y:
        return None
    slopes = constant_value(node.inputs[1]).array
    if slopes is None or slopes.dtype != weight.dtype or slopes.ndim > weight.ndim:
        return None
    shape = (1,) * (weight.ndim - slopes.ndim) + slopes.shape
    wanted = (1, channels, *(1,) * (weight.ndim - 2))
    return slopes.reshape(-1) if shape == wanted and np.isfinite(slopes).all() else None


def with_operators(model: ir.Model, chosen: Mapping[str, int]) -> ir.Model:
    """A copy of a model with operators in place of layers; chosen: output -> kernel's number."""
    copy = model.clone()
    found = {each.output: each for each in layers(copy)}
    nodes = {str(y.name): node for node in copy.graph for y in node.outputs}
    for output, number in chosen.items():
        layer, node = found[output], nodes[output]
        y, end = node.outputs[0], nodes[layer.last].outputs[0]
        # y keeps its shape: ONNX Runtime infers none for an operator of ours.
        y.type = ir.TensorType(ir.DataType.from_numpy(layer.weight.dtype))
        if end is not y:
            ir.convenience.replace_all_uses_with(end, y, replace_graph_outputs=True)
            copy.graph.remove(nodes[layer.last], safe=True)
            y.name = layer.last
        node.name = f"{DOMAIN}/{output}"  # by which the profiler calls it
        node.domain, node.op_type = DOMAIN, OPERATOR.format(layer.weight.dtype.name)
        node.resize_inputs(1)
        node.attributes.clear()
        node.attributes["layer"] = ir.AttrInt64("layer", number)
    copy.graph.opset_imports[DOMAIN] = 1
    RemoveUnusedNodesPass()(copy)
    return copy
