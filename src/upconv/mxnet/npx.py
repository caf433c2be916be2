"""Neural-network operators on arrays as in NumPy: `mx.npx`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from ..files import published, reported
from .base import (
    MXNetTypeError,
    cpu,
    current_device,
    gpu,
    is_np_array,
    is_np_shape,
    num_gpus,
    require,
    reset_np,
    set_np,
)
from .ndarray import function, invoke, plain, save, waitall
from .ndarray import load as load_as
from .np import ndarray
from .operators import OPERATORS

__all__ = [
    "convolution", "cpu", "current_device", "deconvolution", "gpu", "is_np_array", "is_np_shape",
    "load", "num_gpus", "reset_np", "save", "savez", "set_np", "waitall",
]  # fmt: skip


_DEFAULTS = {"num_filter": 1, "workspace": 1024, "no_bias": False}


def _windowed(name: str) -> Any:
    operator = OPERATORS[name]

    def apply(*values: Any, **named: Any) -> Any:
        inputs, attributes = operator.bind(values, named)
        unknown = attributes.keys() - operator.attributes.keys()
        if unknown:
            raise MXNetTypeError(f"{min(unknown)!r} is not an argument of mx.npx.{name.lower()}.")
        attributes = _DEFAULTS | {k: value for k, value in attributes.items() if value is not None}
        complete = len(inputs) > 1 and None not in inputs and "kernel" in attributes
        require(complete, "data, weight and kernel are required")
        require(attributes["num_filter"] >= 1, "num_filter must be at least 1")
        require(attributes["workspace"] >= 0, "workspace must be at least 0")
        require(not attributes["no_bias"] or len(inputs) < 3, "bias is given with no_bias")
        return invoke(operator, inputs, attributes)

    apply.__name__ = name.lower()
    apply.__doc__ = (
        f"{name} with MXNet 2's defaults: it has a bias unless no_bias is true, and attributes "
        "that are None are ignored. Raises `AssertionError` where MXNet's wrapper does."
    )
    return apply


def load(file: Any) -> Any:
    """Read the arrays of a .params or .npz file: by name, or a list of arrays without names."""
    return load_as(file, ndarray)


def savez(file: Any, *arrays: Any, **named: Any) -> None:
    """Write arrays to a .npz file, by name or as arr_0, arr_1, ..."""
    values = {f"arr_{i}": x for i, x in enumerate(arrays)} | named
    with reported(str(file)), published(Path(file), force=True) as handle:
        numpy.savez(handle, **plain(values))


deconvolution, convolution = _windowed("Deconvolution"), _windowed("Convolution")


def __getattr__(name: str) -> Any:
    operator = OPERATORS.get(f"_npx_{name}")
    if operator is None:
        raise AttributeError(f"upconv.mxnet.npx has no {name!r}; docs/mxnet.md lists what it has.")
    return function(name, operator)
