"""ONNX's shape inference, so that no model can end the process: nobody else calls it.

A deconvolution whose pads cut off more than there is gets a negative size from inference, and the
Slice after it then ends the process: an assertion in onnx's own code, which ONNX Runtime shares. So
inference runs on a copy with a node of our own behind every node that could make such a size. It
hands on types and shapes, and leaves open each size that no array has. The operators it is not put
behind make sizes out of sizes by adding alone; they are those whose values inference follows, which
the node would interrupt. What is declared is cleaned alike.

Where the installed onnx lets nobody add an operator, Slice nodes are hidden from inference instead.
A model without a Slice goes as it is.

What lives here: the one call, and what it found to be impossible. What never does: using shapes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import count
from typing import Any

import onnx
from onnx import FunctionProto, ModelProto, NodeProto, TypeProto, ValueInfoProto

from ..errors import ModelError, brief
from .bodies import Body, bodies, called, sparse_tensors, tensors

_DOMAIN = "upconv.inference"
_CARRYING = frozenset(
    ("Add", "Cast", "Concat", "Constant", "Gather", "Mul", "Shape", "Size", "Slice", "Squeeze")
) | {"Sub", "Unsqueeze"}
"""Operators whose values inference follows: of sizes that exist they make sizes that exist."""

_MOST = 1 << 50
"""Sizes from here on are none: few of them, added, are more than an integer of inference holds."""

_OWN = ("", "ai.onnx")
_INNER = ("sequence_type", "optional_type")
_SEEN = threading.local()
"""`sizes`: what the nodes behind nodes left open in the inference that this thread is in."""


def infer_shapes(model: ModelProto, *, data_prop: bool = False) -> ModelProto:
    """What `onnx.shape_inference.infer_shapes` makes of a model; a negative size is left open.

    Raises `ModelError` for a weight with such a size, and where inference fails; `ValueError` or
    `RuntimeError` for too large a message.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[1, 1, 3] x) => (float[1, 1, M] y)'
    >>> text += "<float[1, 1, 1] w = {1}, int64[1] s = {0}> "
    >>> text += "{ c = ConvTranspose<pads = [3, 3]>(x, w) y = Slice(c, s, s) }"
    >>> [c] = infer_shapes(onnx.parser.parse_model(text)).graph.value_info
    >>> c.type.tensor_type.shape.dim[2].HasField("dim_value")
    False
    """
    return _inferred(model, data_prop)[0]


def impossible(model: ModelProto) -> str | None:
    """In a sentence, what makes a size that no array has, in a model with a Slice; None if nothing.

    Raises what `infer_shapes` raises. Without a Slice nothing ends the process.
    """
    if not sliced(model):
        return None
    _, found = _inferred(model, data_prop=True)
    return next(iter(found), None)


def _foreign(model: ModelProto, data_prop: bool) -> ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=data_prop)
    except onnx.shape_inference.InferenceError as error:  # of no kind but its own
        raise ModelError(f"ONNX's shape inference fails: {brief(str(error))}.") from error


def _inferred(model: ModelProto, data_prop: bool) -> tuple[ModelProto, list[str]]:
    if not sliced(model):
        return _foreign(model, data_prop), []
    copy = ModelProto()
    copy.CopyFrom(model)
    _require_tensors(copy)
    _clean(copy)
    if not _known_operator():
        _hide(copy)
        return _shown(_foreign(copy, data_prop)), []
    prefix = _free(copy)
    _guard(copy, prefix)
    found: list[str] = []
    _SEEN.sizes = found
    told = _foreign(copy, data_prop)
    _unguard(told, prefix)
    return told, found


def sliced(model: ModelProto) -> bool:
    """Whether there is a Slice anywhere in a model."""
    return any(node.op_type == "Slice" for body in bodies(model) for node in body.node)


def cleaned(model: ModelProto) -> ModelProto:
    """The model, or a copy of it that declares no size that no array has."""
    kinds = (info.type for body in bodies(model) for info in _declared(body))
    if all(not _impossible(kind) for kind in kinds):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    _clean(copy)
    return copy


def _require_tensors(model: ModelProto) -> None:
    for body in bodies(model):
        for placed in (*tensors(body), *sparse_tensors(body)):
            if not all(map(_exists, placed.tensor.dims)):
                raise ModelError(f"{placed.place}: No array has its shape.")


def _exists(size: int) -> bool:
    return 0 <= size < _MOST


def _clean(model: ModelProto) -> None:
    """Leave open what is declared of sizes that no array has: exporters say -1 for "any"."""
    for body in bodies(model):
        for info in _declared(body):
            _open(info.type)


def _declared(body: Body) -> list[ValueInfoProto]:
    if isinstance(body, FunctionProto):
        return list(body.value_info)
    return [*body.value_info, *body.input, *body.output]


def _open(kind: TypeProto) -> list[int]:
    """Leave open each size of a type that no array has; those sizes."""
    dims = _impossible(kind)
    sizes = [dim.dim_value for dim in dims]
    for dim in dims:
        dim.ClearField("dim_value")
    return sizes


def _impossible(kind: TypeProto) -> list[Any]:
    """The dimensions of a type that no array has."""
    which = kind.WhichOneof("value")
    if which in _INNER:
        return _impossible(getattr(kind, which).elem_type)
    if which == "map_type":
        return _impossible(kind.map_type.value_type)
    if which not in ("tensor_type", "sparse_tensor_type"):
        return []
    return [dim for dim in getattr(kind, which).shape.dim if not _exists(dim.dim_value)]


def _free(model: ModelProto) -> str:
    """What no name of a value begins with."""
    prefix = "upconv.raw"
    names = {name for body in bodies(model) for node in body.node for name in node.output}
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return prefix


def _guard(model: ModelProto, prefix: str) -> None:
    """Put our own node behind every node that could make an impossible size."""
    numbers = count()
    for body in list(bodies(model))[::-1]:  # inner ones first: outer ones are then copied with them
        nodes = [one for node in body.node for one in _guarded(node, prefix, numbers)]
        del body.node[:]
        body.node.extend(nodes)
    for owner in (model, *model.functions):
        owner.opset_import.add(domain=_DOMAIN, version=1)


def _guarded(node: NodeProto, prefix: str, numbers: Iterator[int]) -> Iterable[NodeProto]:
    sparse = any(attribute.HasField("sparse_tensor") for attribute in node.attribute)
    if node.op_type in _CARRYING and node.domain in _OWN and not sparse:
        return [node]
    found, maker = [node], called(node)
    for i, name in enumerate(node.output):
        if name:
            node.output[i] = f"{prefix}{next(numbers)}:{name}"
            found.append(_exists_node(node.output[i], name, maker))
    return found


def _exists_node(x: str, y: str, maker: str) -> NodeProto:
    node: NodeProto = onnx.helper.make_node("Exists", [x], [y], domain=_DOMAIN, of=maker)
    return node


def _unguard(model: ModelProto, prefix: str) -> None:
    for body in bodies(model):
        for i in reversed(range(len(body.node))):
            node = body.node[i]
            if node.domain == _DOMAIN:
                del body.node[i]
                continue
            for j, name in enumerate(node.output):
                if name.startswith(prefix):
                    node.output[j] = name.split(":", 1)[1]
        for i in reversed(range(len(body.value_info))):
            if body.value_info[i].name.startswith(prefix):
                del body.value_info[i]
    for owner in (model, *model.functions):
        del owner.opset_import[-1]


def _hide(model: ModelProto) -> None:
    for body in bodies(model):
        for node in body.node:
            if node.op_type == "Slice":
                node.op_type, node.domain = f"Slice:{node.domain}", _DOMAIN


def _shown(model: ModelProto) -> ModelProto:
    for body in bodies(model):
        for node in body.node:
            if node.domain == _DOMAIN:
                node.op_type, node.domain = node.op_type.split(":", 1)
    return model


@cache
def _known_operator() -> bool:
    """Tell onnx our operator; whether it takes operators of others."""
    schema: Any = onnx.defs.OpSchema
    if not hasattr(schema, "set_type_and_shape_inference_function"):
        return False
    value, kinds = schema.FormalParameter, [("T", ["tensor(float)"], "Any, in truth.")]
    own = schema(
        "Exists",
        _DOMAIN,
        1,
        inputs=[value("x", "T")],
        outputs=[value("y", "T")],
        type_constraints=kinds,
    )
    own.set_type_and_shape_inference_function(_handed_on)
    onnx.defs.register_schema(own)
    return True


def _handed_on(context: Any) -> None:
    """The inference of our operator."""
    kind = context.get_input_type(0)
    if kind is None:
        return
    sizes = _open(kind)
    if sizes:
        maker = context.get_attribute("of").s.decode()
        _SEEN.sizes.append(f"{maker}: It has the size {brief(sizes[0])}, which no array has.")
    context.set_output_type(0, kind)
