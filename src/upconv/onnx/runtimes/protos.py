"""A ModelProto walked through, and handed to a runtime: as bytes, or near 2 GiB as a file.

protobuf writes no message of 2 GiB; such a model goes, weights beside it, into a temporary folder
that its session removes. A model whose tensors still lie in files of their own is refused: where
they are looked for is not the runtime's to guess. `upconv.onnx.models` reads those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx

from ... import memory
from ...errors import FileError, ModelError, brief
from .base import one_line

MOST_BYTES = (2 << 30) - (64 << 20)
"""Of weights in a message; the rest of 2 GiB is for the graph."""

Body = Any
"""A GraphProto or a FunctionProto: both have nodes."""


def bodies(model: onnx.ModelProto) -> Iterator[Body]:
    """The graph of a model, its functions, and every graph within their nodes.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) {y = Neg(x)}'
    >>> [body.name for body in bodies(onnx.parser.parse_model(text))]
    ['g']
    """
    waiting: list[Body] = [model.graph, *model.functions]
    while waiting:  # a stack of our own: how deep a model nests is its author's to say
        body = waiting.pop()
        yield body
        for attribute in (a for node in body.node for a in node.attribute):
            waiting.extend(attribute.graphs)
            if attribute.HasField("g"):
                waiting.append(attribute.g)


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor that a model holds: initialisers, and those in attributes."""
    for body in bodies(model):
        if isinstance(body, onnx.GraphProto):
            yield from body.initializer
            for sparse in body.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for attribute in (a for node in body.node for a in node.attribute):
            yield from attribute.tensors
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("sparse_tensor"):
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)


def require_whole(model: onnx.ModelProto) -> None:
    """Raise `ModelError` if a tensor of the model lies in another file."""
    for tensor in tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ModelError(
                f"The tensor {brief(tensor.name)} lies in another file."
                " Load the model with upconv.onnx.models.load, which reads it."
            )


def weight_bytes(model: onnx.ModelProto) -> int:
    """The bytes of all tensors of a model, from above."""
    return sum(map(_bytes, tensors(model)))


def _bytes(tensor: onnx.TensorProto) -> int:
    listed = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data)
    texts = sum(map(len, tensor.string_data))
    return len(tensor.raw_data) + texts + 10 * (sum(map(len, listed)) + len(tensor.uint64_data))


@dataclass(frozen=True, slots=True)
class Handed:
    """A model as runtimes take it, and the folder it lies in if it is a path."""

    model: bytes | Path
    folder: TemporaryDirectory[str] | None = None

    def close(self) -> None:
        """Remove the folder."""
        if self.folder is not None:
            self.folder.cleanup()


def handed(model: onnx.ModelProto) -> Handed:
    """The model's bytes, or a path to it; whoever gets it closes it.

    Raises `ModelError` for tensors in other files, `MemoryLimitError`, and `FileError` if the
    temporary folder cannot take it.
    """
    require_whole(model)
    size = weight_bytes(model)
    memory.require(size, "a copy of the model for a runtime")
    return Handed(model.SerializeToString()) if size <= MOST_BYTES else _filed(model)


def _filed(model: onnx.ModelProto) -> Handed:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # saving moves the weights out of the message it is given
    folder = TemporaryDirectory(prefix="upconv-", ignore_cleanup_errors=True)
    path = Path(folder.name) / "model.onnx"
    try:
        onnx.save_model(copy, path, save_as_external_data=True, location="weights")
    except OSError as error:
        folder.cleanup()
        raise FileError(f"A copy of the model cannot be written: {one_line(error)}.") from None
    except BaseException:
        folder.cleanup()
        raise
    return Handed(path, folder)
