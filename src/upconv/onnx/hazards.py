"""Models that would end the process in ONNX Runtime, whose shape inference is a copy of ONNX's.

A Slice of a negative size is what ends it (`inference`). ONNX Runtime's copy is an older one, which
lets Tile repeat a negative number of times and integers overflow: both are looked for by hand. What
it computes in advance and then infers from again is not followed here.

What lives here: the refusal, in words. What never does: running anything.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import ModelProto

from ..errors import brief
from .bodies import Body, bodies, called
from .inference import cleaned, impossible, sliced
from .known import skeleton

_MOST = 1 << 31
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
    negative = set(_negative(body))
    for node in body.node:
        for attribute in node.attribute:
            if attribute.name in _WINDOWS and any(abs(n) >= _MOST for n in attribute.ints):
                entry = max(attribute.ints, key=abs)
                yield f"{called(node)}: Its {attribute.name} has the entry {brief(entry)}."
        if node.op_type == "Tile" and negative.intersection(node.input[1:2]):
            yield f"{called(node)}: It repeats a negative number of times."


def _negative(body: Body) -> Iterator[str]:
    """Constant vectors of integers with a negative entry."""
    if isinstance(body, onnx.GraphProto):
        for tensor in body.initializer:
            if _has_negative(tensor):
                yield tensor.name
    for node in body.node:
        if node.op_type == "Constant" and any(map(_negative_attribute, node.attribute)):
            yield from node.output


def _negative_attribute(attribute: onnx.AttributeProto) -> bool:
    return any(n < 0 for n in attribute.ints) or _has_negative(attribute.t)


def _has_negative(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type != onnx.TensorProto.INT64 or len(tensor.dims) != 1:
        return False
    try:
        return bool((np.asarray(onnx.numpy_helper.to_array(tensor)) < 0).any())
    except (ValueError, TypeError, OSError):
        return False
