"""Operators that move elements, such as Reshape, Concat, Crop and transpose; and constants.

The gradient of a move needs no formula. Applied to its inputs' element numbers, which count from 1,
an operator shows which element each output came from; 0 means a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from ...dialects.mxnet_attributes import Attributes
from ...errors import ArgumentError, ShapeError
from .table import Array, Call, Shape, define


def define_move(names: str, move: Any, attributes: str = "", **rest: Any) -> None:
    """Define an operator that moves elements, with the gradient that follows from it."""

    def forward(c: Call, *inputs: Array) -> list[Array]:
        y = move(c.p, *inputs)
        return [np.array(part) for part in (y if isinstance(y, list) else [y])]  # not views

    def backward(c: Call, *grads: Array) -> list[Array]:
        ends = list(accumulate(x.size for x in c.inputs))
        pairs = zip(np.split(np.arange(1.0, ends[-1] + 1), ends[:-1]), c.inputs, strict=True)
        numbers = [part.reshape(x.shape) for part, x in pairs]
        p = Attributes(**{**vars(c.p), "constant_value": 0})
        sources = np.concatenate([y.ravel() for y in forward(Call(p), *numbers)]).astype(np.int64)
        values = np.concatenate([g.ravel() for g in grads])
        total = np.bincount(sources, values, ends[-1] + 1)[1:].astype(values.dtype)
        parts = zip(np.split(total, ends[:-1]), c.inputs, strict=True)
        return [part.reshape(x.shape) for part, x in parts]

    define(names, forward, backward, attributes=attributes, **rest)


def reshaped(old: Shape, codes: Shape, reverse: bool = False) -> Shape:
    """Return the shape that Reshape's codes mean.

    0 copies a size. -1 is inferred from the number of elements. -2 copies all remaining sizes. -3
    joins two sizes. -4 splits a size into the two that follow, one of which may be -1.

    >>> reshaped((2, 3, 4), (0, -1)), reshaped((2, 3, 4), (-3, 0)), reshaped((6, 5), (-4, 2, -1, 0))
    ((2, 12), (6, 4), (2, 3, 5))
    """
    if reverse:
        return reshaped(old[::-1], codes[::-1])[::-1]
    new: list[int] = []
    sizes, rest = list(old), list(codes)
    while rest:
        code = rest.pop(0)
        if code == -2:
            new, sizes = new + sizes, []
        elif code == -3:
            new.append(sizes.pop(0) * sizes.pop(0))
        elif code == -4:
            size, first, second = sizes.pop(0), rest.pop(0), rest.pop(0)
            first = size // second if first == -1 else first
            new += [first, size // first if second == -1 else second]
        else:
            copied = sizes.pop(0) if sizes else 0
            new.append(copied if code == 0 else code)
    return filled(old, tuple(new))


def filled(old: Shape, new: Shape) -> Shape:
    """Replace -1 in the new shape, so that it has as many elements as the old one."""
    others = prod(size for size in new if size != -1)
    shape = tuple(prod(old) // others if size == -1 and others else size for size in new)
    if prod(shape) != prod(old):
        raise ShapeError("shape", str(new), f"a shape for the {prod(old)} elements of {old}")
    return shape


def axis_of(axis: int, ndim: int) -> int:
    """Return an axis, which may be negative, as counted from the first."""
    if not -ndim <= axis < ndim:
        raise ArgumentError("axis", str(axis), f"an axis of {ndim}")
    return axis % ndim


def _pad(p: Attributes, x: Array) -> Array:
    value: dict[str, Any] = {"constant_values": p.constant_value} if p.mode == "constant" else {}
    return np.pad(x, np.reshape(p.pad_width, (-1, 2)).tolist(), mode=p.mode, **value)


def sliced(p: Attributes, shapes: Sequence[Shape]) -> tuple[slice, ...]:
    """Return the part of the first input that slice, slice_axis, slice_like or Crop returns.

    There is one slice for each axis, or only for the first axes.
    """
    first, *others = shapes
    if hasattr(p, "offset"):
        return _window(p, first[2:], others[0][2:] if others else p.h_w)
    if hasattr(p, "axis"):
        return (slice(None),) * axis_of(p.axis, len(first)) + (slice(p.begin, p.end),)
    if hasattr(p, "begin"):
        steps = p.step or (None,) * len(p.begin)
        return tuple(slice(*part) for part in zip(p.begin, p.end, steps, strict=True))
    axes = [axis_of(axis, len(first)) for axis in p.axes] or range(len(first))
    return tuple(slice(0, others[0][a]) if a in axes else slice(None) for a in range(len(first)))


def _window(p: Attributes, full: Shape, size: Shape) -> tuple[slice, ...]:
    """Return Crop's window, of this size on the last two axes."""
    room = [whole - part for whole, part in zip(full, size, strict=True)]
    begin = tuple(r // 2 for r in room) if p.center_crop else p.offset
    if len(begin) != 2 or any(not 0 <= b <= r for b, r in zip(begin, room, strict=True)):
        raise ShapeError("Crop's window", f"{size} at {begin}", f"a part of {full}")
    return slice(None), slice(None), *(slice(b, b + n) for b, n in zip(begin, size, strict=True))


def _part(p: Attributes, *inputs: Array) -> Any:
    return inputs[0][sliced(p, [x.shape for x in inputs])]


def _broadcast(p: Attributes, x: Array) -> Any:
    sizes = tuple(new or old for new, old in zip(p.shape, x.shape, strict=False))
    if len(p.shape) != x.ndim or any(
        old not in (1, n) for n, old in zip(sizes, x.shape, strict=True)
    ):
        raise ShapeError("shape", str(p.shape), f"{x.ndim} sizes, other than {x.shape} only at 1")
    return np.broadcast_to(x, sizes)


def _concat(p: Attributes, *inputs: Array) -> Any:
    return np.concatenate(inputs, p.dim if hasattr(p, "dim") else p.axis)


def _split(p: Attributes, x: Array) -> list[Array]:
    parts = np.split(x, p.num_outputs, axis_of(p.axis, x.ndim))
    drop = p.squeeze_axis and parts[0].shape[p.axis] == 1
    return [part.squeeze(p.axis) if drop else part for part in parts]


define_move(
    "Reshape reshape",
    lambda p, x: x.reshape(reshaped(x.shape, p.shape, p.reverse)),
    "shape:shape reverse:bool=False target_shape:shape=() keep_highest:bool=False",
)
define_move(
    "_npx_reshape",
    lambda p, x: x.reshape(reshaped(x.shape, p.newshape, p.reverse)),
    "newshape:shape reverse:bool=False order:C=C",
)
define_move(
    "_npi_reshape _np_reshape",
    lambda p, x: x.reshape(filled(x.shape, p.newshape)),
    "newshape:shape order:C=C",
)
define_move("Flatten flatten", lambda p, x: x.reshape(len(x), -1))
define_move("expand_dims _npi_expand_dims", lambda p, x: np.expand_dims(x, p.axis), "axis:int")
define_move("_npi_squeeze _np_squeeze", lambda p, x: x.squeeze(p.axis), "axis:shape?=None")
define_move("squeeze", lambda p, x: np.atleast_1d(x.squeeze(p.axis)), "axis:shape?=None")
define_move(
    "transpose _npi_transpose _np_transpose",
    lambda p, x: x.transpose(p.axes or None),
    "axes:shape=()",
)
define_move("Pad pad", _pad, "mode:constant|edge|reflect pad_width:shape constant_value:number=0")
define_move("slice _npx_slice", _part, "begin:bounds end:bounds step:bounds=()")
define_move("slice_axis", _part, "axis:int begin:int end:int?")
define_move("slice_like", _part, "axes:shape=()", inputs="data shape_like")
define_move("broadcast_to", _broadcast, "shape:shape")
define_move("tile _npi_tile", lambda p, x: np.tile(x, p.reps), "reps:shape")
define_move("reverse flip", lambda p, x: np.flip(x, p.axis), "axis:shape")
define_move("_index", lambda p, x: x[p.key], "key:any")
define_move(
    "Crop",
    _part,
    "num_args:few=1 offset:shape=(0,0) h_w:shape=(0,0) center_crop:bool=False",
    inputs="data crop_like",
    absent=lambda p: () if p.num_args == 2 else ("crop_like",),
)
define_move("Concat concat", _concat, "num_args:few dim:int=1", inputs="arg{}")
define_move("_npi_concatenate", _concat, "num_args:few axis:int=0", inputs="arg{}")
define_move(
    "stack _npi_stack",
    lambda p, *inputs: np.stack(inputs, p.axis),
    "num_args:few axis:int=0",
    inputs="arg{}",
)
define_move(
    "SliceChannel split",
    _split,
    "num_outputs:few axis:int=1 squeeze_axis:bool=False",
    outputs=lambda p: [f"output{i}" for i in range(p.num_outputs)],
    visible=lambda p: p.num_outputs,
)
define_move(
    "repeat _np_repeat _npi_repeats",
    lambda p, x: x.repeat(p.repeats, p.axis),
    "repeats:size axis:int?=None",
)

_CONSTANT = "dtype:dtype=float32 ctx:text="
for _name, _value, _attributes in (
    ("zeros", 0, ""),
    ("ones", 1, ""),
    ("full", None, "value:scalar "),
):
    define(
        f"_{_name} {_name}",
        lambda c, value=_value: np.full(c.p.shape, getattr(c.p, "value", value), c.p.dtype),
        inputs="",
        attributes=f"shape:shape {_attributes}{_CONSTANT}",
        shapes=lambda p, inputs, outputs: (inputs, [p.shape]),
    )
define(
    "_arange arange",
    lambda c: (
        np.arange(*([c.p.start] if c.p.stop is None else [c.p.start, c.p.stop, c.p.step]))
        .repeat(c.p.repeat)
        .astype(c.p.dtype)
    ),
    inputs="",
    attributes="start:scalar stop:scalar?=None step:scalar=1 repeat:count=1 "
    f"infer_range:bool=False {_CONSTANT}",
)
