"""What a model may say and onnx-ir cannot hold, carried through it unread.

    in the model                                      sealed as
    1. attributes with sparse tensors, types of maps  a text attribute of the same name
       or text that is not UTF-8
    2. sparse initialisers                            Constant nodes, first in their graph
    3. types of maps and of opaque values             a property of the value's metadata
    4. information for training                       a property of the model's metadata

`seal` replaces these in a ModelProto before onnx-ir reads it, `unseal` puts them back in one that
onnx-ir wrote; what lies between may clone, rewrite and rename. The seal has a random part per
process, so that no model can bring a seal of its own making.
"""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import onnx_ir as ir
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TypeProto,
    ValueInfoProto,
)

from .bodies import Body, attributes, bodies

_SEAL = f"upconv.sealed.{secrets.token_hex(8)}."

_TYPES = (AttributeProto.TYPE_PROTO, AttributeProto.TYPE_PROTOS)
_SPARSE = (AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS)


def seal(model: ModelProto) -> None:
    """Replace, in place, what onnx-ir cannot hold."""
    for body in bodies(model):
        for attribute in attributes(body):
            if _unreadable(attribute):
                _seal_attribute(attribute)
        for info in _value_infos(body):
            if not _readable(info.type):
                _put(info.metadata_props, "type", [info.type])
                info.ClearField("type")
        if isinstance(body, GraphProto):
            _seal_sparse_initialisers(body)
    _put(model.metadata_props, "training", model.training_info)
    model.ClearField("training_info")


def unseal(model: ModelProto) -> None:
    """Put back, in place, what `seal` replaced."""
    for body in bodies(model):
        for attribute in attributes(body):
            if attribute.s.startswith(_SEAL.encode()):
                attribute.CopyFrom(AttributeProto.FromString(_opened(attribute.s.decode())))
        for info in _value_infos(body):
            _take(info.metadata_props, "type", partial(getattr, info, "type"))
        if isinstance(body, GraphProto):
            _unseal_sparse_initialisers(body)
    _take(model.metadata_props, "training", model.training_info.add)


def sparse_tensor(attribute: ir.Attr) -> SparseTensorProto:
    """The sparse tensor of a sealed attribute; raises `ValueError` for any other attribute."""
    text = attribute.value
    if not (isinstance(text, str) and text.startswith(_SEAL)):
        raise ValueError(f"{attribute.name} holds no sparse tensor")
    return AttributeProto.FromString(_opened(text)).sparse_tensor


def _value_infos(body: Body) -> Iterable[ValueInfoProto]:
    if isinstance(body, GraphProto):
        return [*body.input, *body.output, *body.value_info]
    return list(body.value_info)


def _unreadable(attribute: AttributeProto) -> bool:
    if attribute.type in _TYPES:
        return not all(map(_readable, [attribute.tp, *attribute.type_protos]))
    return attribute.type in _SPARSE or not all(map(_utf8, [attribute.s, *attribute.strings]))


def _utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _readable(type_: TypeProto) -> bool:
    """Whether onnx-ir holds all a type says."""
    kind = type_.WhichOneof("value")
    if kind is None:
        return True
    inner = getattr(type_, kind)
    if kind in ("sequence_type", "optional_type"):
        return inner.elem_type.WhichOneof("value") is not None and _readable(inner.elem_type)
    return kind in ("tensor_type", "sparse_tensor_type") and inner.HasField("elem_type")


def _seal_attribute(attribute: AttributeProto) -> None:
    sealed = _SEAL + _closed(attribute)
    name = attribute.name
    attribute.Clear()
    attribute.name, attribute.type, attribute.s = name, AttributeProto.STRING, sealed.encode()


def _seal_sparse_initialisers(graph: GraphProto) -> None:
    for sparse in reversed(graph.sparse_initializer):
        node = NodeProto(op_type="Constant", name=_SEAL, output=[sparse.values.name])
        node.attribute.add(
            name="sparse_value", type=AttributeProto.SPARSE_TENSOR
        ).sparse_tensor.CopyFrom(sparse)
        _seal_attribute(node.attribute[0])
        graph.node.insert(0, node)
    graph.ClearField("sparse_initializer")


def _unseal_sparse_initialisers(graph: GraphProto) -> None:
    for i in reversed([i for i, node in enumerate(graph.node) if node.name == _SEAL]):
        graph.sparse_initializer.insert(0, graph.node[i].attribute[0].sparse_tensor)
        del graph.node[i]


def _put(properties: Any, key: str, messages: Iterable[Any]) -> None:
    for i, message in enumerate(messages):
        properties.add(key=f"{_SEAL}{key}.{i:09}", value=_closed(message))


def _take(properties: Any, key: str, place: Callable[[], Any]) -> None:
    """Put what was sealed under `key` into places made one after the other, in its order."""
    prefix = f"{_SEAL}{key}."
    sealed = sorted((p.key, p.value) for p in properties if p.key.startswith(prefix))
    kept = [(p.key, p.value) for p in properties if not p.key.startswith(prefix)]
    for _, value in sealed:
        place().MergeFromString(_opened(value))
    if sealed:
        del properties[:]
        for name, value in kept:
            properties.add(key=name, value=value)


def _closed(message: Any) -> str:
    return b64encode(message.SerializeToString()).decode()


def _opened(text: str) -> bytes:
    return b64decode(text.removeprefix(_SEAL))
