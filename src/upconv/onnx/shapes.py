"""Types and shapes of a model's values before it runs: one table, by ONNX's shape inference.

`inferred` runs it on a copy with given shapes of inputs and with large weights left out. What it
cannot tell is not in the table.

A transposed convolution whose pads cut off more than there is gets a negative size from inference,
and the Slice after it then ends the process: an assertion in onnx's own code (onnx issue 8481). So
the copy has a node of our own behind every node that could make such a size, which hands on the
type and shape and leaves a negative size open. It is not put behind the operators that make sizes
of sizes by adding (`_FOLLOWED`): inference follows their values, and the node would interrupt it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes  # noqa: F401  # gives NumPy the names bfloat16, float8_* and int4
import numpy as np
import onnx
import onnx_ir as ir

from .graphs import roots

Dimension = int | str | None

_DOMAIN = "upconv.shapes"
_RAW = "upconv.raw:"
_SMALL = 1024
"""Up to this many bytes a weight is kept: it may be a shape that inference reads."""

_MOST = 1 << 50  # sizes from here on overflow when few of them are added
_FOLLOWED = (
    *("Add", "Cast", "Concat", "Constant", "Gather", "Mul", "Shape", "Size", "Slice", "Squeeze"),
    *("Sub", "Unsqueeze"),
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a value: each is None where it is not.

    `shape` has an int, the name of a symbolic size or None per axis. `dtype` is NumPy's.
    """

    type: ir.TypeProtocol | None = None
    shape: tuple[Dimension, ...] | None = None

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The shape, None unless every size of it is known."""
        sizes = tuple(n for n in self.shape or () if isinstance(n, int))
        return None if self.shape is None or len(sizes) < len(self.shape) else sizes

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The element type, None for text and for what is no tensor."""
        if not isinstance(self.type, ir.TensorType) or self.type.dtype.name in _NO_NUMBERS:
            return None
        return self.type.dtype.numpy()

    @property
    def nbytes(self) -> int | None:
        """The bytes of the value."""
        dtype, sizes = self.dtype, self.sizes
        return None if dtype is None or sizes is None else prod(sizes) * dtype.itemsize

    @property
    def is_tensor(self) -> bool:
        """False for what is known to be a sequence, an optional or a sparse tensor."""
        return self.type is None or isinstance(self.type, ir.TensorType)


_NO_NUMBERS = ("UNDEFINED", "STRING")


def inferred(
    model: ir.Model, shapes: Mapping[str, Sequence[Dimension]] | None = None
) -> dict[str, Facts]:
    """Facts of the values of a model by name, those of its subgraphs included.

    shapes: of inputs, by name, in the place of what the model declares. A name that two subgraphs
        give to different values is not in the table. Where inference fails the table has what the
        model declares.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 3] x) => (float[M, 3] y)'
    >>> inferred(ir.from_onnx_text(text + "{ y = Neg(x) }"), {"x": (2, 3)})["y"].sizes
    (2, 3)
    """
    try:
        told = _infer(_skeleton(model, shapes or {}))
    except Exception:  # foreign code; without its answer what is declared must do
        told = model
    table: dict[str, Facts] = {}
    for value in (value for graph in told.graphs() for value in _of(graph)):
        name, facts = str(value.name), Facts(value.type, _dimensions(value))
        if not name.startswith(_RAW):
            table[name] = facts if table.get(name, facts) == facts else Facts()
    return {name: facts for name, facts in table.items() if facts != Facts()}


def _of(graph: ir.Graph) -> list[ir.Value]:
    made = [value for node in graph for value in node.outputs]
    return [*graph.inputs, *graph.initializers.values(), *made]


def _dimensions(value: ir.Value) -> tuple[Dimension, ...] | None:
    if value.shape is None:
        return None
    known = [n if isinstance(n, int) else n.value for n in value.shape]
    return tuple(None if _open(n) else n for n in known)


def _open(size: Dimension) -> bool:
    """Whether a size says nothing: a negative one, or a name that inference made up."""
    return size.startswith("unk__") if isinstance(size, str) else size is None or size < 0


def _skeleton(model: ir.Model, shapes: Mapping[str, Sequence[Dimension]]) -> ir.Model:
    """A copy for inference: inputs of these shapes, of large weights only what they are."""
    copy = model.clone()
    for graph in copy.graphs():
        for name, value in list(graph.initializers.items()):
            tensor = value.const_value
            if tensor is not None:
                value.shape, value.dtype = ir.Shape(tensor.shape.numpy()), tensor.dtype
            if tensor is None or tensor.nbytes > _SMALL:
                value.const_value = None
                graph.initializers.pop(name)
                if not value.is_graph_input():
                    copy.graph.inputs.append(value)
    for value in copy.graph.inputs:
        if value.name is not None and value.name in shapes:
            value.shape = ir.Shape(list(shapes[value.name]))
    for value in copy.graph.outputs:
        if shapes and not value.is_graph_input():
            value.shape = None  # which may be for other inputs
    return copy


def _infer(model: ir.Model) -> ir.Model:
    nodes = [node for body in roots(model) for node in body.all_nodes()]
    if any(node.op_type == "Slice" for node in nodes):
        for body in roots(model):
            body.opset_imports[_DOMAIN] = 1
        for node in nodes:
            if node.op_type not in _FOLLOWED or node.domain:
                _guard(node)
    proto: onnx.ModelProto = ir.to_proto(model)
    return ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(proto, data_prop=True))


def _guard(node: ir.Node) -> None:
    """Put our node behind one that could make a negative size."""
    for value in node.outputs:
        guard = ir.node("Exists", [], domain=_DOMAIN)
        [after] = guard.outputs
        after.name, after.type, after.shape = value.name, value.type, value.shape
        value.replace_all_uses_with(after, replace_graph_outputs=True)
        value.name, value.type, value.shape = f"{_RAW}{value.name}", None, None
        guard.resize_inputs(1)
        guard.replace_input_with(0, value)
        if node.graph is not None:
            node.graph.insert_after(node, guard)


def _handed_on(context: Any) -> None:
    """The inference of our operator: the type, without sizes that no array has."""
    kind = context.get_input_type(0)
    if kind is None:
        return
    inner = kind
    while inner.WhichOneof("value") in ("sequence_type", "optional_type"):
        inner = getattr(inner, inner.WhichOneof("value")).elem_type
    for dim in inner.tensor_type.shape.dim if inner.HasField("tensor_type") else ():
        if not 0 <= dim.dim_value < _MOST:
            dim.ClearField("dim_value")
    context.set_output_type(0, kind)


def _operator() -> Any:
    """Our operator, as onnx is told of it."""
    schema: Any = onnx.defs.OpSchema
    own = schema(
        "Exists",
        _DOMAIN,
        1,
        inputs=[schema.FormalParameter("x", "T")],
        outputs=[schema.FormalParameter("y", "T")],
        type_constraints=[("T", ["tensor(float)"], "Any, in truth.")],
    )
    own.set_type_and_shape_inference_function(_handed_on)
    return own


if not onnx.defs.has("Exists", _DOMAIN):  # where a test runner imports a module twice
    onnx.defs.register_schema(_operator())
