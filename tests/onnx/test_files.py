"""Files of models: data outside them, what is written whole or not at all, random damage."""

import os
import random
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx_ir")

import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.onnx.test_models import BIG, W, parsed, written
from tests.support import onnx_texts, repeating
from tests.support.onnx_reports import sample
from upconv.errors import DTypeError, FileError, ModelError
from upconv.onnx import models, rewrite
from upconv.onnx.constants import constant_value
from upconv.onnx.models import from_model, load, save, to_proto
from upconv.onnx.nodes import conv_transpose_nodes
from upconv.onnx.shapes import inferred


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# Outside data


def outside(
    folder: Path, entries: dict[str, str], name: str = "m.onnx", array: np.ndarray = W
) -> Path:
    """A model whose weight lies outside as `entries` say."""
    proto = parsed("{ y = Mul(x, w) }", w=array)
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return written(folder, proto, name)


def test_outside_data_is_read_where_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(bytes(64) + W.tobytes() + bytes(8))
    entries = {"location": "sub/w.bin", "offset": "64", "length": str(W.nbytes)}
    model = load(outside(tmp_path, entries))
    found = constant_value(model.graph.initializers["w"])
    assert found.array is not None
    np.testing.assert_array_equal(found.array, W)
    np.testing.assert_array_equal(numpy_helper.to_array(to_proto(model).graph.initializer[0]), W)
    copy = from_model(from_model(model))
    save(copy, tmp_path / "out.onnx")
    whole = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    np.testing.assert_array_equal(numpy_helper.to_array(whole.graph.initializer[0]), W)


def test_outside_data_of_constant_nodes_is_read(tmp_path: Path) -> None:
    proto = parsed("{ w = Constant <value = float[1] {1}> () y = Mul(x, w) }")
    tensor = proto.graph.node[0].attribute[0].t
    tensor.CopyFrom(TensorProto(dims=BIG.shape, data_type=1, data_location=TensorProto.EXTERNAL))
    tensor.external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").write_bytes(BIG.tobytes())
    after = to_proto(load(written(tmp_path, proto)))
    np.testing.assert_array_equal(numpy_helper.to_array(after.graph.node[0].attribute[0].t), BIG)


def test_links_are_followed_within_the_model_s_folder(tmp_path: Path) -> None:
    """As caches keep models: a folder of links into one of files."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    (blobs / "1").write_bytes(W.tobytes())
    outside(blobs, {"location": "w.bin"}, "0")
    (snapshot / "m.onnx").symlink_to("../blobs/0")
    (snapshot / "w.bin").symlink_to("../blobs/1")
    found = constant_value(load(snapshot / "m.onnx").graph.initializers["w"])
    assert found.array is not None
    np.testing.assert_array_equal(found.array, W)


ESCAPES = ("/etc/passwd", "../secret", "link", "linked/secret")


@pytest.mark.parametrize("location", ESCAPES)
def test_data_outside_the_folder_is_refused(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(W.tobytes())
    (folder / "link").symlink_to("../secret")
    (folder / "linked").symlink_to("..")
    with pytest.raises(ModelError, match="outside the model's folder") as caught:
        load(outside(folder, {"location": location}))
    assert "m.onnx': The tensor 'w': " in str(caught.value)


def test_data_outside_the_folder_is_refused_in_functions_too(tmp_path: Path) -> None:
    proto = onnx_texts.parsed("""<ir_version: 9, opset_import: ["": 17, "own": 1]>
        g (float[1] x, bool c) => (float[M] y) { y = own.f(x, c) }
        <domain: "own", opset_import: ["": 17]> f (x, c) => (y) { y = If (c) <
            then_branch = a () => (z) { z = Mul(x, w) }, else_branch = b () => (x) {} > }""")
    tensor = TensorProto(name="w", dims=[1], data_type=1, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../secret")
    proto.functions[0].node[0].attribute[0].g.initializer.append(tensor)
    with pytest.raises(ModelError, match="outside the model's folder"):
        load(written(tmp_path, proto))


WRONG = {
    "missing": ({"location": "none"}, FileError, "No such file"),
    "pipe": ({"location": "pipe"}, FileError, "not a regular file"),
    "short": ({"location": "w", "offset": "8"}, FileError, "has 96 bytes; the data ends at 104"),
    "length": ({"location": "w", "length": "95"}, ModelError, "has 95 bytes; expected 96 for"),
    "negative": ({"location": "w", "offset": "-8"}, ModelError, "cannot be|cannot represent"),
    "nowhere": ({}, FileError, "is a directory; expected a file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_outside_data_that_is_not_there_is_refused(case: str, tmp_path: Path) -> None:
    entries, kind, message = WRONG[case]
    (tmp_path / "w").write_bytes(W.tobytes())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(kind, match=message) as caught:
        load(outside(tmp_path, entries))
    assert str(tmp_path / "m.onnx") in str(caught.value)


def test_outside_data_cut_after_reading_is_an_error_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(BIG.tobytes())
    model = load(outside(tmp_path, {"location": "w"}, array=BIG))
    (tmp_path / "w").write_bytes(b"12")
    with pytest.raises(FileError, match=r"Cannot read '.*w': buffer is smaller"):
        to_proto(model)
    assert "'w' cannot be read" in constant_value(model.graph.initializers["w"]).reason
    with pytest.raises(FileError):
        save(model, tmp_path / "out.onnx")
    assert files(tmp_path) == {"m.onnx", "w"}


def test_outside_data_needs_a_path() -> None:
    proto = parsed("{ y = Mul(x, w) }", w=W)
    proto.graph.initializer[0].data_location = TensorProto.EXTERNAL
    with pytest.raises(ModelError, match="load the model by its path"):
        from_model(proto)


# Writing


def test_what_the_front_end_returns_is_saved_as_it_is(tmp_path: Path) -> None:
    proto = parsed("{ y = Mul(x, w) }", w=W)
    results = [proto, from_model(proto), rewrite(proto), replace(sample(), proto=proto)]
    for number, result in enumerate(results):
        (path,) = save(result, tmp_path / f"{number}.onnx")
        copy = onnx.load(path)
        assert [node.op_type for node in copy.graph.node] == ["Mul"]
        (weight,) = copy.graph.initializer
        np.testing.assert_array_equal(numpy_helper.to_array(weight), W)
    for wrong in (replace(sample(), proto=None), "m.onnx", None, [proto]):
        with pytest.raises(DTypeError, match="expected the result of `load`"):
            save(wrong, tmp_path / "wrong.onnx")
    with pytest.raises(ModelError, match="holds no graph"):
        save(ModelProto(), tmp_path / "wrong.onnx")
    assert files(tmp_path) == {f"{number}.onnx" for number in range(len(results))}


def test_nothing_is_written_over_or_left_behind(tmp_path: Path) -> None:
    source = written(tmp_path, parsed("{ y = Mul(x, w) }", w=W))
    model, before = load(source), source.read_bytes()
    for force in (False, True):
        with pytest.raises(FileError, match="is an input of this call"):
            save(model, source, force=force)
    assert source.read_bytes() == before
    (tmp_path / "there.onnx").write_bytes(b"old")
    with pytest.raises(FileError, match=r"exists. Overwrite it with force=True"):
        save(model, tmp_path / "there.onnx")
    assert (tmp_path / "there.onnx").read_bytes() == b"old"
    save(model, tmp_path / "there.onnx", force=True)
    assert load(tmp_path / "there.onnx").graph[0].op_type == "Mul"
    for name, message in {"no/m.onnx": "is not a directory", ".": "is a directory"}.items():
        with pytest.raises(FileError, match=message):
            save(model, tmp_path / name)
    assert files(tmp_path) == {"m.onnx", "there.onnx"}


def test_outside_files_of_the_model_are_inputs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "o.onnx.data").write_bytes(W.tobytes())
    model = load(outside(tmp_path, {"location": "o.onnx.data"}))
    monkeypatch.setattr(models, "INLINE_BYTES", 0)
    with pytest.raises(FileError, match="is an input of this call"):
        save(model, tmp_path / "o.onnx", force=True)
    with pytest.raises(FileError, match="is an input of this call"):
        save(from_model(model.clone()), tmp_path / "o.onnx.data", force=True)
    assert (tmp_path / "o.onnx.data").read_bytes() == W.tobytes()
    assert files(tmp_path) == {"m.onnx", "o.onnx.data"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("parted", [False, True])
def test_an_interrupted_save_leaves_nothing(
    error: BaseException, parted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = from_model(parsed("{ y = Mul(x, w) }", w=BIG))
    if parted:
        monkeypatch.setattr(models, "INLINE_BYTES", 20_000)

    def stop(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stop)
        with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else FileError):
            save(model, tmp_path / "out.onnx")
    assert files(tmp_path) == set()
    save(model, tmp_path / "out.onnx")
    assert files(tmp_path) == {"out.onnx"} | ({"out.onnx.data"} if parted else set())


def test_models_beyond_the_limit_are_saved_in_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = parsed("{ a = Max(big, twice) y = Mul(a, w) }", big=BIG, twice=BIG, w=W)
    text = helper.make_tensor("text", TensorProto.STRING, [1], [b"t" * 900])
    proto.graph.initializer.append(text)
    model = from_model(proto)
    limit = 2 * BIG.nbytes + W.nbytes
    monkeypatch.setattr(models, "INLINE_BYTES", limit)
    assert len(save(model, tmp_path / "one.onnx")) == 1
    monkeypatch.setattr(models, "INLINE_BYTES", limit - 1)
    moved, move = [], Path.replace
    monkeypatch.setattr(Path, "replace", lambda *a: moved.append(a[1].name) or move(*a))
    paths = save(model, tmp_path / "two.onnx")
    assert moved == ["two.onnx.data", "two.onnx"]
    assert paths == (tmp_path / "two.onnx", tmp_path / "two.onnx.data")
    assert paths[0].stat().st_size < 5000
    monkeypatch.undo()
    for found in (onnx.load(paths[0]), to_proto(load(paths[0]))):
        for ours, theirs in zip(proto.graph.initializer, found.graph.initializer, strict=True):
            assert ours.name == theirs.name
            np.testing.assert_array_equal(
                numpy_helper.to_array(ours), numpy_helper.to_array(theirs)
            )
    onnx.checker.check_model(paths[0])


def test_data_stays_on_disk_until_it_is_used(tmp_path: Path) -> None:
    """A weight of 3 GiB, of a sparse file: read, copied and looked into within 200 MiB."""
    with (tmp_path / "w").open("wb") as file:
        file.truncate(3 << 30)
    proto = parsed("{ y = Mul(x, w) }", w=W)
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.dims[:] = [3, 1 << 28]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w")
    path, before = written(tmp_path, proto), peak()
    found = constant_value(from_model(load(path)).graph.initializers["w"])
    assert found.array is not None
    assert found.array.shape == (3, 1 << 28)
    assert found.array[2, -1] == 0
    assert peak() - before < 200 << 20
    with pytest.raises(ModelError, match="3221225472 bytes of weights; protobuf holds"):
        to_proto(load(path))
    assert peak() - before < 200 << 20


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


CUT = """g (float[1, 2, 5] x, bool c) => (float[1, 2, M] y, float[A, B] z)
    <int64[1] s = {1}, int64[1] e = {-1}, int64[1] a = {2}, int64[2] r = {2, -1}> {
    n = ReduceL2<axes = [1, 2], keepdims = 1>(v) w = Div(v, n)
    t = ConvTranspose<strides = [2], pads = [1, 1]>(x, w) d = Slice(t, s, e, a)
    y = If (c) <then_branch = t () => (float[1, 2, P] u) { u = Relu(d) },
                else_branch = e () => (float[1, 2, Q] u) { u = ConvTranspose(d, w) }>
    z = Reshape(d, r) }"""


WHOLE = [
    onnx_texts.three().SerializeToString(),
    onnx_texts.parsed(CUT, v=onnx_texts.normal(1, 2, 2, 4)).SerializeToString(),
]


def damaged_bytes(data: bytes, chance: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at, length = chance.randrange(len(found)), chance.choice((1, 1, 2, 8))
        kind = chance.randrange(4)
        if kind == 0:
            found[at : at + length] = chance.randbytes(length)
        elif kind == 1:
            del found[at : at + length]
        elif kind == 2:
            found[at:at] = chance.randbytes(length)
        elif chance.random() < 0.2:
            del found[at:]
    return bytes(found) or b"\0"


def messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if hasattr(value, "append") or hasattr(value, "add") else [value]:
                yield from messages(inner)


SIZES = (-1, 0, 1, 2, -5, 7, 1 << 31, (1 << 62) + 1, -(1 << 63))


def damaged_parts(data: bytes, chance: random.Random) -> bytes:
    """The model with some fields of its messages changed, exchanged, doubled or cleared."""
    proto = ModelProto.FromString(data)
    for _ in range(chance.randint(1, 3)):
        field, message, value = None, proto, None
        while field is None:
            message = chance.choice(list(messages(proto)))
            field, value = chance.choice(message.ListFields() or [(None, None)])
        many = hasattr(value, "append") or hasattr(value, "add")
        if many and field.message_type is not None and chance.random() < 0.7:
            kind = chance.randrange(3)
            if kind == 0:
                value.add().CopyFrom(chance.choice(list(value)))
            elif kind == 1:
                del value[chance.randrange(len(value))]
            else:
                value.sort(key=lambda _: chance.random())
        elif many and field.message_type is None and isinstance(value[0], int | float):
            value[chance.randrange(len(value))] = chance.choice(SIZES[:6])
        elif isinstance(value, int) and not isinstance(value, bool):
            try:
                setattr(message, field.name, chance.choice(SIZES))
            except ValueError:  # an enumeration, or an integer of 32 bits
                message.ClearField(field.name)
        elif isinstance(value, str):
            setattr(
                message, field.name, chance.choice(("", "x", "w", "y", "If", "\x1b[31m", value * 2))
            )
        else:
            message.ClearField(field.name)
    return proto.SerializeToString()


def outlived(folder: Path, seed: int) -> bool:
    """Whether one damaged model is read; whatever is said of the others is ours."""
    chance = random.Random(seed)
    damage = chance.choice((damaged_bytes, damaged_parts))
    source, target = folder / "in.onnx", folder / "out.onnx"
    source.write_bytes(damage(chance.choice(WHOLE), chance))
    try:
        model = load(source)
        inferred(model)
        conv_transpose_nodes(model)
        save(model, target)
        said = ""
    except (ModelError, FileError) as error:
        said = str(error)
    assert "\n" not in said, seed
    assert {path.name for path in folder.iterdir()} == {"in.onnx"} | (
        set() if said else {"out.onnx"}
    ), seed
    if not said:
        load(target)
        target.unlink()
    return not said


@pytest.mark.filterwarnings("ignore:The model's training information:UserWarning")
@pytest.mark.parametrize(
    "count", [100, pytest.param(4000, marks=pytest.mark.long)], ids=["some", "all"]
)
def test_damaged_models_are_read_or_refused(count: int, tmp_path: Path) -> None:
    read = sum(outlived(tmp_path, seed) for seed in repeating.seeds(count))
    assert count / 20 < read < count * 0.9 or repeating.single()
