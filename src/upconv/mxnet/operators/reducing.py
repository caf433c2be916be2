"""Reductions, over axes, over all of them, or (`exclude`) over all but those named."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...dialects.mxnet_attributes import Attributes
from .row import Array, Call, Shape, row
from .shaping import axis_of


def _norm(x: Array, axis: Shape) -> Any:
    return np.sqrt(np.square(x).sum(axis))


# name: the function, its derivative from x and y, which has axes of size 1 for those reduced
RULES: dict[str, tuple[Any, Any]] = {
    "sum": (np.sum, lambda x, y: 1),
    "mean": (np.mean, lambda x, y: y.size / x.size if x.size else 0),
    "max": (np.max, lambda x, y: x == y),
    "min": (np.min, lambda x, y: x == y),
    "prod": (np.prod, lambda x, y: y / x),
    "norm": (_norm, lambda x, y: x / np.where(y == 0, 1, y)),
}


def _axes(p: Attributes, ndim: int) -> Shape:
    axes = {axis_of(a, ndim) for a in p.axis or range(ndim)}
    return tuple(a for a in range(ndim) if (a in axes) != p.exclude)


def _enter(names: str, function: Any, slope: Any, least_rank: int) -> None:
    def forward(c: Call, x: Array) -> Array:
        axes = _axes(c.p, x.ndim)
        mean = x.dtype.kind != "f" and function is np.mean and not least_rank
        found = np.asarray(function(x, axis=axes), c.p.dtype or (np.float32 if mean else x.dtype))
        found = np.expand_dims(found, axes) if c.p.keepdims else found
        return found if found.ndim else found.reshape((1,) * least_rank)

    def backward(c: Call, grad: Array) -> list[Array]:
        x = c.inputs[0]
        axes = _axes(c.p, x.ndim)
        kept = tuple(1 if a in axes else s for a, s in enumerate(x.shape))
        with np.errstate(all="ignore"):
            share = grad.reshape(kept) * slope(x, c.outputs[0].reshape(kept))
        return [np.asarray(np.broadcast_to(share, x.shape), x.dtype)]

    attributes = "axis:shape?=None keepdims:bool=False exclude:bool=False dtype:dtype?=None"
    row(names, forward, backward, attributes=attributes)


def _where_extreme(find: Any) -> Any:
    """argmax or argmin: positions in the type of data; of all elements without an axis."""

    def forward(c: Call, x: Array) -> Array:
        found = find(x, c.p.axis, keepdims=c.p.keepdims)
        return np.atleast_1d(np.asarray(found, x.dtype))

    return forward


for _name, _find in (("argmax", np.argmax), ("argmin", np.argmin)):
    none = lambda c, grad: [None]  # noqa: E731
    row(_name, _where_extreme(_find), none, attributes="axis:int?=None keepdims:bool=False")
for _name, (_function, _slope) in RULES.items():
    _enter(f"{_name} {_name}_axis", _function, _slope, 1)
    _enter(f"_npi_{_name} _np_{_name}", _function, _slope, 0)
