"""Initial values of parameters: `mx.init`, also named `mx.initializer`."""

from __future__ import annotations

import json
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..errors import brief
from .base import MXNetError, MXNetValueError, absent, raised_by
from .operators import Shape
from .random import generator


class InitDesc(str):
    """The name of a parameter, with the attributes of its variable."""

    attrs: dict[str, str]

    def __new__(cls, name: str, attrs: Any = None, global_init: Any = None) -> InitDesc:
        desc = super().__new__(cls, name)
        desc.attrs = attrs or {}
        return desc


class Initializer:
    """The base of all initializers. A subclass defines `_init_weight(name, array)`.

    The suffix of a parameter's name selects its values: zeros for bias, beta and mean, ones for
    gamma and var; `_init_weight` fills a weight. Gluon calls `_init_weight` for every parameter.

    >>> import upconv.mxnet as mx
    >>> array = mx.nd.zeros((2,))
    >>> Constant(3)("up_weight", array)
    >>> array.asnumpy()
    array([3., 3.], dtype=float32)
    """

    fill: Any = None  # returns a weight's values, given its name and shape

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = kwargs

    def dumps(self) -> str:
        """Return the initializer as a string that `create` reads."""
        return json.dumps([type(self).__name__.lower(), self._kwargs], default=np.ndarray.tolist)

    def __call__(self, desc: str, arr: Any) -> None:
        word = getattr(desc, "attrs", {}).get("__init__")
        values = [value for suffix, value in _BY_SUFFIX.items() if desc.endswith(suffix)]
        if word or desc.endswith("weight"):
            create(word or self)._init_weight(desc, arr)
        elif not values:
            raise MXNetValueError(
                f"The name {desc!r} determines no initial values; expected a name that ends in "
                f"weight, {', '.join(_BY_SUFFIX)}. Write the array itself instead."
            )
        else:
            arr[:] = values[0]

    def _init_weight(self, name: str, arr: Any) -> None:
        with raised_by(f"the initial values of {name}"):
            arr[:] = self.fill(name, arr.shape)


class Constant(Initializer):
    """One value everywhere, or an array of values."""

    def __init__(self, value: Any = 0.0) -> None:
        super().__init__(value=value)

    def fill(self, name: str, shape: Shape) -> Any:
        return self._kwargs["value"]


Zero, One = partial(Constant, 0), partial(Constant, 1)
"""Zeros, and ones."""


class Uniform(Initializer):
    """Uniform values between -scale and scale."""

    def __init__(self, scale: float = 0.07) -> None:
        super().__init__(scale=scale)

    def fill(self, name: str, shape: Shape) -> Any:
        return generator().uniform(-self._kwargs["scale"], self._kwargs["scale"], shape)


class Normal(Initializer):
    """Normal values with a standard deviation of sigma."""

    def __init__(self, sigma: float = 0.01) -> None:
        super().__init__(sigma=sigma)

    def fill(self, name: str, shape: Shape) -> Any:
        return generator().normal(0, self._kwargs["sigma"], shape)


class Xavier(Initializer):
    """Random values with a scale of sqrt(magnitude / factor), for a weight with two axes or more.

    factor_type: "in" is shape[1] times the kernel's positions, "out" is shape[0] times them, "avg"
        is their mean. For a transposed convolution's weight, (C, F/G, kernel), "in" is the output.
    rnd_type: "uniform" between -scale and scale, or "gaussian", whose standard deviation is scale.
    """

    def __init__(
        self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3
    ) -> None:
        if rnd_type not in ("uniform", "gaussian") or factor_type not in ("avg", "in", "out"):
            raise MXNetValueError(
                f"rnd_type is {brief(rnd_type)}, factor_type {brief(factor_type)}; expected "
                "uniform or gaussian, and avg, in or out."
            )
        super().__init__(rnd_type=rnd_type, factor_type=factor_type, magnitude=magnitude)
        self._drawn = rnd_type, factor_type, magnitude

    def fill(self, name: str, shape: Shape) -> Any:
        kind, factor_type, magnitude = self._drawn
        if len(shape) < 2:
            raise MXNetValueError(f"Xavier: {name} has shape {shape}; expected two axes or more.")
        fan = {"in": shape[1], "out": shape[0], "avg": (shape[0] + shape[1]) / 2}
        scale = np.sqrt(magnitude / (fan[factor_type] * prod(shape[2:])))
        uniform = kind == "uniform"
        draw = generator().uniform if uniform else generator().normal
        return draw(-scale if uniform else 0, scale, shape)


class MSRAPrelu(Xavier):
    """He's initialization: Gaussian, with a magnitude of 2 / (1 + slope^2)."""

    def __init__(self, factor_type: str = "avg", slope: float = 0.25) -> None:
        super().__init__("gaussian", factor_type, 2 / (1 + slope**2))
        self._kwargs = {"factor_type": factor_type, "slope": slope}


class Bilinear(Initializer):
    """The weight of a transposed convolution that upsamples by bilinear interpolation."""

    def fill(self, name: str, shape: Shape) -> Any:
        if len(shape) != 4:
            raise MXNetValueError(f"Bilinear: {name} has shape {shape}; expected four axes.")
        factor = (shape[3] + 1) // 2  # the upsampling factor
        middle = 1 - (1 + factor % 2) / (2 * factor)
        h, w = (1 - np.abs(np.arange(size) / factor - middle) for size in shape[2:])
        return np.outer(h, w)


_BY_SUFFIX = {"bias": 0, "beta": 0, "gamma": 1, "mean": 0, "var": 1}
"""Initial values of other parameters by the suffixes of their names."""
_KINDS: dict[str, Any] = {
    "zeros": Zero, "ones": One, "zero": Zero, "one": One, "constant": Constant, "normal": Normal,
    "uniform": Uniform, "xavier": Xavier, "msraprelu": MSRAPrelu, "bilinear": Bilinear,
}  # fmt: skip


__getattr__ = absent("init.")


def register(kind: Any) -> Any:
    """Make a class known to `create` under its lower-case name; usable as a decorator."""
    _KINDS[kind.__name__.lower()] = kind
    return kind


def create(value: Any, **kwargs: Any) -> Any:
    """Create an initializer from a name, the result of `dumps`, a number or an array.

    >>> create('["xavier", {"magnitude": 2}]').dumps()
    '["xavier", {"rnd_type": "uniform", "factor_type": "avg", "magnitude": 2}]'
    """
    if not isinstance(value, str):
        return value if hasattr(value, "_init_weight") else Constant(value)
    with raised_by("init"):
        word, kwargs = json.loads(value) if value.startswith("[") else (value, kwargs)
        if word.lower() not in _KINDS:
            known = ", ".join(_KINDS)
            raise MXNetError(f"init is {brief(word)}; expected one of {known}.")
        return _KINDS[word.lower()](**kwargs)
