"""What is recognised, and the ordinary convolution in it as it is read from a node.

What lives here: `Recognised`, and `Convolution`, which both patterns have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

import onnx_ir as ir

from ...arrays import Array
from ...dialects import Layer, to_onnx
from ...dialects.onnx import Rule
from ...errors import UpconvError
from ...geometry import Axis
from ..constants import constant_value
from ..passes.base import is_op

MOST_BYTES = 1 << 28
"""Weights beyond are not looked at."""

_WIDE = 8  # bytes of a float64, in which weights are summed


class Kind(Enum):
    """What was found; see the package's table."""

    ZEROS = "zeros between inputs, then a convolution"
    NEAREST = "nearest neighbours, then a convolution"
    SHUFFLE = "a convolution, then depth to space"


@dataclass(frozen=True, slots=True, eq=False)
class Recognised:
    """One transposed convolution, y = conv_transpose(x, weight) + bias, made by `nodes`.

    `x` and `y` are names of values, `nodes` names of nodes (or of their outputs), first to last.
    `attributes` are those of the ConvTranspose, `weight` (C, M/group, *k) and `bias` (M,), None for
    none, its parameters. `saved` is how many multiplications the nodes do for one that it does.
    """

    kind: Kind
    nodes: tuple[str, ...]
    x: str
    y: str
    attributes: dict[str, Any]
    weight: Array
    bias: Array | None
    saved: float

    def __str__(self) -> str:
        a = self.attributes
        extra = f", output padding {a['output_padding']}" if any(a["output_padding"]) else ""
        groups = f", group {a['group']}" if a["group"] > 1 else ""
        return (
            f"{self.nodes[0]}..{self.nodes[-1]} is a ConvTranspose with weight {self.weight.shape},"
            f" strides {a['strides']}, pads {a['pads']}{extra}{groups},"
            f" {self.saved:.2g} times cheaper"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """A Conv of stride 1 with a constant weight (M, C/g, *k) and bias; `pads` per axis."""

    node: ir.Node
    weight: Array
    bias: Array | None
    groups: int
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]

    @property
    def kernel(self) -> tuple[int, ...]:
        """Taps per axis."""
        return tuple(map(int, self.weight.shape[2:]))

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return self.weight.ndim - 2


def convolution(node: ir.Node | None, opset: int) -> Convolution | None:
    """The convolution that a node is, if it is one of stride 1 that can be read."""
    if node is None or not is_op(node, "Conv") or len(node.inputs) < 2:
        return None
    w = constant_value(node.inputs[1], opset=opset, most_bytes=MOST_BYTES).array
    if w is None or w.ndim < 3 or not w.size or w.nbytes > MOST_BYTES or w.dtype.kind not in "fV":
        return None
    b = node.inputs[2] if len(node.inputs) > 2 else None
    bias = None if b is None else constant_value(b, opset=opset).array
    rank, words = w.ndim - 2, _words(node)
    if words is None or (b is not None and (bias is None or bias.shape != w.shape[:1])):
        return None
    dilations, pads = words.get("dilations", (1,) * rank), words.get("pads", (0,) * 2 * rank)
    group = words.get("group", 1)
    if len(dilations) != rank or len(pads) != 2 * rank or group < 1 or w.shape[0] % group:
        return None
    if any(s != 1 for s in words.get("strides", ())) or min(pads) < 0 or min(dilations) < 1:
        return None
    pairs = tuple(zip(pads[:rank], pads[rank:], strict=True))
    return Convolution(node, w, bias, group, tuple(dilations), pairs)


def _words(node: ir.Node) -> dict[str, Any] | None:
    """The attributes of a Conv; None if they are not its own, or leave the padding to sizes."""
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    words = {name: attribute.value for name, attribute in node.attributes.items()}
    mode = words.get("auto_pad", "NOTSET")
    if mode not in ("NOTSET", "VALID") or (mode == "VALID" and any(words.get("pads", ()))):
        return None
    lists = ("dilations", "pads", "strides")
    if any(name in words and integers(node, name) is None for name in lists):
        return None
    return words if isinstance(words.get("group", 1), int) else None


def equal(
    kind: Kind,
    x: ir.Value | None,
    nodes: Sequence[ir.Node],
    axes: Sequence[Axis],
    conv: Convolution,
    weight: Array,
    bias: Array | None,
) -> Recognised | None:
    """What nodes equal, if ONNX can say it."""
    try:
        attributes = to_onnx(Layer(tuple(axes), conv.groups), rule=Rule.ONNXRUNTIME.value)
    except UpconvError:
        return None
    done = prod(axis.stride * k for axis, k in zip(axes, conv.kernel, strict=True))
    names = tuple(node.name or str(node.outputs[0].name) for node in nodes)
    return Recognised(
        kind,
        names,
        str(None if x is None else x.name),
        str(nodes[-1].outputs[0].name),
        attributes,
        weight,
        bias,
        done / prod(axis.kernel for axis in axes),
    )


def sizes(value: ir.Value | None, rank: int) -> tuple[int | None, ...] | None:
    """A value's shape, None where open; None if it is not of this many spatial axes."""
    if value is None or value.shape is None:
        return (None,) * (rank + 2)
    if len(value.shape) != rank + 2:
        return None
    return tuple(size if isinstance(size, int) else None for size in value.shape)


def entries(value: ir.Value | None, opset: int) -> list[Any] | None:
    """The numbers of a small constant."""
    array = None if value is None else constant_value(value, opset=opset, most_bytes=1 << 20).array
    if array is None or array.dtype.kind not in "iuf":
        return None
    return list(array.reshape(-1).tolist())


def integers(node: ir.Node, name: str) -> list[int] | None:
    """A list of integers among a node's attributes."""
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.INTS:
        return None
    return list(attribute.as_ints())


def fits(axes: Sequence[Axis], conv: Convolution) -> bool:
    """Whether the equal weight is of a size to look at."""
    channels = conv.weight.shape[0] * conv.weight.shape[1]
    return bool(channels * prod(axis.kernel for axis in axes) * _WIDE <= MOST_BYTES)


def keeps(target: Sequence[Any], shape: Sequence[int | None], wanted: Sequence[int | None]) -> bool:
    """Whether a Reshape's target means `wanted`, None being "as before" for batch and channels.

    shape: of what is reshaped, whose first axes a 0 copies. One -1 may stand for anything, as all
    else is as wanted.
    """
    if len(target) != len(wanted) or list(target).count(-1) > 1:
        return False
    for i, (entry, want) in enumerate(zip(target, wanted, strict=True)):
        copied = shape[i] if entry == 0 and i < len(shape) else entry
        same_place = entry == 0 and i == 0 and want is None
        if entry != -1 and not same_place and (want is None or copied != want):
            return False
    return True
