"""Models read and written: an `ir.Model` from the file to the file.

1. `load` and `from_model` check a model before anything is made of it (`checker`), sort
   nodes that are out of order, and fold constants (`constants`).
2. Data outside the model's file must lie in the model's own folder, or below it. Where the model or
   its data is a link, as in the caches of model hubs, the data may lie beside the file that the
   model leads to. It stays where it is and is memory mapped where it is used; up to `SMALL` bytes
   are read.
3. `save` writes one file, or two where protobuf cannot hold the model: `<name>.data` beside it has
   the large tensors. Each appears complete, the model last; no file a model came from is touched.
4. Whatever is wrong ends in `ModelError` or `FileError` that names the file and the place in it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto

from .. import memory
from ..errors import DTypeError, FileError, ModelError, UpconvError, brief
from ..files import opened, published, reported, require_free
from .checker import require_sound
from .constants import fold
from .graphs import DEFAULT_DOMAINS, named, roots
from .names import one_line

MOST_BYTES = (1 << 31) - 1
"""What protobuf can hold in one message."""

INLINE_BYTES = MOST_BYTES - (64 << 20)
"""Up to so many bytes of weights, a model is saved as one file; the rest is for the graph."""

SMALL = 1024
"""Bytes up to which outside data is read at once: ONNX's checker and inference look at values."""

_SHRUNK = 8  # a number of 8 bytes takes at least 1 in protobuf's lists
_SOURCES = "upconv.onnx.sources"

Source: TypeAlias = ModelProto | ir.Model | bytes | str | os.PathLike[str]


def load(path: str | os.PathLike[str]) -> ir.Model:
    """The model in a file of ONNX's binary form.

    Raises `FileError` for what cannot be read or is no regular file, and `ModelError` for what is
    no model, is damaged, or says what ONNX does not allow.

    >>> load("/nowhere/model.onnx")
    Traceback (most recent call last):
    upconv.errors.FileError: Cannot read '/nowhere/model.onnx': No such file or directory.
    """
    name = os.fspath(path)
    with reported(name, "read"):
        whole = Path(name).absolute()
        data = _contents(whole)
    with _named(brief(name)):
        return _read(data, whole)


def from_model(model: Source) -> ir.Model:
    """A model of one's own: from a path as `load`, else a copy of what is given.

    model: a path, the bytes of a file, a ModelProto or an `ir.Model`; it is never changed. Data
        outside the file is found by way of a path or an `ir.Model` alone. An `ir.Model` that comes
        from here is not checked again.

    Raises what `load` raises, and `DTypeError` for any other object.

    >>> text = '<ir_version: 8, opset_import: ["": 13]> g (float[2] x) => (float[2] y)'
    >>> from_model(ir.to_proto(ir.from_onnx_text(text + "{ y = Neg(x) }"))).graph[0].op_type
    'Neg'
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
    """The files that a model was read from: its own first, then those with data outside it."""
    found: tuple[Path, ...] = model.graph.meta.get(_SOURCES, ())
    return found


def files(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The files that the model at `path` is read from; the one file for what is no model.

    Raises `FileError` for what cannot be read.
    """
    try:
        return sources(load(path))
    except ModelError:
        return (Path(path).absolute(),)


def to_proto(model: ir.Model) -> ModelProto:
    """The model as one ModelProto, with all of its data inside.

    Raises `ModelError` for a model that cannot be said, or is too large for protobuf, and
    `FileError` where outside data is gone.
    """
    with _named("The model"):
        data = sum(tensor.nbytes for _, tensor in _weights(model))
        if data > MOST_BYTES:
            raise ModelError(f"It has {data} bytes of weights; protobuf holds {MOST_BYTES}.")
        return _inside(model)


def save(model: ir.Model, path: str | os.PathLike[str], *, force: bool = False) -> tuple[Path, ...]:
    """Write a model, whole or not at all; the files written, the model's first.

    path: links are followed. What exists is overwritten with `force` alone, and files that the
        model was read from never.

    Raises `FileError` for a place that cannot be written, `ModelError` for a model that cannot be.
    """
    name = os.fspath(path)
    with reported(name):
        target = Path(name).resolve()
        beside = target.with_name(target.name + ".data")
        parted = sum(tensor.nbytes for _, tensor in _weights(model)) > INLINE_BYTES
        require_free(name, target, force=force, inputs=sources(model))
        if parted:
            require_free(str(beside), beside, force=force, inputs=sources(model))
    with _named(brief(name)):
        if parted:
            with reported(name):
                _save_parted(model, target, beside, force)
            return target, beside
        data = _bytes(_inside(model))
        with reported(name), published(target, force=force) as file:
            file.write(data)
        return (target,)


def _inside(model: ir.Model) -> ModelProto:
    """The model's proto with all data inside."""
    copy = model.clone()
    for value, tensor in _weights(copy):
        value.const_value = _in_memory(tensor)
    return ir.to_proto(copy)


def _save_parted(model: ir.Model, target: Path, beside: Path, force: bool) -> None:
    """The large tensors into the file beside, then the rest: who finds the model finds both."""
    new, copy = not beside.exists(), model.clone()
    held = [value for graph in copy.graphs() for value in graph.initializers.values()]
    texts = {v: v.const_value for v in held if v.dtype == ir.DataType.STRING}
    for value in texts:
        value.const_value = None  # onnx-ir would put text outside too, where ONNX has none
    try:
        with published(target, force=force) as file:
            unload = ir.external_data.unload_from_model
            unload(copy, target.parent, beside.name, size_threshold_bytes=SMALL)
            for value, text in texts.items():
                value.const_value = text
            file.write(_bytes(ir.to_proto(copy)))
    except BaseException:
        if new:
            beside.unlink(missing_ok=True)
        raise


@contextmanager
def stored(model: ir.Model) -> Iterator[bytes | str]:
    """A model as runtimes take it: its bytes, or the path of a file while the block lasts."""
    if sum(tensor.nbytes for _, tensor in _weights(model)) <= INLINE_BYTES:
        yield to_proto(model).SerializeToString()
        return
    with TemporaryDirectory(prefix="upconv-", ignore_cleanup_errors=True) as folder:
        yield str(save(model, Path(folder, "model.onnx"))[0])


def _weights(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """The initialisers that are no text, and their data."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype != ir.DataType.STRING:
                yield value, value.const_value


def _contents(path: Path) -> bytes:
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise FileError(f"{brief(str(path))} has {size} bytes; a model has {MOST_BYTES}.")
        memory.require(3 * size, f"the model {brief(str(path))}")  # its bytes, parsed, and read
        return file.read(MOST_BYTES)


def _read(data: bytes, path: Path | None) -> ir.Model:
    try:
        proto = ModelProto.FromString(data)
    except DecodeError as error:
        raise ModelError(f"It is no ONNX model, or was cut short: {error}.") from None
    if not proto.HasField("graph"):
        raise ModelError("It holds no graph: it is empty, or no ONNX model.")
    if proto.training_info:
        warnings.warn("The model's information for training is dropped.", stacklevel=4)
    if proto.graph.sparse_initializer:
        raise ModelError("It has sparse initialisers, which are not read; write them out as dense.")
    for owner in (proto, *proto.functions):
        versions = {o.version for o in owner.opset_import if o.domain in DEFAULT_DOMAINS}
        if len(versions) > 1:
            raise ModelError("It imports two opsets of ONNX's own domain.")
        for entry in owner.opset_import:
            entry.domain = "" if entry.domain in DEFAULT_DOMAINS else entry.domain
    model = ir.from_proto(proto)
    if len(model.graph.initializers) < len(proto.graph.initializer):
        raise ModelError("Two initialisers have one name, or one has none.")
    return _checked(model, path)


def _checked(model: ir.Model, path: Path | None) -> ir.Model:
    files = _settle(model, path)
    require_sound(model)
    fold(model)
    model.graph.meta[_SOURCES] = (*([path] if path else []), *sorted(files))
    return model


def _bytes(proto: ModelProto) -> bytes:
    try:
        data: bytes = proto.SerializeToString()
    except EncodeError:
        raise ModelError(f"It has more than {MOST_BYTES} bytes, or is nested too deep.") from None
    return data


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Errors from here on say where."""
    try:
        yield
    except (ModelError, FileError) as error:
        raise type(error)(f"{where}: {error}") from None
    except UpconvError:
        raise
    except Exception as error:  # onnx-ir raises of all kinds for what it cannot hold
        deepest: BaseException = error
        while deepest.__cause__ is not None:
            deepest = deepest.__cause__
        raise ModelError(f"{where}: onnx-ir cannot hold it: {one_line(deepest)}.") from error


def _settle(model: ir.Model, path: Path | None) -> set[Path]:
    """Put a tensor whose data is there in the place of each that a file has told; other files.

    path: the model's own file, None where data outside it cannot be found.
    """
    files: set[Path] = set()
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                with _named(f"The tensor {brief(value.name)}"):
                    value.const_value = _settled(value.const_value, path, files)
    for body in roots(model):
        for node in body.all_nodes():
            for name, attribute in list(node.attributes.items()):
                if attribute.type is ir.AttributeType.TENSOR and not attribute.is_ref():
                    with _named(f"The tensor {name} of {brief(named(node))}"):
                        tensor = _in_memory(_settled(attribute.as_tensor(), path, files))
                        node.attributes[name] = ir.AttrTensor(name, tensor)
    return files


def _settled(tensor: ir.TensorProtocol, path: Path | None, files: set[Path]) -> ir.TensorProtocol:
    if isinstance(tensor, ir.ExternalTensor):
        return _outside(tensor, path, files)
    if not isinstance(tensor, ir.serde.TensorProtoTensor) or tensor.dtype == ir.DataType.STRING:
        return tensor
    if tensor.nbytes > _SHRUNK * tensor.raw.ByteSize():
        raise ModelError(f"It declares {tensor.nbytes} bytes, and has fewer.")
    return ir.Tensor(tensor.numpy(), tensor.dtype, **_labels(tensor))


def _labels(tensor: Any) -> dict[str, Any]:
    props = dict(tensor.metadata_props)
    return {"name": tensor.name, "doc_string": tensor.doc_string, "metadata_props": props}


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The tensor with its data in memory; raises `FileError` where the file is cut or gone."""
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    try:
        array = tensor.numpy()
    except (OSError, ValueError) as error:
        raise FileError(f"The tensor {brief(tensor.name)}: {error}.") from None
    return ir.Tensor(array.copy(), tensor.dtype, **_labels(tensor))


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
    how = {"shape": tensor.shape, **_labels(tensor)}
    real = ir.ExternalTensor(file, offset, length, tensor.dtype, **how)
    return real if length > SMALL else _in_memory(real)


def _located(model: Path, location: str) -> Path:
    """The file at a location that the model names; `ModelError` for one outside its folder."""
    if not location or PureWindowsPath(location).anchor or "\0" in location:
        words = "expected a path from the model's own folder"
        raise ModelError(f"Its data lies at {brief(location)}; {words}.")
    folder, beside = model.parent, Path(os.path.realpath(model)).parent
    named, real = os.path.normpath(folder / location), Path(os.path.realpath(folder / location))
    inside = real.is_relative_to(os.path.realpath(folder)) or real.parent == beside
    if not (inside and Path(named).is_relative_to(os.path.normpath(folder))):
        raise ModelError(f"Its data lies at {brief(location)}, outside the model's folder.")
    return real
