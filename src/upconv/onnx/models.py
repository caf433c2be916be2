"""Read models into `ir.Model`, and write them.

1. `load` and `from_model` check a model before it is used (`checker`), sort nodes that are out of
   order, and fold constants (`constants`).
2. Data outside the model's file must be in the model's folder or below. If the model or its data is
   a link, as in the caches of model hubs, the data may also be next to the file to which the
   model's link points. Initializers above `SMALL` bytes stay in their file, which is memory-mapped.
3. `save` writes one file, or two if protobuf cannot hold the model: `<name>.data` next to it has
   the large tensors. Files appear when complete, the model last. Sources are never overwritten.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto

from .. import memory
from ..argument_checks import boolean
from ..errors import DTypeError, FileError, ModelError, UpconvError, brief
from ..files import opened, path_text, published, reported, require_free
from ..terminal import one_line
from .checker import require_sound
from .constants import fold
from .graphs import DEFAULT_DOMAINS, graphs, named, roots

MAX_BYTES = (1 << 31) - 1  # of one protobuf message
INLINE_BYTES = MAX_BYTES - (64 << 20)
"""Maximum bytes of weights in one file; the rest of the message is for the graph."""

SMALL = 1024  # bytes: the checker and shape inference may read the values of such tensors
_MAX_COMPRESSION = 8  # a number of 8 bytes takes at least 1 in protobuf's lists
_SOURCES = "upconv.onnx.sources"

Source: TypeAlias = ModelProto | ir.Model | bytes | str | os.PathLike[str]


def load(path: str | os.PathLike[str]) -> ir.Model:
    """Load a model from a file in ONNX's binary format.

    Raises `FileError` for a path that cannot be read or is not a regular file, and `ModelError` for
    a file that is not a model, is damaged, or breaks ONNX's rules.

    >>> load("/nowhere/model.onnx")
    Traceback (most recent call last):
    upconv.errors.FileError: Cannot read '/nowhere/model.onnx': No such file or directory.
    """
    name = path_text("path", path)
    with reported(name, "read"):
        full = Path(name).absolute()
        with opened(full) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                raise FileError(f"{brief(str(full))} has {size} bytes; the limit is {MAX_BYTES}.")
            memory.require(3 * size, f"the model {brief(str(full))}")  # bytes, message, model
            data = file.read(MAX_BYTES)
    with _named(brief(name)):
        return _read(data, full)


def from_model(model: Source) -> ir.Model:
    """Read or copy a model; a model that this module has checked is not checked again.

    Data outside the file is found only for a path or an `ir.Model`. Raises what `load` raises,
    and `DTypeError` for objects that are not models.
    """
    if isinstance(model, str | os.PathLike):
        return load(model)
    with _named("The model"):
        if isinstance(model, bytes):
            return _read(model, None)
        if isinstance(model, ModelProto):
            return _read(_bytes(model), None)
        if isinstance(model, ir.Model):
            copy = model.clone()
            return copy if _SOURCES in copy.graph.meta else _checked(copy, None)
    raise DTypeError(
        "model", f"{brief(model)} ({type(model).__name__})", "a path, bytes, ModelProto or ir.Model"
    )


def sources(model: ir.Model) -> tuple[Path, ...]:
    """Return the files from which a model was read: its own first, then its external data."""
    return tuple(model.graph.meta.get(_SOURCES, ()))


def files(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the files of the model at `path`; only `path` if it is not a model."""
    try:
        return sources(load(path))
    except ModelError:
        return (Path(path).absolute(),)


def to_proto(model: ir.Model) -> ModelProto:
    """Return the model as one ModelProto that contains all of its data.

    Raises `ModelError` for a model that protobuf cannot hold, and `FileError` if external data is
    missing.
    """
    with _named("The model"):
        return _inside(model)


def save(model: Any, path: str | os.PathLike[str], *, force: bool = False) -> tuple[Path, ...]:
    """Write a complete model or nothing; return the written files, the model's first.

    model: the result of `load`, `optimize` or `rewrite`, a ModelProto, or an `ir.Model`.
    path: links are followed. Only `force` overwrites an existing file. Files from which the model
        was read are never overwritten.

    Raises `FileError` for a path and `ModelError` for a model that cannot be written, and
    `DTypeError` for objects that are not models.

    >>> save("model.onnx", "copy.onnx")
    Traceback (most recent call last):
    upconv.errors.DTypeError: model is 'model.onnx' (str); expected the result of `load`, ...
    """
    name, model, force = path_text("path", path), _unwrapped(model), boolean("force", force)
    with _named(brief(name)):
        with reported(name):
            target = Path(name).resolve()
            data_file = target.with_name(target.name + ".data")
            targets = (target, data_file) if nbytes(model) > INLINE_BYTES else (target,)
            for written in targets:
                require_free(str(written), written, force=force, inputs=sources(model))
        if len(targets) == 1:
            data = _bytes(_inside(model))
            with reported(name), published(target, force=force) as file:
                file.write(data)
            return targets
        with reported(name), TemporaryDirectory(prefix=".upconv-", dir=target.parent) as folder:
            staged = Path(folder, target.name)
            ir.save(model, staged, "protobuf", data_file.name, size_threshold_bytes=SMALL)
            staged.with_name(data_file.name).replace(data_file)
            staged.replace(target)  # last, so that whoever reads the model finds both files
        return targets


def _unwrapped(model: Any) -> ir.Model:
    """Return the model itself, or the one in a result of `rewrite` or `optimize`."""
    for inner in (model, getattr(model, "model", None), getattr(model, "proto", None)):
        if isinstance(inner, ir.Model):
            return inner
        if isinstance(inner, ModelProto):
            return from_model(inner)
    expected = "the result of `load`, `optimize` or `rewrite`, a ModelProto or an ir.Model"
    raise DTypeError("model", f"{brief(model)} ({type(model).__name__})", expected)


def _inside(model: ir.Model) -> ModelProto:
    if (size := nbytes(model)) > MAX_BYTES:
        raise ModelError(f"It has {size} bytes of weights; protobuf holds {MAX_BYTES}.")
    copy = model.clone()
    for graph in graphs(copy):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _in_memory(value.const_value)
    return ir.to_proto(copy)


@contextmanager
def stored(model: ir.Model) -> Iterator[bytes | str]:
    """Yield a model in a form that runtimes accept: its bytes, or the path of a temporary file."""
    if nbytes(model) <= INLINE_BYTES:
        yield to_proto(model).SerializeToString()
        return
    with TemporaryDirectory(prefix="upconv-", ignore_cleanup_errors=True) as folder:
        yield str(save(model, Path(folder, "model.onnx"))[0])


def digest(model: ir.Model) -> str:
    """Return the SHA-256 of a model's contents, wherever its weights are stored."""
    total, copy = hashlib.sha256(), model.clone()
    for graph in copy.graphs():
        for name, value in graph.initializers.items():
            tensor = value.const_value
            if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes <= SMALL:
                continue
            with reported(str(getattr(tensor, "path", name)), "read"):
                total.update(f"{name} {tensor.dtype} {tensor.shape}".encode() + tensor.tobytes())
            value.const_value = ir.tensor(np.zeros(0, np.uint8), name=name)
    total.update(ir.to_proto(copy).SerializeToString())
    return total.hexdigest()


def nbytes(model: ir.Model) -> int:
    """Return the size of a model's weights in bytes."""
    held = [v.const_value for graph in graphs(model) for v in graph.initializers.values()]
    return sum(t.nbytes for t in held if t is not None and t.dtype != ir.DataType.STRING)


def _read(data: bytes, path: Path | None) -> ir.Model:
    try:
        proto = ModelProto.FromString(data)
    except DecodeError as error:
        raise ModelError(f"It is not an ONNX model, or was cut short: {error}.") from None
    if not proto.HasField("graph"):
        raise ModelError("It holds no graph: it is empty, or not an ONNX model.")
    if proto.training_info:
        warnings.warn("The model's training information is dropped.", stacklevel=4)
    if proto.graph.sparse_initializer:
        raise ModelError("It has sparse initializers, which are not supported; make them dense.")
    for owner in (proto, *proto.functions):
        versions = {o.version for o in owner.opset_import if o.domain in DEFAULT_DOMAINS}
        if len(versions) > 1:
            raise ModelError("It imports two opsets of ONNX's own domain.")
        for entry in owner.opset_import:
            entry.domain = "" if entry.domain in DEFAULT_DOMAINS else entry.domain
    model = ir.from_proto(proto)
    if len(model.graph.initializers) < len(proto.graph.initializer):
        raise ModelError("Two initializers have the same name, or one has none.")
    return _checked(model, path)


def _checked(model: ir.Model, path: Path | None) -> ir.Model:
    files: set[Path] = set()
    for graph in graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                with _named(f"The tensor {brief(value.name)}"):
                    value.const_value = _checked_tensor(value.const_value, path, files)
    for body in roots(model):
        for node in body.all_nodes():
            for name, attribute in list(node.attributes.items()):
                if attribute.type is ir.AttributeType.TENSOR and not attribute.is_ref():
                    with _named(f"The tensor {name} of {brief(named(node))}"):
                        tensor = _checked_tensor(attribute.as_tensor(), path, files, MAX_BYTES)
                        node.attributes[name] = ir.AttrTensor(name, tensor)
    require_sound(model)
    fold(model)
    model.graph.meta[_SOURCES] = (*([path] if path else []), *sorted(files))
    return model


def _bytes(proto: ModelProto) -> bytes:
    try:
        data: bytes = proto.SerializeToString()
    except EncodeError:
        raise ModelError(f"It has more than {MAX_BYTES} bytes, or is nested too deeply.") from None
    return data


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Prefix the errors of a block with `where`."""
    try:
        yield
    except (ModelError, FileError) as error:
        raise type(error)(f"{where}: {error}") from None
    except UpconvError:
        raise
    except Exception as error:  # onnx-ir may raise any error for a model that it cannot represent
        deepest: BaseException = error
        while deepest.__cause__ is not None:
            deepest = deepest.__cause__
        if isinstance(deepest, MemoryError):
            raise memory.refused(where, deepest) from None
        raise ModelError(f"{where}: onnx-ir cannot represent it: {one_line(deepest)}.") from error


def _checked_tensor(
    tensor: ir.TensorProtocol, path: Path | None, files: set[Path], limit: int = SMALL
) -> ir.TensorProtocol:
    """Check that a tensor has the declared data; read external data of up to `limit` bytes."""
    if isinstance(tensor, ir.ExternalTensor):
        tensor = _outside(tensor, path, files)
        return tensor if tensor.nbytes > limit else _in_memory(tensor)
    if not isinstance(tensor, ir.serde.TensorProtoTensor) or tensor.dtype == ir.DataType.STRING:
        return tensor
    if tensor.nbytes > _MAX_COMPRESSION * tensor.raw.ByteSize():
        raise ModelError(f"It declares {tensor.nbytes} bytes, but has fewer.")
    return ir.Tensor(tensor.numpy(), tensor.dtype, **_labels(tensor))  # not the caller's own tensor


def _labels(tensor: Any) -> dict[str, Any]:
    props = dict(tensor.metadata_props)
    return {"name": tensor.name, "doc_string": tensor.doc_string, "metadata_props": props}


def _in_memory(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    with reported(str(tensor.path), "read"):
        return ir.external_data.convert_tensors_from_external([tensor])[0]


def _outside(tensor: ir.ExternalTensor, path: Path | None, files: set[Path]) -> ir.ExternalTensor:
    """Return the tensor with its file's real path, without reading the data."""
    if path is None and tensor.base_dir:
        path = Path(tensor.base_dir, "model").absolute()
    if path is None:
        raise ModelError("Its data is in another file; load the model by its path.")
    offset, length = tensor.offset or 0, tensor.nbytes
    if tensor.dtype == ir.DataType.STRING or min(offset, *tensor.shape.numpy(), 0) < 0:
        raise ModelError(f"It is {tensor.dtype}{tensor.shape} at byte {offset}, which is invalid.")
    if tensor.length not in (None, length):
        raise ModelError(f"It has {tensor.length} bytes; expected {length} for {tensor.shape}.")
    location = str(tensor.location)
    file = Path(path.parent, location).resolve()
    homes = path.parent.resolve(), path.resolve().parent
    if not any(map(file.is_relative_to, homes)):
        raise ModelError(f"Its data is at {brief(location)}, outside the model's folder.")
    with reported(str(file), "read"), opened(file) as opened_file:
        size = os.fstat(opened_file.fileno()).st_size
    if size < offset + length:
        raise FileError(f"{brief(str(file))} has {size} bytes; the data ends at {offset + length}.")
    files.add(file)
    fields = {"shape": tensor.shape, **_labels(tensor)}
    return ir.ExternalTensor(file, offset, length, tensor.dtype, **fields)
