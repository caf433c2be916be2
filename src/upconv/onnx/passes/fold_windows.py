"""Fold Pad and Slice around a ConvTranspose into its crops.

A Pad of zeros or a Slice with step 1 adds (a, b) positions to the ends of an axis; negative numbers
remove positions. If the node has crops (p, q) and stride s, new crops replace the neighbour:

    before it    crops (p - s*a, q - s*b)   if the removed positions of x reach no output.      (1)
    after it     crops (p - a, q - b)       if no product reaches the added positions, and the
                                            bias is 0.                                          (2)

In (1) each zero added to x shifts the result by s. Removed positions of x still contribute to the
folded node's result: folding is exact if k <= s, or if the output is cropped far enough. In (2) a
Pad's zeros are at positions of the longer result that hold only the bias. Several neighbours in a
row are folded together. Elementwise nodes between them that map 0 to 0 (QuantizeLinear and
DequantizeLinear with one scale, Cast) stay.

ONNX must be able to express the new crops: no begin below 0, no end of -s or less, and an output
that is not empty. If a Slice leaves nothing of a dynamic axis at run time, the runtime refuses the
rewritten model instead of returning an empty output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ...errors import UpconvError
from ...geometry import Axis
from ...subpixel import behind, cropped
from ..building import Builder, Crops
from ..graphs import follower, is_op
from ..nodes import ConvTransposeNode, known_sizes
from .base import Refusal, Rewriting
from .legalise import attributes
from .quantised import again, bias, constant, is_transparent

_FAR = (1 << 31) - 1  # exporters write this for the end of an axis of any size


@dataclass(frozen=True, slots=True)
class _Folded:
    """The folded node, which reads x and replaces y.

    inner, outer: the nodes that stay between x and the folded node, and between it and y. dead: the
    nodes after it that are removed.
    """

    axes: tuple[Axis, ...]
    x: ir.Value
    y: ir.Value
    inner: tuple[ir.Node, ...] = ()
    outer: tuple[ir.Node, ...] = ()
    dead: tuple[ir.Node, ...] = ()


def fold_window(conv: ConvTransposeNode, kind: str) -> Rewriting:
    """Fold the neighbours of one kind, "Pad" or "Slice", into the node's pads."""
    fold = _Folded(conv.axes, conv.x, conv.y)
    reasons: list[str] = []
    for side in (_before, _after):
        try:
            while True:
                fold = side(conv, fold, kind)
        except UpconvError as refusal:
            reasons.append(str(refusal))
    if fold.x is conv.x and fold.y is conv.y:
        none = f"no {kind} is directly before it, or after it as its only reader"
        raise Refusal("; ".join(dict.fromkeys(filter(None, reasons))) or none)

    def write(builder: Builder) -> None:
        x = again(builder, fold.x, fold.inner)
        y = builder.deconv([x, conv.w, conv.b], attributes(fold.axes, conv.groups))
        builder.replace(fold.y, again(builder, y, fold.outer), [*fold.dead, conv.node])

    return write


def _before(conv: ConvTransposeNode, fold: _Folded, kind: str) -> _Folded:
    node, inner = fold.x.producer(), fold.inner
    while is_transparent(node) and node.inputs[0] is not None:
        inner, node = (node, *inner), node.inputs[0].producer()
    if not is_op(node, kind) or node.inputs[0] is None:
        raise Refusal("")
    _require_floats(kind, inner[:1], "DequantizeLinear")
    window = _window(node, known_sizes(node.inputs[0]) or (None,) * (conv.rank + 2))
    axes = []
    for axis, (begin, end) in zip(fold.axes, window, strict=True):
        earlier = behind(axis, begin, end)
        if earlier is None:
            raise Refusal(f"positions that the {kind} before it removes reach the output")
        axes.append(earlier)
    attributes(axes, conv.groups)
    return replace(fold, axes=tuple(axes), x=node.inputs[0], inner=inner)


def _after(conv: ConvTransposeNode, fold: _Folded, kind: str) -> _Folded:
    between: tuple[ir.Node, ...] = ()
    node = follower(fold.y)
    while is_transparent(node):
        between, node = (*between, node), follower(node.outputs[0])
    y = between[-1].outputs[0] if between else fold.y
    if not is_op(node, kind) or node.inputs[0] is not y or len(node.outputs) != 1:
        raise Refusal("")
    _require_floats(kind, between[-1:], "QuantizeLinear")
    known = zip(fold.axes, conv.sizes, strict=True)
    sizes = [None, None, *(None if size is None else axis.out for axis, size in known)]
    pairs = zip(fold.axes, _window(node, sizes), strict=True)
    axes = tuple(_grown(conv, axis, window, kind) for axis, window in pairs)
    attributes(axes, conv.groups)
    outer = (*fold.outer, *between)
    dead = (node, *reversed(between), *fold.dead)
    return replace(fold, axes=axes, y=node.outputs[0], outer=outer, dead=dead)


def _require_floats(kind: str, adjacent: Sequence[ir.Node], border: str) -> None:
    """Refuse a Pad of quantized integers, among which 0 need not mean zero."""
    if kind == "Pad" and any(is_op(node, border) for node in adjacent):
        raise Refusal("the Pad adds integers to quantized ones")


def _grown(conv: ConvTransposeNode, axis: Axis, window: tuple[int, int], kind: str) -> Axis:
    begin, end = (max(entry, 0) for entry in window)
    axis = cropped(axis, -window[0], -window[1])
    if axis.reads(0, begin) or axis.reads(axis.out - end, axis.out):
        raise Refusal(f"the {kind} after it puts zeros where the longer result has values")
    b = bias(conv) if begin or end else None
    if b is not None and b.array.any():
        raise Refusal(f"the {kind} after it puts zeros where its bias would be")
    return axis


def _window(node: ir.Node, sizes: Sequence[int | None]) -> Crops:
    """Return (a, b) per spatial axis; sizes: of all axes of the node's input."""
    kind, rank = node.op_type, len(sizes)
    if kind == "Pad":
        mode = node.attributes.get("mode")
        if mode is not None and (mode.is_ref() or mode.value != "constant"):
            raise Refusal("the Pad repeats or mirrors values; only zeros can be folded")
        value = node.inputs[2] if len(node.inputs) > 2 else None
        if value is not None and constant(value, "the value of the Pad").any():
            raise Refusal("the Pad adds a value other than 0")
        pads = _integers(node, 1) or []
        begins, ends, steps = pads[: len(pads) // 2], pads[len(pads) // 2 :], None
    else:
        begins, ends, steps = (_integers(node, i) or [] for i in (1, 2, 4))
    if any(step != 1 for step in steps or ()):
        raise Refusal("the Slice has steps other than 1")
    stated = _integers(node, 3)
    axes = list(range(len(begins))) if stated is None else [axis % rank for axis in stated]
    if len(set(axes)) != len(axes) or not len(axes) == len(begins) == len(ends) <= rank:
        raise Refusal(f"the {kind} names an axis twice, or has unequal counts of axes and ends")
    pairs = dict(zip(axes, zip(begins, ends, strict=True), strict=True))
    if kind == "Slice":
        pairs = {axis: _cut(*pair, sizes[axis]) for axis, pair in pairs.items()}
    if any(any(pairs.get(axis, ())) for axis in (0, 1)):
        raise Refusal(f"the {kind} changes batch or channels")
    return tuple(pairs.get(axis, (0, 0)) for axis in range(2, rank))


def _cut(start: int, end: int, size: int | None) -> tuple[int, int]:
    length = _FAR if size is None else size
    first, last, _ = slice(start, end).indices(length)
    if size is None and (start < 0 or 0 <= end < length):
        raise Refusal("the Slice counts from the other end of a dynamic axis")
    if last <= first and length:
        raise Refusal("the Slice leaves nothing")
    return -first, last - length


def _integers(node: ir.Node, index: int) -> list[int] | None:
    """Return the value of a constant input; None if it is absent."""
    value = node.inputs[index] if len(node.inputs) > index else None
    if value is None:
        return None
    array = constant(value, "an input of its neighbour")
    if array.dtype.kind != "i":
        raise Refusal(f"input {index} of its neighbour does not hold integers")
    return list(array.reshape(-1).tolist())
