"""Models that would end the process in ONNX Runtime, whose shape inference is a copy of ONNX's.

A Slice of a negative size is what ends it (`inference`). ONNX Runtime's copy is an older one, which
lets Tile repeat a negative number of times and integers overflow: both are looked for by hand. What
it computes in advance and then infers from again is not followed here.

What lives here: the refusal, in words. What never does: running anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from onnx import ModelProto

from ..errors import brief
from .bodies import Body, bodies, called
from .inference import cleaned, impossible, sliced
from .known import skeleton

_MOST = 1 << 31
_LONGEST = 128  # such vectors have an entry or two per axis
_WINDOWS = frozenset(
    ("dilations", "kernel_shape", "output_padding", "output_shape", "pads", "strides")
)


def fatal(model: ModelProto) -> str | None:
    """In a sentence, why a model would end the process, None where nothing tells that it would."""
    if not sliced(model):
        return None
    by_hand = next((words for body in bodies(model) for words in _seen(body)), None)
    if by_hand is not None:
        return by_hand
    try:
        light = skeleton(model, {})
        light.graph.value_info.extend(model.graph.value_info)  # which it takes for true
        return impossible(light)
    except (RuntimeError, ValueError):
        return None  # ONNX Runtime will say what is wrong


def harmless(model: ModelProto) -> ModelProto:
    """The model, or a copy without the negative sizes that it declares for "any"."""
    return cleaned(model) if sliced(model) else model


def _seen(body: Body) -> Iterator[str]:
    least = dict(_least(body))
    for node in body.node:
        for attribute in node.attribute:
            if attribute.name in _WINDOWS and any(abs(n) >= _MOST for n in attribute.ints):
                entry = max(attribute.ints, key=abs)
                yield f"{called(node)}: Its {attribute.name} has the entry {brief(entry)}."
        for name in node.input[1:2]:
            low, far = least.get(name, (0, 0))
            if node.op_type == "Tile" and low < 0:
                yield f"{called(node)}: It repeats {brief(low)} times."
            if node.op_type in ("Pad", "Tile") and far >= _MOST:
                yield f"{called(node)}: Its second input has an entry of {brief(far)}."


def _least(body: Body) -> Iterator[tuple[str, tuple[int, int]]]:
    """Constant vectors of integers: the least entry, and the greatest in magnitude."""
    if isinstance(body, onnx.GraphProto):
        for tensor in body.initializer:
            yield tensor.name, _extent(_entries(tensor))
    for node in body.node:
        if node.op_type == "Constant":
            found = [n for one in node.attribute for n in (*one.ints, *_entries(one.t))]
            yield from ((name, _extent(found)) for name in node.output)


def _extent(entries: Sequence[int]) -> tuple[int, int]:
    return (min(entries), max(map(abs, entries))) if entries else (0, 0)


def _entries(tensor: onnx.TensorProto) -> list[int]:
    if tensor.data_type != onnx.TensorProto.INT64 or len(tensor.dims) != 1:
        return []
    if not 0 <= tensor.dims[0] <= _LONGEST:
        return []
    try:
        return [int(n) for n in onnx.numpy_helper.to_array(tensor)]
    except (ValueError, TypeError, OSError):
        return []
