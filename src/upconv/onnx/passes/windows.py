"""Pad and Slice around a ConvTranspose, as changes of its crops.

Along an axis a Pad of zeros or a Slice of step 1 puts (a, b) positions on the ends; negative ones
are taken off. With crops (p, q) and stride s the node alone computes the same as the two:

    before it    crops (p - s*a, q - s*b)   where what is taken off x reaches no output         (1)
    after it     crops (p - a, q - b)       where what is put on is reached by no product, and
                                            there is no bias but 0                              (2)

In (1) zeros put on x shift the result by s each, and what x loses at its ends would still have met
the kernel: exact if k is no longer than the stride, or if the output is cropped so far. In (2) a
Pad's zeros stand where the longer result holds 0 and the bias.

ONNX then must be able to say the crops: none below 0 at a begin, none of -s or less at an end, and
an output that is not empty. What a model leaves open in sizes stays open; where a Slice counts from
an end that is not known, nothing is folded.

What lives here: that, for the passes fold_pad and fold_slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ...compositions import behind, cropped
from ...dialects import Layer, to_onnx
from ...dialects.onnx import Rule
from ...errors import UpconvError
from ...geometry import Axis
from ..building import Builder
from ..constants import constant_value
from ..nodes import ConvTransposeNode
from .base import Refusal, follower, is_op

Sizes = Sequence[int | None]
"""Of all axes of the value that a neighbour reads, None where open."""

Window = tuple[tuple[int, int], ...]
"""Per axis, batch and channels included, positions put on (begin, end), or taken off."""

Reader = Callable[[ir.Node, int, Sizes], Window]
"""What a neighbour does, by its opset; raises `Refusal`."""

_FAR = (1 << 31) - 1
"""An end from here on means the end of the axis, whatever its size: what exporters write."""


@dataclass(frozen=True, slots=True)
class Folded:
    """The one node: its axes, what it reads, whose place it takes, and the nodes it replaces."""

    axes: tuple[Axis, ...]
    x: ir.Value
    y: ir.Value
    dead: tuple[ir.Node, ...]


def folded(site: ConvTransposeNode, kind: str, reader: Reader) -> Folded:
    """The node with all neighbours of a kind in it that can be; `Refusal` if there are none."""
    fold = Folded(site.axes, site.x, site.y, (site.node,))
    reasons: list[str] = []
    for side in (_before, _after):
        try:
            while True:
                fold = side(site, fold, kind, reader)
        except Refusal as refusal:
            reasons.append(str(refusal))
    if fold.x is site.x and fold.y is site.y:
        raise Refusal("; ".join(dict.fromkeys(filter(None, reasons))) or _none(kind))
    return fold


def write(site: ConvTransposeNode, builder: Builder, fold: Folded) -> None:
    """Put the one node in the place of all."""
    y = builder.deconv(fold.x, site.w, site.b, _attributes(site, fold.axes))
    builder.replace(fold.y, y, fold.dead)


def _none(kind: str) -> str:
    return f"no {kind} stands right before it, or after it as its only reader"


def _before(site: ConvTransposeNode, fold: Folded, kind: str, reader: Reader) -> Folded:
    node = fold.x.producer()
    if node is None or not is_op(node, kind):
        raise Refusal("")
    source = node.inputs[0] if node.inputs else None
    if source is None:
        raise Refusal(f"the {kind} before it reads nothing")
    window = reader(node, site.opset, _shape(source, site.rank))
    axes = []
    for axis, (begin, end) in zip(fold.axes, _spatial(window, kind), strict=True):
        earlier = _behind(axis, begin, end)
        if earlier is None:
            raise Refusal(f"what the {kind} before it takes off reaches the output")
        axes.append(earlier)
    _attributes(site, axes)
    return replace(fold, axes=tuple(axes), x=source)


def _behind(axis: Axis, begin: int, end: int) -> Axis | None:
    try:
        return behind(axis, begin, end)
    except UpconvError as error:  # a Pad of more than there is
        raise Refusal(str(error)) from None


def _after(site: ConvTransposeNode, fold: Folded, kind: str, reader: Reader) -> Folded:
    node = follower(fold.y)
    if node is None or not is_op(node, kind) or node.inputs[0] is not fold.y:
        raise Refusal("")
    if len(node.outputs) != 1:
        raise Refusal(f"the {kind} after it has {len(node.outputs)} outputs")
    known = zip(fold.axes, site.sizes, strict=True)
    sizes = [None, None, *(None if size is None else axis.out for axis, size in known)]
    window = _spatial(reader(node, site.opset, sizes), kind)
    axes = [_grown(axis, pair, site, kind) for axis, pair in zip(fold.axes, window, strict=True)]
    _attributes(site, axes)
    return replace(fold, axes=tuple(axes), y=node.outputs[0], dead=(node, *fold.dead))


def _grown(axis: Axis, pair: tuple[int, int], site: ConvTransposeNode, kind: str) -> Axis:
    begin, end = (max(entry, 0) for entry in pair)
    try:
        axis = cropped(axis, -pair[0], -pair[1])
    except UpconvError as error:
        raise Refusal(str(error)) from None
    if axis.reads(0, begin) or axis.reads(axis.out - end, axis.out):
        raise Refusal(f"the {kind} after it puts zeros where the longer result has values")
    if (begin or end) and not _unbiased(site):
        raise Refusal(f"the {kind} after it puts zeros where its bias would stand")
    return axis


def _unbiased(site: ConvTransposeNode) -> bool:
    return site.bias is None or (site.bias.array is not None and not site.bias.array.any())


def _attributes(site: ConvTransposeNode, axes: Sequence[Axis]) -> dict[str, object]:
    try:
        return to_onnx(Layer(tuple(axes), site.groups), rule=Rule.ONNXRUNTIME.value)
    except UpconvError as error:
        raise Refusal(str(error)) from None


def _spatial(window: Window, kind: str) -> Window:
    if any(map(any, window[:2])):
        raise Refusal(f"the {kind} changes batch or channels")
    return window[2:]


def _shape(value: ir.Value, rank: int) -> Sizes:
    shape = [None] * (rank + 2) if value.shape is None else list(value.shape)
    if len(shape) != rank + 2:
        raise Refusal(f"its neighbour reads a value of {len(shape)} axes")
    return [size if isinstance(size, int) else None for size in shape]


def read_pad(node: ir.Node, opset: int, sizes: Sizes) -> Window:
    """What a Pad of zeros puts on, in any of its forms since opset 2."""
    mode = node.attributes.get("mode")
    if mode is not None and (mode.is_ref() or mode.value != "constant"):
        raise Refusal("the Pad repeats or mirrors values; only zeros can be folded")
    pads = _numbers(node, opset, "pads", 1, since=11)
    if pads is None:
        raise Refusal("the Pad has no pads")
    if any(float(entry) for entry in _value(node, opset)):
        raise Refusal("the Pad puts another value than 0")
    axes = _axes(_numbers(node, opset, "axes", 3, since=18), len(pads) // 2, len(sizes))
    if len(pads) != 2 * len(axes):
        raise Refusal(f"the Pad has {len(pads)} pads for {len(axes)} axes")
    return _window(len(sizes), axes, pads[: len(axes)], pads[len(axes) :])


def read_slice(node: ir.Node, opset: int, sizes: Sizes) -> Window:
    """What a Slice of step 1 takes off, in any of its forms."""
    starts = _numbers(node, opset, "starts", 1, since=10)
    ends = _numbers(node, opset, "ends", 2, since=10)
    if starts is None or ends is None or len(starts) != len(ends):
        raise Refusal("the Slice has no matching starts and ends")
    axes = _axes(_numbers(node, opset, "axes", 3, since=10), len(starts), len(sizes))
    steps = _numbers(node, opset, "steps", 4, since=10) if opset >= 10 else None
    if len(axes) != len(starts) or any(step != 1 for step in steps or ()):
        raise Refusal("the Slice has steps other than 1")
    ranges = zip(starts, ends, axes, strict=True)
    cuts = [_cut(start, end, sizes[axis]) for start, end, axis in ranges]
    return _window(len(sizes), axes, [-begin for begin, _ in cuts], [-end for _, end in cuts])


def _cut(start: int, end: int, size: int | None) -> tuple[int, int]:
    """Positions off the begin and the end."""
    if size is not None:
        if size < 0:
            raise Refusal("the Slice reads what is declared with a negative size")
        first, last, _ = slice(start, end).indices(size)
        if last <= first:
            raise Refusal("the Slice leaves nothing")
        return first, len(range(last, size))
    if start < 0 or 0 <= end < _FAR:
        raise Refusal("the Slice counts from the other end of an axis whose size is open")
    return start, 0 if end >= _FAR else -end


def _window(rank: int, axes: Sequence[int], begins: Sequence[int], ends: Sequence[int]) -> Window:
    pairs = dict(zip(axes, zip(begins, ends, strict=True), strict=True))
    return tuple(pairs.get(axis, (0, 0)) for axis in range(rank))


def _axes(stated: Sequence[int] | None, count: int, rank: int) -> list[int]:
    axes = [axis % rank for axis in (range(count) if stated is None else stated)]
    if len(set(axes)) != len(axes) or any(not -rank <= axis < rank for axis in stated or ()):
        raise Refusal("its neighbour names an axis twice, or one there is not")
    return axes


def _value(node: ir.Node, opset: int) -> Iterator[float]:
    """What a Pad puts, if it says so."""
    if opset < 11:
        attribute = node.attributes.get("value")
        if attribute is not None and attribute.type != ir.AttributeType.FLOAT:
            raise Refusal("the value of the Pad is no number")
        values: Sequence[float] = [] if attribute is None else [attribute.as_float()]
    else:
        values = _input(node, opset, 2) or []
    return iter(values)


def _numbers(node: ir.Node, opset: int, name: str, index: int, *, since: int) -> list[int] | None:
    """A list of integers, an attribute before opset `since` and an input from it on."""
    if opset >= since:
        entries = _input(node, opset, index)
        if entries is not None and not all(isinstance(entry, int) for entry in entries):
            raise Refusal(f"its neighbour's {name} are no integers")
        return None if entries is None else [int(entry) for entry in entries]
    attribute = node.attributes.get(name)
    if attribute is not None and (attribute.is_ref() or attribute.type != ir.AttributeType.INTS):
        raise Refusal(f"its neighbour's {name} are no integers known here")
    return None if attribute is None else list(attribute.as_ints())


def _input(node: ir.Node, opset: int, index: int) -> list[float] | None:
    value = node.inputs[index] if len(node.inputs) > index else None
    if value is None:
        return None
    constant = constant_value(value)
    if constant.array is None:
        raise Refusal(f"what its neighbour does is computed: {constant.reason}")
    if constant.array.dtype.kind not in "iufV":  # V: bfloat16
        raise Refusal("what its neighbour does is told in no numbers")
    return list(constant.array.reshape(-1).tolist())
