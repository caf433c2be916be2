"""Reductions over given axes, over all axes, or (`exclude`) over all axes except the given ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...dialects.mxnet_attributes import Attributes
from .shaping import axis_of
from .table import Array, Call, Shape, define


def _norm(x: Array, axis: Shape) -> Any:
    return np.sqrt(np.square(x).sum(axis))


# name: the function, its derivative from x and y; y keeps reduced axes with size 1
REDUCTIONS: dict[str, tuple[Any, Any]] = {
    "sum": (np.sum, lambda x, y: 1),
    "mean": (np.mean, lambda x, y: y.size / x.size if x.size else 0),
    "max": (np.max, lambda x, y: x == y),
    "min": (np.min, lambda x, y: x == y),
    "prod": (np.prod, lambda x, y: y / x),
    "norm": (_norm, lambda x, y: x / np.where(y == 0, 1, y)),
}


def reduced_axes(p: Attributes, rank: int) -> Shape:
    """Return the axes that a reduction with these attributes removes."""
    axes = {axis_of(axis, rank) for axis in p.axis or range(rank)}
    return tuple(axis for axis in range(rank) if (axis in axes) != p.exclude)


def _define(names: str, function: Any, slope: Any, least_rank: int) -> None:
    def forward(c: Call, x: Array) -> Array:
        axes = reduced_axes(c.p, x.ndim)
        mean = x.dtype.kind != "f" and function is np.mean and not least_rank
        y = np.asarray(function(x, axis=axes), c.p.dtype or (np.float32 if mean else x.dtype))
        y = np.expand_dims(y, axes) if c.p.keepdims else y
        return y if y.ndim else y.reshape((1,) * least_rank)

    def backward(c: Call, grad: Array) -> list[Array]:
        x = c.inputs[0]
        axes = reduced_axes(c.p, x.ndim)
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
        with np.errstate(all="ignore"):
            share = grad.reshape(kept) * slope(x, c.outputs[0].reshape(kept))
        return [np.asarray(np.broadcast_to(share, x.shape), x.dtype)]

    attributes = "axis:shape?=None keepdims:bool=False exclude:bool=False dtype:dtype?=None"
    define(names, forward, backward, attributes=attributes)


for _name, _find in (("argmax", np.argmax), ("argmin", np.argmin)):
    define(
        _name,
        # The result has the type of data. Without an axis it is one position in flattened data.
        lambda c, x, find=_find: np.atleast_1d(
            np.asarray(find(x, c.p.axis, keepdims=c.p.keepdims), x.dtype)
        ),
        lambda c, grad: [None],
        attributes="axis:int?=None keepdims:bool=False",
    )
for _name, (_function, _slope) in REDUCTIONS.items():
    _define(f"{_name} {_name}_axis", _function, _slope, 1)
    _define(f"_npi_{_name} _np_{_name}", _function, _slope, 0)
