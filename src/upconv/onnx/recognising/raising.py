"""Zeros or nearest neighbours between the inputs of a convolution: patterns 1 and 2.

    1a. ConvTranspose, depthwise, a kernel that is 1 at one tap and 0 elsewhere
    1b. Unsqueeze or Reshape, Pad, Reshape, and perhaps Slice
    1c. whatever moves elements (ScatterND, Concat, ...), where all sizes are known
    2a. Resize and Upsample, mode nearest, by whole numbers, where output o reads input o // s
    2b. whatever moves elements (Expand, Tile, ...), where all sizes are known

For 1b the sizes of x must be known, unless one axis is all there is.

What lives here: reading these. The algebra is in `upconv.compositions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ...compositions import Raised
from ...errors import UpconvError
from ...geometry import Axis
from ..passes.base import Refusal, is_op
from ..passes.windows import read_pad, read_slice
from ..sites import ANY_SIZE, Site, read
from .found import (
    Convolution,
    Kind,
    Recognised,
    convolution,
    entries,
    equal,
    fits,
    integers,
    keeps,
    sizes,
)
from .moving import moved


@dataclass(frozen=True, slots=True, eq=False)
class _Upsampling:
    kind: Kind
    nodes: tuple[ir.Node, ...]
    axes: tuple[Raised, ...]
    x: ir.Value | None = None


def raised_convolution(node: ir.Node, opset: int) -> Recognised | None:
    """The transposed convolution that a Conv and the upsampling before it are."""
    conv = convolution(node, opset)
    source = None if conv is None or node.inputs[0] is None else node.inputs[0].producer()
    if conv is None or source is None or not is_op(source, source.op_type) or not source.inputs:
        return None
    reader = _READERS.get(source.op_type)
    up = None if reader is None else reader(source, opset, conv.rank)
    up = up or _by_moving(source, opset, conv.rank)
    if up is None or len(up.axes) != conv.rank or not all(axis.whole for axis in up.axes):
        return None
    if all(axis.stride == 1 for axis in up.axes):
        return None
    try:
        axes = tuple(_composed(up, conv))
    except UpconvError:
        return None
    if not fits(axes, conv):
        return None
    weight = _weight(conv, [axis.stamp for axis in up.axes])
    x = up.nodes[0].inputs[0] if up.x is None else up.x
    return equal(up.kind, x, (*up.nodes, node), axes, conv, weight, conv.bias)


def _composed(up: _Upsampling, conv: Convolution) -> list[Axis]:
    lists = zip(up.axes, conv.kernel, conv.dilations, conv.pads, strict=True)
    return [axis.convolved(k, d, *pads) for axis, k, d, pads in lists]


def _weight(conv: Convolution, stamps: Sequence[int]) -> Array:
    """(M, C/g, *k) as (C, M/g, *k), reversed; summed over the neighbours where there are any."""
    (m, per_group), g = conv.weight.shape[:2], conv.groups
    spatial = tuple(range(2, conv.weight.ndim))
    w = np.flip(conv.weight, spatial).reshape(g, m // g, per_group, *conv.kernel)
    w = np.swapaxes(w, 1, 2).reshape(g * per_group, m // g, *conv.kernel)
    wide = w.astype(np.float64)
    for axis, (stamp, d) in enumerate(zip(stamps, conv.dilations, strict=True), 2):
        if stamp > 1:
            wide = _stamped(wide, axis, stamp, d)
    return np.ascontiguousarray(wide.astype(conv.weight.dtype))


def _stamped(w: Array, axis: int, stamp: int, dilation: int) -> Array:
    """w along one axis, its taps `dilation` apart, each `stamp` times."""
    shape = list(w.shape)
    last = dilation * (shape[axis] - 1)
    shape[axis] = last + stamp
    wide = np.zeros(shape)
    for r in range(stamp):
        place: list[Any] = [slice(None)] * w.ndim
        place[axis] = slice(r, r + last + 1, dilation)
        wide[tuple(place)] += w
    return wide


def _by_deconvolution(node: ir.Node, opset: int, rank: int) -> _Upsampling | None:
    """Case 1a."""
    site = read(node, opset)
    if not isinstance(site, Site) or site.weight.array is None or site.departures:
        return None
    w = site.array
    depthwise = w.shape[:2] == (site.groups, 1)
    if site.b is not None or site.rank != rank or not depthwise:
        return None
    taps = np.argwhere(w[0, 0] != 0)
    same = bool((w == w[:1]).all())
    if len(taps) != 1 or not same or w[(0, 0, *taps[0])] != 1:
        return None
    axes = [Raised.spread(axis, int(t)) for axis, t in zip(site.axes, taps[0], strict=True)]
    return _Upsampling(Kind.ZEROS, (node,), tuple(axes))


def _by_padding(node: ir.Node, opset: int, rank: int) -> _Upsampling | None:
    """Case 1b, from its last node back."""
    cuts: tuple[tuple[int, int], ...] = ((0, 0),) * rank
    nodes: list[ir.Node | None] = [node]
    reshape: ir.Node | None = node
    if node.op_type == "Slice":
        reshape = _producer(node, "Slice")
        nodes.insert(0, reshape)
    pad = _producer(reshape, "Reshape")
    apart = _producer(pad, "Pad")
    if (
        reshape is None
        or pad is None
        or apart is None
        or not apart.inputs
        or apart.op_type not in _APART
    ):
        return None
    shape = sizes(apart.inputs[0], rank)
    if shape is None or (None in shape[2:] and rank > 1):
        return None
    try:
        strides = _strides(apart, pad, shape, opset)
        size = [ANY_SIZE if n is None else n for n in shape[2:]]
        filled = [Raised.filled(n, s, 0, 0) for n, s in zip(size, strides, strict=True)]
        wide = [a.length if n is not None else -1 for a, n in zip(filled, shape[2:], strict=True)]
        if not _shaped(reshape, opset, (*shape[:2], *shape[2:]), (*shape[:2], *wide)):
            return None
        if node.op_type == "Slice":
            known = [None if n == -1 else n for n in wide]
            window = read_slice(node, opset, (*shape[:2], *known))
            cuts = tuple((-begin, -end) for begin, end in window[2:])
            if any(map(any, window[:2])):
                return None
    except Refusal:
        return None
    axes = [Raised.filled(n, s, *cut) for n, s, cut in zip(size, strides, cuts, strict=True)]
    whole = [one for one in (apart, pad, *nodes) if one is not None]
    return _Upsampling(Kind.ZEROS, tuple(whole), tuple(axes))


def _by_moving(node: ir.Node, opset: int, rank: int) -> _Upsampling | None:
    """Cases 1c and 2b."""
    found = moved(node.outputs[0], opset)
    if found is None or len(found.shape) != rank + 2 or found.places.ndim != rank + 2:
        return None
    numbers, places = found.numbers, found.places
    for kind, of_axis in ((Kind.ZEROS, _spread), (Kind.NEAREST, _repeated)):
        axes = tuple(of_axis(places, axis, n) for axis, n in enumerate(found.shape[2:], 2))
        if np.array_equal(_laid(numbers, axes), places):
            return _Upsampling(kind, found.nodes, axes, found.x)
    return None


def _spread(places: Array, axis: int, size: int) -> Raised:
    """An axis as it would be with zeros between: by the first two positions that hold any."""
    others = tuple(i for i in range(places.ndim) if i != axis)
    held = np.flatnonzero(places.any(axis=others))
    stride = int(held[1] - held[0]) if size > 1 and len(held) > 1 else 1
    return Raised(size, stride, int(held[0]) if len(held) else 0, places.shape[axis], 1)


def _repeated(places: Array, axis: int, size: int) -> Raised:
    """An axis as it would be by nearest neighbours."""
    return Raised.repeated(size, max(1, places.shape[axis] // size))


def _laid(numbers: Array, axes: Sequence[Raised]) -> Array:
    """The numbers where the axes put them."""
    for at, axis in enumerate(axes, 2):
        if not axis.whole:
            return numbers[:0]
        shape = list(numbers.shape)
        shape[at] = axis.length
        wide = np.zeros(shape, numbers.dtype)
        place: list[Any] = [slice(None)] * len(shape)
        for r in range(axis.stamp):
            begin = axis.place + r
            place[at] = slice(begin, begin + axis.stride * (axis.size - 1) + 1, axis.stride)
            wide[tuple(place)] = numbers
        numbers = wide
    return numbers


_APART = ("Unsqueeze", "Reshape")


def _producer(node: ir.Node | None, kind: str) -> ir.Node | None:
    """What makes the input of a node of this kind."""
    value = node.inputs[0] if node is not None and is_op(node, kind) and node.inputs else None
    return None if value is None else value.producer()


def _strides(
    apart: ir.Node, pad: ir.Node, shape: Sequence[int | None], opset: int
) -> tuple[int, ...]:
    """From what is padded: x with an axis of 1 after each of its own, zeros after that 1."""
    rank = len(shape) - 2
    ones = [3 + 2 * i for i in range(rank)]
    if apart.op_type == "Unsqueeze":
        axes = integers(apart, "axes") if opset < 13 else _second(apart, opset)
        if axes is None or sorted(int(a) % (2 * rank + 2) for a in axes) != ones:
            raise Refusal("its axes are not put after those of x")
    else:
        wide = [*shape[:2], *(n for size in shape[2:] for n in (-1 if size is None else size, 1))]
        if not _shaped(apart, opset, shape, wide):
            raise Refusal("it is reshaped to something else")
    window = read_pad(pad, opset, (None,) * (2 * rank + 2))
    if any(pair != (0, 0) for i, pair in enumerate(window) if i not in ones):
        raise Refusal("zeros are put elsewhere")
    if any(window[i][0] or window[i][1] < 0 for i in ones):
        raise Refusal("zeros are put before")
    return tuple(window[i][1] + 1 for i in ones)


def _shaped(
    node: ir.Node, opset: int, shape: Sequence[int | None], wanted: Sequence[int | None]
) -> bool:
    target = _second(node, opset)
    zero = node.attributes.get("allowzero")
    if target is None or (zero is not None and zero.value):
        return False
    return keeps(target, shape, wanted)


def _second(node: ir.Node, opset: int) -> list[Any] | None:
    """The numbers of a node's second input."""
    return entries(node.inputs[1], opset) if len(node.inputs) > 1 else None


def _by_resize(node: ir.Node, opset: int, rank: int) -> _Upsampling | None:
    """Case 2."""
    scales = _scales(node, opset, rank)
    shape = sizes(node.inputs[0], rank)
    if scales is None or shape is None or len(scales) != rank + 2 or scales[:2] != [1, 1]:
        return None
    if any(scale < 1 or not float(scale).is_integer() for scale in scales):
        return None
    strides = [int(scale) for scale in scales[2:]]
    if not _floors(node, opset, max(strides)):
        return None
    lists = zip(shape[2:], strides, strict=True)
    axes = [Raised.repeated(ANY_SIZE if n is None else n, s) for n, s in lists]
    return _Upsampling(Kind.NEAREST, (node,), tuple(axes))


def _floors(node: ir.Node, opset: int, stride: int) -> bool:
    """Whether output o is input o // s, by the attributes of a Resize or Upsample."""
    words = {name: attribute.value for name, attribute in node.attributes.items()}
    if words.get("mode", "nearest") != "nearest" or words.get("antialias", 0):
        return False
    if node.op_type == "Upsample" or opset < 11:
        return True
    where = words.get("coordinate_transformation_mode", "half_pixel")
    rounding = words.get("nearest_mode", "round_prefer_floor")
    if where in ("half_pixel", "pytorch_half_pixel"):  # o lies less than half from o // s
        return rounding in ("round_prefer_floor", "round_prefer_ceil")
    halves = stride <= 2 and rounding == "round_prefer_floor"
    return where == "asymmetric" and (rounding == "floor" or halves)


def _scales(node: ir.Node, opset: int, rank: int) -> list[float] | None:
    """One scale per axis of x, where they are constant."""
    if "axes" in node.attributes or "keep_aspect_ratio_policy" in node.attributes:
        return None
    if node.op_type == "Upsample" and opset < 9:
        attribute = node.attributes.get("scales")
        if attribute is None or attribute.type != ir.AttributeType.FLOATS:
            return None
        return list(attribute.as_floats())
    place = 1 if node.op_type == "Upsample" or opset < 11 else 2
    inputs = [*node.inputs, None, None, None, None]
    found = entries(inputs[place], opset)
    if found:
        return found
    target, shape = entries(inputs[3], opset) if place == 2 else None, sizes(inputs[0], rank)
    if not target or shape is None or len(target) != rank + 2:
        return None
    return _ratios(target, shape)


def _ratios(target: Sequence[Any], shape: Sequence[int | None]) -> list[float] | None:
    """Sizes asked for over sizes there are; batch and channels must stay."""
    if any(not n or t % n for t, n in zip(target[2:], shape[2:], strict=True)):
        return None
    if any(n is not None and t != n for t, n in zip(target[:2], shape[:2], strict=True)):
        return None
    if None in shape[:2]:
        return None
    return [1.0, 1.0, *(t / n for t, n in zip(target[2:], shape[2:], strict=True) if n)]


_READERS: dict[str, Callable[[ir.Node, int, int], _Upsampling | None]] = {
    "ConvTranspose": _by_deconvolution,
    "Reshape": _by_padding,
    "Slice": _by_padding,
    "Resize": _by_resize,
    "Upsample": _by_resize,
}
"""The operator right before a Conv -> how it is read."""
