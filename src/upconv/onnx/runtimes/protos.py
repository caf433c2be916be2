"""A ModelProto handed to a runtime: as bytes, or near 2 GiB as a file.

protobuf writes no message of 2 GiB; such a model goes, weights beside it, into a temporary folder
that its session removes. A model whose tensors still lie in files of their own is refused: where
they are looked for is not the runtime's to guess. `upconv.onnx.load` reads those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from ... import memory
from ...errors import FileError, ModelError
from ..bodies import Placed, bodies, sparse_tensors, tensors
from .base import one_line

MOST_BYTES = (2 << 30) - (64 << 20)
"""Of weights in a message; the rest of 2 GiB is for the graph."""


def all_tensors(model: onnx.ModelProto) -> Iterator[Placed]:
    """Every tensor of a model: initialisers and attributes, dense and sparse, in every graph."""
    for body in bodies(model):
        yield from tensors(body)
        yield from sparse_tensors(body)


def require_whole(model: onnx.ModelProto) -> None:
    """Raise `ModelError` if a tensor of the model lies in another file."""
    for placed in all_tensors(model):
        if placed.tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ModelError(
                f"{placed.place}: Its data lies in another file."
                " Load the model with upconv.onnx.load, which reads it."
            )


def weight_bytes(model: onnx.ModelProto) -> int:
    """The bytes of all tensors of a model, from above."""
    return sum(_bytes(placed.tensor) for placed in all_tensors(model))


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
