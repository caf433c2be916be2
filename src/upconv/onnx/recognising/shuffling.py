"""A convolution whose channels are laid side by side: pattern 3.

    3a. DepthToSpace, by channel (CRD) or, without groups, by phase (DCR)
    3b. Reshape, Transpose, Reshape, the same two ways; the sizes must be known, or one axis alone

Taps that are 0 in every channel at the ends of the equal kernel are left out: they are what
rewriting a kernel that its stride does not divide leaves behind.

What lives here: reading these. The algebra is in `upconv.compositions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ...compositions import shuffled, without_taps
from ...errors import UpconvError
from ...geometry import Axis
from ..passes.base import is_op
from ..sites import ANY_SIZE
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


@dataclass(frozen=True, slots=True, eq=False)
class _Shuffle:
    """Nodes that lay channels side by side, in the order (r, c) if `by_phase`, else (c, r)."""

    nodes: tuple[ir.Node, ...]
    strides: tuple[int, ...]
    by_phase: bool


def shuffled_convolution(node: ir.Node, opset: int) -> Recognised | None:
    """The transposed convolution that a Conv and the shuffle after it are."""
    if is_op(node, "DepthToSpace"):
        shuffle = _depth_to_space(node)
    elif is_op(node, "Reshape"):
        shuffle = _transposed(node, opset)
    else:
        return None
    first = None if shuffle is None else _first(shuffle.nodes[0])
    conv = convolution(None if first is None else first.producer(), opset)
    if shuffle is None or conv is None or conv.rank != len(shuffle.strides):
        return None
    return _equal(conv, shuffle)


def _equal(conv: Convolution, shuffle: _Shuffle) -> Recognised | None:
    phases, outputs = prod(shuffle.strides), conv.weight.shape[0]
    if phases == 1 or outputs % (phases * conv.groups) or (shuffle.by_phase and conv.groups > 1):
        return None
    bias = None if conv.bias is None else _by_channel(conv.bias, phases, shuffle.by_phase)
    if bias is not None and (bias != bias[:, :1]).any():
        return None
    shape = sizes(conv.node.inputs[0], conv.rank)
    if shape is None:
        return None
    try:
        axes = _axes(conv, shuffle.strides, shape[2:])
        if not fits(axes, conv):
            return None
        weight = _weight(conv, shuffle, axes)
        kept = [_taps(weight, axis) for axis in range(2, weight.ndim)]
        axes = [without_taps(axis, taps) for axis, taps in zip(axes, kept, strict=True)]
    except UpconvError:
        return None
    weight = np.ascontiguousarray(weight[(slice(None), slice(None), *map(_slice, kept))])
    nodes = (conv.node, *shuffle.nodes)
    first = None if bias is None else bias[:, 0]
    return equal(Kind.SHUFFLE, conv.node.inputs[0], nodes, axes, conv, weight, first)


def _axes(conv: Convolution, strides: Sequence[int], shape: Sequence[int | None]) -> list[Axis]:
    lists = zip(shape, strides, conv.kernel, conv.dilations, conv.pads, strict=True)
    return [shuffled(ANY_SIZE if n is None else n, s, k, d, *pads) for n, s, k, d, pads in lists]


def _by_channel(v: Array, phases: int, by_phase: bool) -> Array:
    """(channels * phases, ...) as (channels, phases, ...)."""
    if by_phase:
        return np.swapaxes(v.reshape(phases, -1, *v.shape[1:]), 0, 1)
    return v.reshape(-1, phases, *v.shape[1:])


def _weight(conv: Convolution, shuffle: _Shuffle, axes: Sequence[Axis]) -> Array:
    """(C, M/g, *k), each phase's taps, reversed, s*d apart."""
    g, strides = conv.groups, shuffle.strides
    v = _by_channel(conv.weight, prod(strides), shuffle.by_phase)
    m, per_group = v.shape[0] // g, v.shape[2]
    v = np.flip(v, tuple(range(3, v.ndim))).reshape(g, m, *v.shape[1:])
    v = np.moveaxis(v, 3, 1)  # g, C/g, M/g, phases, *K
    v = v.reshape(g * per_group, m, *v.shape[3:])
    w = np.zeros((g * per_group, m, *(axis.kernel for axis in axes)), v.dtype)
    for i, phase in enumerate(product(*map(range, strides))):
        lists = zip(phase, strides, conv.dilations, strict=True)
        every = tuple(slice(r, None, s * d) for r, s, d in lists)
        w[(slice(None), slice(None), *every)] = v[:, :, i]
    return w


def _taps(w: Array, axis: int) -> range:
    """From the first to the last tap along an axis that is not 0 everywhere."""
    others = tuple(i for i in range(w.ndim) if i != axis)
    used = np.flatnonzero((w != 0).any(axis=others))
    return range(int(used[0]), int(used[-1]) + 1) if used.size else range(w.shape[axis])


def _slice(taps: range) -> slice:
    return slice(taps.start, taps.stop)


def _depth_to_space(node: ir.Node) -> _Shuffle | None:
    """Case 3a."""
    words = {name: attribute.value for name, attribute in node.attributes.items()}
    block = words.get("blocksize")
    if not isinstance(block, int) or block < 1:
        return None
    return _Shuffle((node,), (block, block), words.get("mode", "DCR") == "DCR")


def _transposed(last: ir.Node, opset: int) -> _Shuffle | None:
    """Case 3b, from its last node back."""
    turn = _before(last, "Transpose")
    first = _before(turn, "Reshape")
    source = None if first is None else _first(first)
    conv = convolution(None if source is None else source.producer(), opset)
    if turn is None or first is None or conv is None:
        return None
    rank, perm = conv.rank, integers(turn, "perm")
    ways = {False: _perm(rank, 1, 2), True: _perm(rank, rank + 1, 1)}
    by_phase = next((way for way, known in ways.items() if perm == known), None)
    target = _target(first, opset)
    if by_phase is None or len(target) != 2 * rank + 2:
        return None
    begin = 1 if by_phase else 2
    strides = tuple(int(entry) for entry in target[begin : begin + rank])
    if min(strides) < 1 or not _fits(conv, strides, by_phase, target, _target(last, opset)):
        return None
    return _Shuffle((first, turn, last), strides, by_phase)


def _target(reshape: ir.Node, opset: int) -> list[int]:
    """The target of a Reshape, empty if it is not known."""
    found = entries(reshape.inputs[1], opset) if len(reshape.inputs) > 1 else None
    return found or []


def _perm(rank: int, channel: int, first: int) -> list[int]:
    return [0, channel, *(axis for i in range(rank) for axis in (rank + 2 + i, first + i))]


def _fits(
    conv: Convolution,
    strides: Sequence[int],
    by_phase: bool,
    apart: Sequence[int],
    together: Sequence[int],
) -> bool:
    """Whether both targets are the sizes that the convolution gives."""
    shape = sizes(conv.node.inputs[0], conv.rank)
    channels = conv.weight.shape[0] // prod(strides)
    if shape is None or (None in shape[2:] and conv.rank > 1):
        return False
    before = _outputs(conv, (1,) * conv.rank, shape[2:])
    after = _outputs(conv, strides, shape[2:])
    leading = [*strides, channels] if by_phase else [channels, *strides]
    given = [shape[0], conv.weight.shape[0], *before]
    return keeps(apart, given, [shape[0], *leading, *before]) and keeps(
        together, [shape[0], channels], [shape[0], channels, *after]
    )


def _outputs(conv: Convolution, strides: Sequence[int], shape: Sequence[int | None]) -> list[int]:
    """The sizes after the shuffle, -1 where they are open."""
    axes = _axes(conv, strides, shape)
    return [-1 if n is None else axis.out for axis, n in zip(axes, shape, strict=True)]


def _first(node: ir.Node) -> ir.Value | None:
    """A node's first input, if it has any."""
    return node.inputs[0] if node.inputs else None


def _before(node: ir.Node | None, kind: str) -> ir.Node | None:
    """The node of a kind that makes the input of another."""
    value = None if node is None else _first(node)
    maker = None if value is None else value.producer()
    return maker if maker is not None and is_op(maker, kind) else None
