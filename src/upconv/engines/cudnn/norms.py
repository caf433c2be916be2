"""Graphs for batch normalization in training, and for its gradients.

    forward    y, mean, 1 / sqrt(var + eps), and the batch's mean and unbiased variance
    backward   dx, dgamma, dbeta

The library requires four axes, (N, C, 1, X), for data with channels first or last. Arrays with one
number per channel are float32, of shape (1, C, 1, 1). The running statistics are updated with
weight 1 here, so they become the batch's statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import addressof, c_float
from typing import NamedTuple

from ...devices import DeviceArray
from ...problem import DType
from . import abi
from .abi import Descriptor, Object, Type, tensor
from .graphs import TYPES, Plan

_BATCH_NORM, _TRAINING = 2, 1  # cudnnBackendNormMode_t, cudnnBackendNormFwdPhase_t


# Attributes of OPERATION_NORM_FORWARD and OPERATION_NORM_BACKWARD, in the order of the arrays.
_FORWARD = {
    "x": 2002, "gamma": 2005, "beta": 2006, "old_mean": 2009, "old_var": 2010,
    "y": 2013, "mean": 2003, "invstd": 2004, "batch_mean": 2011, "batch_var": 2012,
}  # fmt: skip
_BACKWARD = {
    "x": 2101, "grad": 2104, "mean": 2102, "invstd": 2103, "gamma": 2105,
    "dx": 2109, "dgamma": 2107, "dbeta": 2108,
}  # fmt: skip
_SCALARS = {"eps": 2007, "weight": 2008}
_LIKE_X = {"x", "y", "grad", "dx"}
_FORWARD_MODE, _FORWARD_PHASE, _BACKWARD_MODE = 2000, 2001, 2100


class Norm(NamedTuple):
    """A normalization or its gradients: (batch, channels, positions), the type of x, and whether
    channels are last."""

    forward: bool
    sizes: tuple[int, int, int]
    dtype: DType
    last: bool

    @property
    def attributes(self) -> dict[str, int]:
        """The operation's attribute number for each array."""
        return _FORWARD | _SCALARS if self.forward else _BACKWARD


def operations(norm: Norm) -> Iterator[Object]:
    """Yield the operation for a normalization or its gradients."""
    if norm.forward:
        node = Object(Descriptor.OPERATION_NORM_FORWARD)
        node.set(_FORWARD_MODE, Type.NORM_MODE, _BATCH_NORM)
        node.set(_FORWARD_PHASE, Type.NORM_FWD_PHASE, _TRAINING)
    else:
        node = Object(Descriptor.OPERATION_NORM_BACKWARD)
        node.set(_BACKWARD_MODE, Type.NORM_MODE, _BATCH_NORM)
    n, c, x = norm.sizes
    strides = (c * x, 1, c * x, c) if norm.last else (c * x, x, x, 1)
    for number, (name, attribute) in enumerate(norm.attributes.items(), 1):
        if name in _LIKE_X:
            value = tensor(number, (n, c, 1, x), strides, TYPES[norm.dtype])
        elif name in _SCALARS:
            value = tensor(number, (1,) * 4, (1,) * 4, abi.FLOAT, by_value=True)
        else:
            value = tensor(number, (1, c, 1, 1), (c, 1, c, c), abi.FLOAT)
        node.set(attribute, Type.BACKEND_DESCRIPTOR, value)
    yield node.finalized()


class NormPlan:
    """A normalization plan that takes its arrays by name."""

    def __init__(self, norm: Norm, plan: Plan, eps: float) -> None:
        self.plan = plan
        self._names = tuple(norm.attributes)
        self._scalars = {"eps": c_float(eps), "weight": c_float(1.0)}

    def addresses(self, arrays: dict[str, DeviceArray]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the graph's tensor numbers and their addresses."""
        addresses = (
            addressof(self._scalars[name]) if name in self._scalars else arrays[name].pointer
            for name in self._names
        )
        return tuple(range(1, len(self._names) + 1)), tuple(addresses)
