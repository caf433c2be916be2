"""Every transposed convolution of a model, alone: as a model of its own, with the sizes it has.

1. The node, the activation that follows it, and the DequantizeLinear and QuantizeLinear around a
   quantised one are cut out, since runtimes compute them together.
2. The shape of its input is seen in a run of the model for each set of input shapes. Functions, and
   the bodies of If, Loop and Scan, cannot be asked that way: what stands there is left as it is.
3. What the model leaves open is open in the layer's model too: runtimes plan those differently.
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

MARK = "upconv.number"  # in a node's own memory, not in the file: of which layer it is made


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A transposed convolution cut out of a model, as a `model` of one input; clone it.

    `conv` is read with the first set of input shapes; `shapes` are its input's, per set.
    """

    conv: ConvTransposeNode
    weight: Operand
    model: ir.Model
    shapes: tuple[tuple[int, ...], ...]

    def feeds(self, which: int) -> dict[str, Array]:
        """Random inputs of the shape in one set of input shapes."""
        [x] = self.model.graph.inputs
        return feeds(self.model, {str(x.name): self.shapes[which]})


def mark(model: ir.Model) -> None:
    """Number the ConvTranspose nodes of a model, in order."""
    for index, one in enumerate(conv_transpose_nodes(model)):
        one.node.meta[MARK] = index


def marked(index: int) -> Callable[[ir.Node], bool]:
    """Whether a node is the one of this number, or was made of it."""
    return lambda node: node.meta.get(MARK) == index


def layers(
    model: ir.Model,
    runtime: Runtime,
    inputs: Sequence[Mapping[str, Array]],
    worker: Worker,
) -> list[tuple[ir.Node, Layer | str]]:
    """Every transposed convolution of a marked model, alone, or why it stays as it is."""
    found = conv_transpose_nodes(model, runtime.reading)
    declared = inferred(model)
    shapes = [_shapes(model, found, runtime, given, worker) for given in inputs]
    made: list[tuple[ir.Node, Layer | str]] = []
    for i, one in enumerate(found):
        known = [told[i] for told in shapes if i in told]
        try:
            made.append((one.node, _layer(model, one, known, declared, runtime.reading)))
        except (ValueError, Refusal) as error:
            made.append((one.node, str(error)))
    return made


def _shapes(
    model: ir.Model,
    found: Sequence[ConvTransposeNode | Unreadable],
    runtime: Runtime,
    given: Mapping[str, Array],
    worker: Worker,
) -> dict[int, tuple[int, ...]]:
    """Shapes of the inputs of layers by number: rule 2."""
    copy = model.clone()
    made = (value for node in copy.graph for value in node.outputs)
    values = {value.name: value for value in (*copy.graph.inputs, *made)}
    first = [
        next(iter(o.node.inputs), None) if o.node.graph is model.graph else None for o in found
    ]
    asked = {i: values[x.name] for i, x in enumerate(first) if x and x.name in values}
    copy.graph.outputs.clear()
    for value in asked.values():
        node = ir.node("Shape", [value])
        copy.graph.append(node)  # which names what it makes
        node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
        copy.graph.outputs.append(node.outputs[0])
    if not asked:
        return {}
    with runtime.session(copy, worker=worker) as session:
        outputs = session.run(given).values()
    return {i: tuple(map(int, shape)) for i, shape in zip(asked, outputs, strict=True)}


def _layer(
    model: ir.Model,
    found: ConvTransposeNode | Unreadable,
    shapes: Sequence[tuple[int, ...]],
    declared: Mapping[str, ir.Value],
    rule: Rule,
) -> Layer:
    """`ValueError` and `Refusal` say why there is none."""
    if not shapes:
        reason = "it stands in a body or function, or its input is constant: it cannot be measured"
        raise ValueError(found.reason if isinstance(found, Unreadable) else reason)
    x, known = cast(ir.Value, found.node.inputs[0]), tuple(shapes)
    stated, x.shape = x.shape, ir.Shape(known[0])
    sized = read(found.node, found.opset, rule)
    x.shape = stated
    if isinstance(sized, Unreadable):
        raise ValueError(sized.reason)
    w = weight(sized)
    told = known_sizes(declared.get(str(x.name))) or ()
    told = told if len(told) == len(known[0]) else (None,) * len(known[0])
    # What the model leaves open is open here, but for channels.
    opened = [n if i == 1 or told[i] == n else f"open{i}" for i, n in enumerate(known[0])]
    return Layer(sized, w, _cut_out(model, sized, opened, declared), known)


def _cut_out(
    model: ir.Model,
    conv: ConvTransposeNode,
    shape: Sequence[int | str],
    declared: Mapping[str, ir.Value],
) -> ir.Model:
    """The layer as a model; `ValueError` where it needs more than its input and constants."""
    x, y = conv.x, conv.y
    quantised = x.producer()
    if quantised is not None and is_op(quantised, "DequantizeLinear") and quantised.inputs[0]:
        x = quantised.inputs[0]
    if x.const_value is not None:
        raise ValueError("its input is constant: it cannot be measured alone")
    activation = elementwise(y)
    y = y if activation is None else activation.outputs[0]
    after = follower(y)
    if after is not None and is_op(after, "QuantizeLinear"):
        y = after.outputs[0]
    graph = ir.convenience.extract(cast(ir.Graph, conv.node.graph), [x], [y])
    [given], [made] = graph.inputs, graph.outputs
    for value in (given, made):
        told = declared.get(str(value.name), value).type or conv.x.type
        value.type = value.type or told or ir.TensorType(ir.DataType.FLOAT)
    given.shape, made.shape = ir.Shape(shape), None
    graph.opset_imports.update({"": conv.opset})
    return ir.Model(graph, ir_version=model.ir_version)
