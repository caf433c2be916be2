"""Cut every transposed convolution out of a model, as a separate model with the same sizes.

1. The separate model contains the node, the activation that follows it, and the DequantizeLinear
   and QuantizeLinear around a quantized node, because runtimes compute them together.
2. Running the model for each set of input shapes gives the shape of the layer's input. Shapes in
   functions and in the bodies of If, Loop and Scan remain unknown: nodes there stay unchanged.
3. Dynamic dimensions stay dynamic in the layer's model, because runtimes plan them differently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import onnx_ir as ir

from ...arrays import Array
from ...dialects.onnx import Rule
from ..graphs import follower, is_op
from ..inputs import feeds
from ..nodes import ConvTransposeNode, Unreadable, conv_transpose_nodes, known_sizes, read
from ..passes.base import Refusal, elementwise
from ..passes.quantised import Operand, weight
from ..runtimes import Runtime, Worker
from ..shapes import inferred

MARK = "upconv.number"  # the number of a layer, in its node's `meta`, which is never saved


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A transposed convolution cut out of a model, as a `model` with one input; clone it.

    `conv` is read with the first set of input shapes; `shapes` are its input's shapes in each set.
    """

    conv: ConvTransposeNode
    weight: Operand
    model: ir.Model
    shapes: tuple[tuple[int, ...], ...]

    def feeds(self, which: int) -> dict[str, Array]:
        """Return random inputs for one set of input shapes."""
        [x] = self.model.graph.inputs
        return feeds(self.model, {str(x.name): self.shapes[which]})


def mark(model: ir.Model) -> None:
    """Number the ConvTranspose nodes of a model, in order."""
    for index, one in enumerate(conv_transpose_nodes(model)):
        one.node.meta[MARK] = index


def marked(index: int) -> Callable[[ir.Node], bool]:
    """Return a test for the node with this number, which also accepts its replacements."""
    return lambda node: node.meta.get(MARK) == index


def layers(
    model: ir.Model, runtime: Runtime, inputs: Sequence[Mapping[str, Array]], worker: Worker
) -> list[tuple[ir.Node, Layer | str]]:
    """Return every transposed convolution of a marked model as a layer, or why it cannot be one."""
    nodes = conv_transpose_nodes(model, runtime.reading)
    declared = inferred(model)
    shapes = [_shapes(model, nodes, runtime, arrays, worker) for arrays in inputs]
    results: list[tuple[ir.Node, Layer | str]] = []
    for i, parsed in enumerate(nodes):
        known = [by_number[i] for by_number in shapes if i in by_number]
        try:
            results.append((parsed.node, _layer(model, parsed, known, declared, runtime.reading)))
        except (ValueError, Refusal) as error:
            results.append((parsed.node, str(error)))
    return results


def _shapes(
    model: ir.Model,
    nodes: Sequence[ConvTransposeNode | Unreadable],
    runtime: Runtime,
    arrays: Mapping[str, Array],
    worker: Worker,
) -> dict[int, tuple[int, ...]]:
    """Return the layers' input shapes, by number (rule 2)."""
    copy = model.clone()
    computed = (value for node in copy.graph for value in node.outputs)
    values = {value.name: value for value in (*copy.graph.inputs, *computed)}
    first = [
        next(iter(n.node.inputs), None) if n.node.graph is model.graph else None for n in nodes
    ]
    wanted = {i: values[x.name] for i, x in enumerate(first) if x and x.name in values}
    copy.graph.outputs.clear()
    for value in wanted.values():
        node = ir.node("Shape", [value])
        copy.graph.append(node)  # this names its output
        node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
        copy.graph.outputs.append(node.outputs[0])
    if not wanted:
        return {}
    with runtime.session(copy, worker=worker) as session:
        outputs = session.run(arrays).values()
    return {i: tuple(map(int, shape)) for i, shape in zip(wanted, outputs, strict=True)}


def _layer(
    model: ir.Model,
    parsed: ConvTransposeNode | Unreadable,
    shapes: Sequence[tuple[int, ...]],
    declared: Mapping[str, ir.Value],
    rule: Rule,
) -> Layer:
    """Return the layer of a node; raise `ValueError` or `Refusal` if there is none."""
    if not shapes:
        reason = "it is inside a body or function, or its input is constant: it cannot be measured"
        raise ValueError(parsed.reason if isinstance(parsed, Unreadable) else reason)
    x, known = cast(ir.Value, parsed.node.inputs[0]), tuple(shapes)
    stated, x.shape = x.shape, ir.Shape(known[0])
    sized = read(parsed.node, parsed.opset, rule)
    x.shape = stated
    if isinstance(sized, Unreadable):
        raise ValueError(sized.reason)
    w = weight(sized)
    sizes = known_sizes(declared.get(str(x.name))) or ()
    sizes = sizes if len(sizes) == len(known[0]) else (None,) * len(known[0])
    # Dynamic dimensions stay dynamic, except the channels.
    opened = [n if i == 1 or sizes[i] == n else f"open{i}" for i, n in enumerate(known[0])]
    return Layer(sized, w, _cut_out(model, sized, opened, declared), known)


def _cut_out(
    model: ir.Model,
    conv: ConvTransposeNode,
    shape: Sequence[int | str],
    declared: Mapping[str, ir.Value],
) -> ir.Model:
    """Return the layer as a model; raise `ValueError` if it needs values other than its input."""
    x, y = conv.x, conv.y
    quantized = x.producer()
    if is_op(quantized, "DequantizeLinear") and quantized.inputs[0]:
        x = quantized.inputs[0]
    if x.const_value is not None:
        raise ValueError("its input is constant: it cannot be measured separately")
    activation = elementwise(y)
    y = y if activation is None else activation.outputs[0]
    after = follower(y)
    if is_op(after, "QuantizeLinear"):
        y = after.outputs[0]
    graph = ir.convenience.extract(cast(ir.Graph, conv.node.graph), [x], [y])
    [x], [y] = graph.inputs, graph.outputs
    for value in (x, y):
        known = declared.get(str(value.name), value).type or conv.x.type
        value.type = value.type or known or ir.TensorType(ir.DataType.FLOAT)
    x.shape, y.shape = ir.Shape(shape), None
    graph.opset_imports.update({"": conv.opset})
    return ir.Model(graph, ir_version=model.ir_version)
