"""Tensors set aside while the structure of a model passes through protobuf.

Protobuf copies what it holds, and holds at most 2 GiB. So a large tensor is left out of a
ModelProto and a placeholder is put in: an outside tensor whose location is a secret of this
`Aside`, and whose offset is its place in the list of those set aside.

    parted = set_aside(model)            a model's proto, without its large tensors
    aside.leave_out(tensor, meant)       a placeholder for one more, in a proto
    aside.restore(model)                 tensors in the place of placeholders
    aside.placeholders(proto)            what to fill in, on the way to a file

What lives here: which tensor stands where. What never does: reading or writing any.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass

import onnx_ir as ir
from onnx import ModelProto, TensorProto

from .bodies import bodies, tensors

SMALLEST = 1024
"""Bytes from which on a tensor is set aside."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A placeholder and what it stands for."""

    proto: TensorProto
    tensor: ir.TensorProtocol


class Aside:
    """The tensors set aside, in order."""

    def __init__(self) -> None:
        self.tensors: list[ir.TensorProtocol] = []
        self._secret = f"upconv.aside.{secrets.token_hex(8)}"

    def leave_out(self, proto: TensorProto, tensor: ir.TensorProtocol) -> None:
        """Make `proto` the placeholder of `tensor`."""
        placeholder = ir.serde.serialize_tensor(self.placeholder(tensor))
        proto.CopyFrom(placeholder)

    def placeholder(self, tensor: ir.TensorProtocol) -> ir.ExternalTensor:
        """What stands for `tensor`, with its name and all else but the data."""
        self.tensors.append(tensor)
        return ir.ExternalTensor(
            self._secret,
            len(self.tensors) - 1,
            None,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or "",
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
        )

    def placeholders(self, model: ModelProto) -> Iterator[Waiting]:
        """The placeholders in a proto, each with what it stands for."""
        for body in bodies(model):
            for placed in tensors(body):
                if self.holds(placed.tensor):
                    yield Waiting(placed.tensor, self.tensors[_index(placed.tensor)])

    def holds(self, proto: TensorProto) -> bool:
        """Whether a tensor of a proto is a placeholder."""
        return any(entry.value == self._secret for entry in proto.external_data)

    def restore(self, model: ir.Model) -> None:
        """Put what was set aside in the place of its placeholders."""
        for graph in model.graphs():
            for value in graph.initializers.values():
                if value.const_value is not None:
                    value.const_value = self._meant(value.const_value)
        for function in model.functions.values():
            self._restore_attributes(function.attributes)
        for body in roots(model):
            for node in body.all_nodes():
                self._restore_attributes(node.attributes)

    def _restore_attributes(self, attributes: MutableMapping[str, ir.Attr]) -> None:
        for name, attribute in list(attributes.items()):
            doc_string = attribute.doc_string
            if attribute.is_ref():
                continue
            if attribute.type is ir.AttributeType.TENSOR:
                tensor = self._meant(attribute.value)
                attributes[name] = ir.AttrTensor(name, tensor, doc_string=doc_string)
            elif attribute.type is ir.AttributeType.TENSORS:
                every = [self._meant(tensor) for tensor in attribute.value]
                attributes[name] = ir.AttrTensors(name, every, doc_string=doc_string)

    def _meant(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if isinstance(tensor, ir.ExternalTensor) and tensor.location == self._secret:
            return self.tensors[tensor.offset or 0]
        return tensor


@dataclass(frozen=True, slots=True)
class Parted:
    """A model's proto, and the tensors that are not in it."""

    proto: ModelProto
    aside: Aside


def set_aside(model: ir.Model) -> Parted:
    """The proto of a model with placeholders for its large initialisers; the model stays as it is.

    Raises what onnx-ir raises for a model that cannot be cloned or said.
    """
    aside, clone = Aside(), model.clone()
    for graph in clone.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and _large(tensor):
                value.const_value = aside.placeholder(tensor)
    return Parted(ir.serde.serialize_model(clone), aside)


def roots(model: ir.Model) -> Iterator[ir.Graph | ir.Function]:
    """The model's own graph, and its functions: all other graphs are in these."""
    yield model.graph
    yield from model.functions.values()


def _index(proto: TensorProto) -> int:
    return next(int(entry.value) for entry in proto.external_data if entry.key == "offset")


def _large(tensor: ir.TensorProtocol) -> bool:
    if isinstance(tensor, ir.ExternalTensor):
        return True
    return tensor.dtype is not ir.DataType.STRING and tensor.nbytes >= SMALLEST
