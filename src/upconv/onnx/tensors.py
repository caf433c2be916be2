"""The data of a model's tensors: in memory once it is known to be there, or in a file.

Data outside the model's file must lie in the model's own folder, or below it. Where the model or
its data is a link, as in the caches of model hubs, the data may lie beside the file that the model
leads to. It stays where it is and is memory mapped where it is used; up to `SMALL` bytes are read.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx_ir as ir

from ..errors import FileError, ModelError, brief
from ..files import opened, reported
from .graphs import roots

SMALL = 1024
"""Bytes up to which outside data is read at once: ONNX's checker and inference look at values."""

_SHRUNK = 8  # a number of 8 bytes takes at least 1 in protobuf's lists


def settle(model: ir.Model, path: Path | None) -> set[Path]:
    """Put a tensor whose data is there in the place of each that a file has told; other files.

    path: the model's own file, None where data outside it cannot be found.

    Raises `ModelError` for data that is not what its tensor declares, `FileError` for a file that
    is missing or too short.
    """
    files: set[Path] = set()
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _settled(value.const_value, path, files)
    for body in roots(model):
        for node in body.all_nodes():
            for name, attribute in list(node.attributes.items()):
                if attribute.type is ir.AttributeType.TENSOR and not attribute.is_ref():
                    tensor = _settled(attribute.as_tensor(), path, files)
                    node.attributes[name] = ir.AttrTensor(name, inside(tensor))
    return files


def inside(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The tensor with its data in memory; raises `FileError` where the file is cut or gone."""
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    try:
        array = tensor.numpy()
    except (OSError, ValueError) as error:
        raise FileError(f"The tensor {brief(tensor.name)}: {error}.") from None
    return ir.Tensor(array.copy(), tensor.dtype, name=tensor.name)


def _settled(tensor: ir.TensorProtocol, path: Path | None, files: set[Path]) -> ir.TensorProtocol:
    where = f"The tensor {brief(tensor.name)}"
    try:
        if isinstance(tensor, ir.ExternalTensor):
            return _outside(tensor, path, files)
        if not isinstance(tensor, ir.serde.TensorProtoTensor) or tensor.dtype == ir.DataType.STRING:
            return tensor
        if tensor.nbytes > _SHRUNK * tensor.raw.ByteSize():
            raise ModelError(f"It declares {tensor.nbytes} bytes, and has fewer.")
        made = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
        made.doc_string = tensor.doc_string
        made.metadata_props.update(tensor.metadata_props)
        return made
    except (FileError, ModelError) as error:
        raise type(error)(f"{where}: {error}") from None
    except (ValueError, TypeError, AssertionError) as error:
        raise ModelError(f"{where} cannot be read: {brief(str(error))}.") from None


def _outside(tensor: ir.ExternalTensor, path: Path | None, files: set[Path]) -> ir.TensorProtocol:
    """The tensor with the real path of its file; none of the file is read unless it is small."""
    if path is None and tensor.base_dir:
        path = Path(tensor.base_dir, "model").absolute()
    if path is None:
        raise ModelError("Its data lies in a file; load the model by its path.")
    offset, length = tensor.offset or 0, tensor.nbytes
    if tensor.dtype == ir.DataType.STRING or min(offset, *tensor.shape.numpy(), 0) < 0:
        raise ModelError(f"It is {tensor.dtype}{tensor.shape} at byte {offset}, which cannot be.")
    if tensor.length not in (None, length):
        raise ModelError(f"It has {tensor.length} bytes; expected {length} for {tensor.shape}.")
    file = _located(path, str(tensor.location))
    with reported(str(file), "read"), opened(file) as opened_file:
        size = os.fstat(opened_file.fileno()).st_size
    if size < offset + length:
        raise FileError(f"{brief(str(file))} has {size} bytes; it ends at {offset + length}.")
    files.add(file)
    real = ir.ExternalTensor(
        file, offset, length, tensor.dtype, shape=tensor.shape, name=tensor.name,
        doc_string=tensor.doc_string, metadata_props=dict(tensor.metadata_props),
    )  # fmt: skip
    return real if length > SMALL else inside(real)


def _located(model: Path, location: str) -> Path:
    """The file at a location that the model names; `ModelError` for one outside its folder."""
    anchored = PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor
    if not location or anchored or "\0" in location:
        raise ModelError(
            f"Its data lies at {brief(location)}; expected a path from the model's own folder."
        )
    folder, beside = model.parent, Path(os.path.realpath(model)).parent
    named, real = os.path.normpath(folder / location), Path(os.path.realpath(folder / location))
    inside = real.is_relative_to(os.path.realpath(folder)) or real.parent == beside
    if not (inside and Path(named).is_relative_to(os.path.normpath(folder))):
        raise ModelError(f"Its data lies at {brief(location)}, outside the model's folder.")
    return real
