"""Every transposed convolution of a model, alone: as a model of its own, with the sizes it has.

1. The node, the activation that follows it, and the DequantizeLinear and QuantizeLinear around a
   quantised one are cut out, since runtimes compute them together.
2. The shape of its input is seen in a run of the model for each set of input shapes; in the bodies
   of If, Loop and Scan, which cannot be asked that way, shape inference tells.
3. What the model leaves open is open in the layer's model too: runtimes plan those differently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import onnx_ir as ir

from ...arrays import Array
from ...dialects.onnx import Rule
from ..nodes import ConvTransposeNode, Unreadable, conv_transpose_nodes, read
from ..passes.base import elementwise, follower, is_op
from ..runtimes import Runtime, Worker, feeds
from ..shapes import Facts, inferred
from .results import AxisFacts

MARK = "upconv.number"
"""In a node's own memory, not in the model's file: which layer it is, or was made of."""


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A transposed convolution cut out of a model.

    `conv` is the node in the model, read with the sizes of the first set of input shapes. `model`
    has the layer alone, with one input; clone it. `shapes` are those of the conv's input, and
    `inputs` those of the model's, per set.
    """

    index: int
    conv: ConvTransposeNode
    model: ir.Model
    shapes: tuple[tuple[int, ...], ...]

    @property
    def signature(self) -> str:
        """Whatever its time depends on but the shapes: alike layers are measured once."""
        words = [str((value.shape, value.dtype)) for value in self.model.graph.inputs]
        for node in self.model.graph:
            attributes = sorted(f"{a.name}={a.value}" for a in node.attributes.values())
            read = [_described(value) for value in node.inputs]
            words.append(f"{node.op_type} {attributes} {read}")
        opset = self.model.graph.opset_imports.get("")
        return sha256(f"{opset} {words}".encode()).hexdigest()[:24]

    def feeds(self, which: int) -> dict[str, Array]:
        """Random inputs of the shape in one set of input shapes."""
        [x] = self.model.graph.inputs
        return feeds(self.model, {str(x.name): self.shapes[which]})

    def facts(self) -> tuple[AxisFacts, ...]:
        """The axes, for people."""
        return tuple(
            AxisFacts(a.size, a.kernel, a.stride, a.dilation, a.crop_begin, a.crop_end, a.out)
            for a in self.conv.axes
        )


def _described(value: ir.Value | None) -> str:
    if value is None:
        return "-"
    tensor = value.const_value
    return "made" if tensor is None else f"{tensor.dtype}{tensor.shape}"


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
    rule: Rule,
    worker: Worker,
) -> list[Layer | Unreadable]:
    """Every transposed convolution of a marked model, or why it stays as it is."""
    found = conv_transpose_nodes(model, rule)
    declared = inferred(model)
    shapes = [_shapes(model, found, runtime, given, worker) for given in inputs]
    return [
        _layer(model, i, one, [told.get(i) for told in shapes], declared, rule)
        for i, one in enumerate(found)
    ]


def _shapes(
    model: ir.Model,
    found: Sequence[ConvTransposeNode | Unreadable],
    runtime: Runtime,
    given: Mapping[str, Array],
    worker: Worker,
) -> dict[int, tuple[int, ...]]:
    """Shapes of the inputs of layers by number, where they can be told: rule 2."""
    table = inferred(model, {name: array.shape for name, array in given.items()})
    names = {i: str(x.name) for i, one in enumerate(found) if (x := _first(one.node)) is not None}
    sizes = {i: table.get(name, Facts()).sizes for i, name in names.items()}
    told = {i: shape for i, shape in sizes.items() if shape is not None}
    asked = [i for i in names if found[i].node.graph is model.graph]
    if not asked:
        return told
    copy = model.clone()
    made = {value.name: value for value in (*copy.graph.inputs, *_made(copy.graph))}
    copy.graph.outputs.clear()
    prefix = "upconv.shape"
    while any(str(name).startswith(prefix) for name in (*made, *copy.graph.initializers)):
        prefix += "_"
    for i in asked:
        node = ir.node("Shape", [made[names[i]]])
        node.outputs[0].name = f"{prefix}.{i}"
        node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
        copy.graph.append(node)
        copy.graph.outputs.append(node.outputs[0])
    with runtime.session(copy, worker=worker) as session:
        outputs = session.run(given)
    return told | {i: tuple(int(n) for n in outputs[f"{prefix}.{i}"]) for i in asked}


def _made(graph: ir.Graph) -> list[ir.Value]:
    return [value for node in graph for value in node.outputs]


def _first(node: ir.Node) -> ir.Value | None:
    return next(iter(node.inputs), None)


def _layer(
    model: ir.Model,
    index: int,
    found: ConvTransposeNode | Unreadable,
    shapes: Sequence[tuple[int, ...] | None],
    declared: Mapping[str, Facts],
    rule: Rule,
) -> Layer | Unreadable:
    node, opset, x = found.node, found.opset, _first(found.node)
    known = tuple(shape for shape in shapes if shape is not None)
    if x is None or len(known) < len(shapes):
        text = "the shape of its input cannot be inferred, so it cannot be measured alone"
        return found if isinstance(found, Unreadable) else Unreadable(node, opset, text)
    sized = _read_with(node, opset, x, known[0], rule)
    if isinstance(sized, Unreadable):
        return sized
    if sized.weight.array is None:
        return Unreadable(node, opset, f"its weight is not constant: {sized.weight.reason}")
    try:
        alone = _cut_out(model, sized, _opened(x, known, declared))
    except ValueError as error:
        return Unreadable(node, opset, f"it cannot be measured alone: {error}")
    return Layer(index, sized, alone, known)


def _read_with(
    node: ir.Node, opset: int, x: ir.Value, shape: tuple[int, ...], rule: Rule
) -> ConvTransposeNode | Unreadable:
    """The node read as if the shape of its input were declared."""
    declared, x.shape = x.shape, ir.Shape(shape)
    try:
        return read(node, opset, rule)
    finally:
        x.shape = declared


def _opened(
    x: ir.Value, shapes: Sequence[tuple[int, ...]], declared: Mapping[str, Facts]
) -> list[int | str]:
    """The shape of a layer's input, open where the model leaves it open; channels never are."""
    shape = shapes[0]
    told: Sequence[Any] = declared.get(str(x.name), Facts()).shape or ()
    if len(told) != len(shape):
        told = [None] * len(shape)
    return [n if i == 1 or told[i] == n else f"open{i}" for i, n in enumerate(shape)]


def _cut_out(model: ir.Model, conv: ConvTransposeNode, shape: Sequence[int | str]) -> ir.Model:
    """The layer as a model; `ValueError` where it needs more than its input and constants."""
    x, y = conv.x, conv.y
    quantised = x.producer()
    if quantised is not None and is_op(quantised, "DequantizeLinear") and quantised.inputs[0]:
        x = quantised.inputs[0]
    activation = elementwise(y)
    y = y if activation is None else activation.outputs[0]
    after = follower(y)
    if after is not None and is_op(after, "QuantizeLinear"):
        y = after.outputs[0]
    whole = conv.node.graph
    if whole is None or (x.producer() is None and x.const_value is not None):
        raise ValueError("its input is constant")
    graph = ir.convenience.extract(whole, [x], [y])
    [given], [made] = graph.inputs, graph.outputs
    given.type = given.type or ir.TensorType(conv.x.dtype or ir.DataType.FLOAT)
    given.shape, made.shape = ir.Shape(shape), None
    made.type = made.type or given.type
    graph.opset_imports.update({"": conv.opset})
    return ir.Model(graph, ir_version=model.ir_version)
