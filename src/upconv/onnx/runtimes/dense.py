"""A model without sparse tensors, for the evaluator, which cannot read them.

Sparse initialisers and the sparse values of Constants are written out; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import onnx
from onnx import numpy_helper

from ... import memory
from ...errors import EngineRefusal
from ..bodies import Body, bodies
from ..tensors import dense_array
from .protos import MOST_BYTES, weight_bytes

_SPARSE = "sparse_value"


def dense(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model itself where nothing in it is sparse, else a copy.

    Raises `EngineRefusal` for what is too large written out, `MemoryLimitError`.
    """
    size = sum(_nbytes(sparse) for body in bodies(model) for sparse in _sparse(body))
    if not size:
        return model
    if size > MOST_BYTES:
        raise EngineRefusal(
            f"Its sparse tensors take {size} bytes written out, of {MOST_BYTES} at most."
        )
    memory.require(2 * (size + weight_bytes(model)), "the model with its sparse tensors dense")
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for body in bodies(copy):
        if isinstance(body, onnx.GraphProto):
            body.initializer.extend(map(_written_out, body.sparse_initializer))
            body.ClearField("sparse_initializer")
        for attribute in _attributes(body):
            tensor = _written_out(attribute.sparse_tensor)
            attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
    return copy


def _sparse(body: Body) -> Iterator[onnx.SparseTensorProto]:
    if isinstance(body, onnx.GraphProto):
        yield from body.sparse_initializer
    yield from (attribute.sparse_tensor for attribute in _attributes(body))


def _attributes(body: Body) -> Iterator[onnx.AttributeProto]:
    for node in body.node:
        if node.op_type == "Constant":
            yield from (one for one in node.attribute if one.name == _SPARSE)


def _nbytes(sparse: onnx.SparseTensorProto) -> int:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(sparse.values.data_type)
    return max(int(prod(sparse.dims) * dtype.itemsize), 1)


def _written_out(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    values, at = map(numpy_helper.to_array, (sparse.values, sparse.indices))
    array = dense_array(values, at, sparse.dims)
    return numpy_helper.from_array(array, sparse.values.name)
