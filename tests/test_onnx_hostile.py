"""Models damaged at random: an error of the library or an answer, and no half of a file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx_ir")

from onnx import ModelProto

from onnx_texts import normal, parsed, three
from upconv.errors import FileError, ModelError
from upconv.onnx.models import load, save
from upconv.onnx.nodes import conv_transpose_nodes
from upconv.onnx.shapes import inferred

CUT = """g (float[1, 2, 5] x, bool c) => (float[1, 2, M] y, float[A, B] z)
    <int64[1] s = {1}, int64[1] e = {-1}, int64[1] a = {2}, int64[2] r = {2, -1}> {
    n = ReduceL2<axes = [1, 2], keepdims = 1>(v) w = Div(v, n)
    t = ConvTranspose<strides = [2], pads = [1, 1]>(x, w) d = Slice(t, s, e, a)
    y = If (c) <then_branch = t () => (float[1, 2, P] u) { u = Relu(d) },
                else_branch = e () => (float[1, 2, Q] u) { u = ConvTranspose(d, w) }>
    z = Reshape(d, r) }"""


def seeds() -> list[bytes]:
    return [
        three().SerializeToString(),
        parsed(CUT, v=normal(1, 2, 2, 4)).SerializeToString(),
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
    source.write_bytes(damage(chance.choice(seeds()), chance))
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


@pytest.mark.filterwarnings("ignore:The model's information for training:UserWarning")
@pytest.mark.parametrize(
    "count", [100, pytest.param(4000, marks=pytest.mark.long)], ids=["some", "all"]
)
def test_damaged_models_are_read_or_refused(count: int, tmp_path: Path) -> None:
    read = sum(outlived(tmp_path, seed) for seed in range(count))
    assert count / 20 < read < count * 0.9
