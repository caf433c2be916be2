"""One deconvolution of a model, alone: as a model of its own, with the sizes it really has.

Sizes that the model leaves open are open in the layer's model too: runtimes take other ways then.
What lives here: extraction. What never does: where sizes come from (`sizes`), measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from ...arrays import Array
from ...dialects.onnx import Rule
from ..inference import infer_shapes
from ..models import to_proto
from ..nodes import ConvTransposeNode, Unreadable, conv_transpose_nodes, read
from ..passes.base import elementwise
from ..runtimes import Runtime
from .results import AxisFacts
from .sizes import input_shapes

MARK = "upconv.site"
"""In a node's own memory, not in the model's file: which site it is, or was made of."""


@dataclass(frozen=True, slots=True, eq=False)
class Alone:
    """A site with the shape of its input, and what draws it a model of its own.

    `site` has the true sizes. `model` makes a fresh copy of it as a model with input "x".
    """

    index: int
    site: ConvTransposeNode
    shape: tuple[int, ...]
    opened: tuple[bool, ...]

    def model(self) -> ir.Model:
        """The node and an activation after it; what is open in its input is open here."""
        dims = zip(self.shape, self.opened, strict=True)
        return _model(self.site, [f"open{i}" if o else n for i, (n, o) in enumerate(dims)])

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """What `feeds` takes to draw an input of the true shape."""
        return {"x": self.shape}

    @property
    def signature(self) -> str:
        """Whatever its time depends on: layers of the same signature are measured once."""
        layer, dtype = self.site.layer, self.site.x.dtype or ir.DataType.FLOAT
        w, biased = self.site.array.shape, self.site.bias is not None
        dims = zip(self.shape, self.opened, strict=True)
        x = ",".join(f"{n}?" if o else str(n) for n, o in dims)
        followed = f" {self.activation.op_type}" if self.activation else ""
        return f"x[{x}] w{list(w)} bias {biased} {dtype.name} {layer}{followed}"

    @property
    def activation(self) -> ir.Node | None:
        """What runtimes compute together with the layer."""
        return elementwise(self.site.y)

    def facts(self) -> tuple[AxisFacts, ...]:
        """The axes, for people."""
        return tuple(
            AxisFacts(a.size, a.kernel, a.stride, a.dilation, a.crop_begin, a.crop_end, a.out)
            for a in self.site.axes
        )


def mark(model: ir.Model) -> int:
    """Number the ConvTranspose nodes of a model, in order; how many there are."""
    found = conv_transpose_nodes(model)
    for index, one in enumerate(found):
        one.node.meta[MARK] = index
    return len(found)


def marked(index: int) -> Callable[[ir.Node], bool]:
    """Whether a node is the one of this number, or was made of it."""
    return lambda node: node.meta.get(MARK) == index


def alone(
    model: ir.Model,
    runtime: Runtime,
    feeds: Mapping[str, Array],
    rule: Rule,
) -> list[Alone | Unreadable]:
    """Every deconvolution of a marked model with its true sizes, or why it stays as it is."""
    found = conv_transpose_nodes(model, rule)
    shapes = input_shapes(model, found, runtime, feeds)
    told = _told(model)
    return [_with_shape(i, one, shapes.get(i), told, rule) for i, one in enumerate(found)]


Told = dict[str, tuple[int | None, ...]]
"""Value -> its shape as far as it holds for all inputs, None where it is open."""


def _told(model: ir.Model) -> Told:
    """What ONNX's shape inference makes of the model; without open inputs nothing is open."""
    dims = (dim for value in model.graph.inputs if value.shape is not None for dim in value.shape)
    if all(isinstance(dim, int) for dim in dims):
        return {}
    proto = to_proto(model)
    try:
        proto = infer_shapes(proto)
    except (RuntimeError, ValueError):  # it gives up on some models; all sizes are open then
        return {"": ()}
    values = [*proto.graph.input, *proto.graph.value_info]
    return {"": (), **{value.name: _dims(value.type.tensor_type) for value in values}}


def _dims(kind: onnx.TypeProto.Tensor) -> tuple[int | None, ...]:
    dims = kind.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)


def _opened(x: ir.Value, rank: int, told: Told) -> tuple[bool, ...]:
    """Which of the sizes of a layer's input are open; its channels never are."""
    if not told:
        return (False,) * rank
    dims = told.get(str(x.name), ())
    if len(dims) != rank:
        dims = (None,) * rank
    return tuple(dim is None and axis != 1 for axis, dim in enumerate(dims))


_NO_SHAPE = (
    "it stands in a subgraph or a function, and the shape of its input cannot be inferred, so"
    " it cannot be measured alone"
)


def _with_shape(
    index: int,
    found: ConvTransposeNode | Unreadable,
    shape: tuple[int, ...] | None,
    told: Told,
    rule: Rule,
) -> Alone | Unreadable:
    node, opset = found.node, found.opset
    if shape is None:
        return found if isinstance(found, Unreadable) else Unreadable(node, opset, _NO_SHAPE)
    sized = _read_with(node, opset, shape, rule)
    if isinstance(sized, Unreadable):
        return sized
    if sized.weight.array is None:
        return Unreadable(node, opset, f"its weight is not constant: {sized.weight.reason}")
    return Alone(index, sized, shape, _opened(sized.x, len(shape), told))


def _read_with(
    node: ir.Node, opset: int, shape: tuple[int, ...], rule: Rule
) -> ConvTransposeNode | Unreadable:
    """The node read as if the shape of its input were declared."""
    x = next(iter(node.inputs), None)
    if x is None:
        return read(node, opset, rule)
    declared, x.shape = x.shape, ir.Shape(shape)
    try:
        return read(node, opset, rule)
    finally:
        x.shape = declared


def _model(site: ConvTransposeNode, shape: Sequence[int | str]) -> ir.Model:
    dtype = site.x.dtype or ir.DataType.FLOAT
    x = ir.Value(name="x", type=ir.TensorType(dtype), shape=ir.Shape(shape))
    inputs = [x, _initialiser("w", site.array)]
    if site.bias is not None:
        bias = site.bias.array
        if bias is None:  # computed: any values take as long
            bias = np.zeros(site.groups * site.array.shape[1], site.array.dtype)
        inputs.append(_initialiser("b", bias))
    node = ir.Node("", "ConvTranspose", inputs, list(site.node.attributes.values()), name="layer")
    nodes, activation = [node], elementwise(site.y)
    if activation is not None:
        said = list(activation.attributes.values())
        nodes.append(ir.Node("", activation.op_type, node.outputs, said, name="activation"))
    for i, made in enumerate(reversed(nodes)):
        [y] = made.outputs
        y.name, y.type = f"y{i}", ir.TensorType(dtype)
    [y] = nodes[-1].outputs
    sizes = site.layer.output_size
    outs = [f"made{i}" if isinstance(n, str) else sizes[i] for i, n in enumerate(shape[2:])]
    y.shape = ir.Shape([shape[0], site.groups * site.array.shape[1], *outs])
    graph = ir.Graph(
        [x],
        [y],
        nodes=nodes,
        initializers=[value for value in inputs if value.const_value is not None],
        opset_imports={"": site.opset},
        name="layer",
    )
    return ir.Model(graph, ir_version=10 if site.opset > 20 else 8)


def _initialiser(name: str, array: Array) -> ir.Value:
    tensor = ir.tensor(np.ascontiguousarray(array), name=name)
    return ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(array.shape),
        const_value=tensor,
    )
