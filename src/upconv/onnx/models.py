"""Models: read from files nobody vouches for, and written whole or not at all.

1. `load` and `from_model` check a model before anything is built of it (`soundness`,
   `tensor_data`), sort nodes that are out of order, and give every graph the opset of its model.
   Metadata, names, doc strings, functions and information for training stay (`sealing`).
2. Data outside the model's file stays outside, and is memory mapped when it is used.
3. `save` writes one file, or two where protobuf cannot hold the model: `<name>.data` beside it has
   the large tensors. Each appears complete, the model last; no file a model came from is touched.
4. Whatever is wrong ends in `ModelError` or `FileError` that names the file and the place in it.

An `ir.Model` made here is written with `to_proto` or `save`, not with onnx-ir's own functions: what
onnx-ir cannot hold is sealed in it, and only these two put it back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeAlias

import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError
from onnx import GraphProto, ModelProto, TensorProto

from .. import memory
from ..errors import DTypeError, FileError, ModelError, brief
from ..files import opened, published, reported, require_free
from .aside import Aside, Waiting, roots, set_aside
from .bodies import bodies, sparse_tensors, tensors
from .sealing import seal, unseal
from .soundness import require_bounded, require_sound, unordered
from .tensor_data import Folder, outside, require_data

MOST_BYTES = (1 << 31) - 1
"""What protobuf can hold in one message."""

_MARGIN = 1 << 16  # for the lengths of what contains tensors
_ALIGNMENT = 4096  # of tensors in a file: memory is mapped in pages
_SOURCES = "upconv.onnx.sources"

_FOREIGN = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
"""What onnx-ir raises for a model that it cannot hold, clone or say."""

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
        return _read(_parsed(data), Aside(), Folder(whole), (whole,))


def from_model(model: Source) -> ir.Model:
    """A model of one's own: from a path as `load`, else a copy of what is given.

    model: a path, the bytes of a file, a ModelProto or an `ir.Model`; it is never changed. Data
        outside the file is found by way of a path or an `ir.Model` alone.

    Raises what `load` raises, and `DTypeError` for any other object.

    >>> text = '<ir_version: 8, opset_import: ["": 13]> g (float[2] x) => (float[2] y)'
    >>> from_model(ir.to_proto(ir.from_onnx_text(text + "{ y = Neg(x) }"))).graph[0].op_type
    'Neg'
    """
    if isinstance(model, str | os.PathLike):
        return load(model)
    with _named("The model"):
        if isinstance(model, bytes):
            return _read(_parsed(model), Aside(), None, ())
        if isinstance(model, ModelProto):
            require_bounded(model)  # protobuf's own copying would crash on what is nested too deep
            copy = ModelProto()
            copy.CopyFrom(model)
            return _read(copy, Aside(), None, ())
        if isinstance(model, ir.Model):
            parted = set_aside(model)
            unseal(parted.proto)  # what `_read` seals again
            return _read(parted.proto, parted.aside, None, _sources(model))
    raise DTypeError(
        "model", f"{brief(model)} ({type(model).__name__})", "a path, bytes, ModelProto or ir.Model"
    )


def to_proto(model: ir.Model) -> ModelProto:
    """The model as one ModelProto, with all of its data inside.

    Raises `ModelError` for a model that cannot be said, or is too large for protobuf, and
    `FileError` where outside data is gone.
    """
    with _named("The model"):
        data = sum(
            value.const_value.nbytes
            for graph in model.graphs()
            for value in graph.initializers.values()
            if value.const_value is not None and value.dtype is not ir.DataType.STRING
        )
        if data > MOST_BYTES:
            raise ModelError(f"It has {data} bytes of weights; protobuf holds {MOST_BYTES}.")
        proto = ir.serde.serialize_model(model)
        _finish(proto, Aside())
        return proto


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
        require_free(name, target, force=force, inputs=_sources(model))
        with _named(brief(name)):
            parted = set_aside(model)
            _finish(parted.proto, parted.aside)
            waiting = list(parted.aside.placeholders(parted.proto))
            outside_bytes = sum(place.tensor.nbytes for place in waiting)
            if parted.proto.ByteSize() + outside_bytes + _MARGIN <= MOST_BYTES:
                _save_whole(parted.proto, waiting, target, force)
                return (target,)
            require_free(str(beside), beside, force=force, inputs=_sources(model))
            _save_parted(parted.proto, waiting, target, beside, force)
            return target, beside


def _contents(path: Path) -> bytes:
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise FileError(f"{brief(str(path))} has {size} bytes; a model has {MOST_BYTES}.")
        memory.require(3 * size, f"the model {brief(str(path))}")  # its bytes, parsed, and read
        return file.read(MOST_BYTES)


def _parsed(data: bytes) -> ModelProto:
    try:
        return ModelProto.FromString(data)
    except DecodeError as error:
        raise ModelError(f"It is no ONNX model, or was cut short: {error}.") from None


def _read(
    proto: ModelProto, aside: Aside, folder: Folder | None, sources: tuple[Path, ...]
) -> ir.Model:
    """The model of a proto of our own, which is used up."""
    require_bounded(proto)
    require_sound(proto)
    files = _require_tensors(proto, aside, folder)
    sort = unordered(proto)
    _tell_inputs_once(proto)
    seal(proto)
    model = ir.serde.deserialize_model(proto)
    aside.restore(model)
    for body in roots(model):
        _tell_opsets(body)
        if sort:
            body.sort()
    model.graph.meta[_SOURCES] = (*sources, *files)
    return model


def _require_tensors(proto: ModelProto, aside: Aside, folder: Folder | None) -> set[Path]:
    """Check all data; what lies in files is set aside. Returns the files."""
    files = set()
    for body in bodies(proto):
        for placed in sparse_tensors(body):
            with _named(placed.place):
                require_data(placed.tensor)
        for placed in tensors(body):
            with _named(placed.place):
                if placed.tensor.data_location != TensorProto.EXTERNAL:
                    require_data(placed.tensor)
                elif not aside.holds(placed.tensor):
                    found = outside(placed.tensor, folder)
                    aside.leave_out(placed.tensor, found.tensor)
                    files.add(found.path)
    return files


def _tell_inputs_once(proto: ModelProto) -> None:
    """An input that is an output too is one value in onnx-ir: what the input declares holds."""
    for body in bodies(proto):
        if isinstance(body, GraphProto):
            inputs = {info.name: info for info in body.input}
            for info in (*body.output, *body.value_info):
                if info.name in inputs:
                    info.type.CopyFrom(inputs[info.name].type)


def _tell_opsets(body: ir.Graph | ir.Function) -> None:
    """Have graphs in a body tell the body's opsets, which onnx-ir leaves to the outermost."""
    for node in body.all_nodes():
        if node.graph is not None and not node.graph.opset_imports:
            node.graph.opset_imports.update(body.opset_imports)


def _sources(model: ir.Model) -> tuple[Path, ...]:
    found: tuple[Path, ...] = model.graph.meta.get(_SOURCES, ())
    return found


def _finish(proto: ModelProto, aside: Aside) -> None:
    """What onnx-ir leaves to be done on a proto it wrote."""
    unseal(proto)
    for body in bodies(proto):
        for placed in tensors(body):
            tensor = placed.tensor
            if tensor.data_location == TensorProto.EXTERNAL and not aside.holds(tensor):
                raise ModelError(
                    f"{placed.place}: Its data lies in a file. Pass the model through from_model."
                )
            once = {entry.key: entry.value for entry in tensor.metadata_props}
            if len(once) < len(tensor.metadata_props):  # onnx-ir 1.1 writes them twice
                del tensor.metadata_props[:]
                for key, value in once.items():
                    tensor.metadata_props.add(key=key, value=value)


def _save_whole(proto: ModelProto, waiting: list[Waiting], target: Path, force: bool) -> None:
    for place in waiting:
        place.proto.ClearField("external_data")
        place.proto.ClearField("data_location")
        place.proto.raw_data = place.tensor.tobytes()
    with published(target, force=force) as file:
        file.write(_bytes(proto))


def _save_parted(
    proto: ModelProto, waiting: list[Waiting], target: Path, beside: Path, force: bool
) -> None:
    """The large tensors into the file beside, then the rest: who finds the model finds both."""
    new, there = not beside.exists(), False
    try:
        with published(target, force=force) as file:
            with published(beside, force=force) as data:
                for place in waiting:
                    _store(place, data, beside.name)
                file.write(_bytes(proto))
            there = True
    except BaseException:
        if new and there:
            beside.unlink(missing_ok=True)
        raise


def _store(place: Waiting, data: IO[bytes], location: str) -> None:
    data.write(bytes(-data.tell() % _ALIGNMENT))
    entries = {"location": location, "offset": data.tell(), "length": place.tensor.nbytes}
    del place.proto.external_data[:]
    for key, value in entries.items():
        place.proto.external_data.add(key=key, value=str(value))
    data.write(memoryview(place.tensor.tobytes()))


def _bytes(proto: ModelProto) -> bytes:
    try:
        data: bytes = proto.SerializeToString()
    except EncodeError:
        raise ModelError(f"Without its initialisers it has more than {MOST_BYTES} bytes.") from None
    return data


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Errors from here on say where."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from None
    except FileError as error:
        raise FileError(f"{where}: {error}") from None
    except _FOREIGN as error:
        deepest: BaseException = error
        while deepest.__cause__ is not None:
            deepest = deepest.__cause__
        if isinstance(deepest, ModelError | FileError):  # ours, through onnx-ir
            raise type(deepest)(f"{where}: {deepest}") from None
        reason = brief(str(deepest) or type(deepest).__name__)
        raise ModelError(f"{where}: onnx-ir cannot hold it: {reason}.") from error
