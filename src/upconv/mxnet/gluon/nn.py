"""Layers: `mx.gluon.nn`, transposed convolutions above all."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base import MXNetTypeError, require
from .block import Block, HybridBlock, HybridSequential, Sequential
from .parameter import Parameter

__all__ = [
    "Activation", "BatchNorm", "Block", "Conv1D", "Conv1DTranspose", "Conv2D", "Conv2DTranspose",
    "Conv3D", "Conv3DTranspose", "Dense", "Dropout", "Flatten", "HybridBlock", "HybridSequential",
    "LeakyReLU", "Sequential",
]  # fmt: skip


_DEFAULTS = {
    "output_padding": 0, "dilation": 1, "groups": 1, "layout": None, "activation": None,
    "use_bias": True, "weight_initializer": None, "bias_initializer": "zeros", "in_channels": 0,
}  # fmt: skip
_PLAIN = [name for name in _DEFAULTS if name != "output_padding"]


class _Layer(HybridBlock):
    """One operator with its parameters, in the order of its inputs, attributes and activation."""

    op = ""
    act: Any = None

    def __init__(
        self, attributes: dict[str, Any] | None = None, prefix: Any = None, params: Any = None
    ) -> None:
        super().__init__(prefix)
        self._attributes = attributes or {}

    def hybrid_forward(self, F: Any, x: Any, **parameters: Any) -> Any:  # noqa: N803
        found = getattr(F, self.op)(x, *parameters.values(), **self._attributes)
        return found if self.act is None else self.act(found)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in self._attributes.items())
        return f"{type(self).__name__}({given})"


class Activation(_Layer):
    """An activation by its name: relu, sigmoid, tanh, softrelu, softsign, ..."""

    op = "Activation"

    def __init__(self, activation: str, **named: Any) -> None:
        super().__init__({"act_type": activation}, **named)


class LeakyReLU(_Layer):
    """x where it is positive, else alpha * x."""

    op = "LeakyReLU"

    def __init__(self, alpha: float, **named: Any) -> None:
        super().__init__({"act_type": "leaky", "slope": alpha}, **named)


class Flatten(_Layer):
    """All axes but the first made one."""

    op = "Flatten"


class Dropout(_Layer):
    """In training, zeros at a rate."""

    op = "Dropout"

    def __init__(self, rate: float, axes: Any = (), **named: Any) -> None:
        super().__init__({"p": rate, "axes": axes}, **named)


class _Weighted(_Layer):
    """A layer with a weight, and perhaps a bias and an activation."""

    weight: Parameter
    bias: Parameter | None

    def _finish(
        self, size: int, biased: bool, init: Any, activation: str | None, dtype: Any = np.float32
    ) -> None:
        self.bias = Parameter("bias", shape=(size,), dtype=dtype, init=init) if biased else None
        self.act = Activation(activation) if activation else None


class Dense(_Weighted):
    """x W^T + b, after making all axes but the first one if `flatten`."""

    op = "FullyConnected"

    def __init__(
        self, units: int, activation: str | None = None, use_bias: bool = True,
        flatten: bool = True, dtype: Any = np.float32, weight_initializer: Any = None,
        bias_initializer: Any = "zeros", in_units: int = 0, **named: Any,
    ) -> None:  # fmt: skip
        given = {"num_hidden": units, "no_bias": not use_bias, "flatten": flatten}
        super().__init__(given, **named)
        self.weight = Parameter(
            "weight", shape=(units, in_units), dtype=dtype, init=weight_initializer
        )
        self._finish(units, use_bias, bias_initializer, activation, dtype)


class _Convolution(_Weighted):
    """A convolution of a rank, transposed or not."""

    rank, transposed = 0, False
    layouts: tuple[str, ...] = ()

    def __init__(
        self, channels: int, kernel_size: Any, strides: Any = 1, padding: Any = 0, *values: Any,
        **named: Any,
    ) -> None:  # fmt: skip
        order = list(_DEFAULTS) if self.transposed else _PLAIN
        given = {**_DEFAULTS, **dict(zip(order, values, strict=False)), **named}
        unknown = named.keys() - {*order, "prefix", "params"}
        if unknown or len(values) > len(order):
            raise MXNetTypeError(f"{type(self).__name__} has no arguments {sorted(unknown)}.")
        layout = given["layout"] or self.layouts[0]
        require(layout in self.layouts, f"layout is {layout!r}; expected one of {self.layouts}")
        kernel, groups = self._each("kernel_size", kernel_size), given["groups"]
        self.outpad = self._each("output_padding", given["output_padding"])
        attributes = {
            "kernel": kernel, "stride": self._spread(strides), "pad": self._spread(padding),
            "dilate": self._spread(given["dilation"]), "num_filter": channels, "num_group": groups,
            "no_bias": not given["use_bias"], "layout": layout,
        }  # fmt: skip
        super().__init__(attributes | ({"adj": self.outpad} if self.transposed else {}))
        self.op = "Deconvolution" if self.transposed else "Convolution"
        inputs = given["in_channels"]
        ends = (inputs, channels // groups) if self.transposed else (channels, inputs // groups)
        shape = (ends[0], *kernel, ends[1]) if layout[-1] == "C" else (*ends, *kernel)
        self.weight = Parameter("weight", shape=shape, init=given["weight_initializer"])
        self._finish(channels, given["use_bias"], given["bias_initializer"], given["activation"])

    def _spread(self, value: Any) -> Any:
        return (value,) * self.rank if isinstance(value, int) else tuple(value)

    def _each(self, name: str, value: Any) -> Any:
        found = self._spread(value)
        text = f"{name} is {value}; expected an int or {self.rank} of them"
        require(len(found) == self.rank, text)
        return found

    @property
    def attributes(self) -> dict[str, Any]:
        """The operator's attributes."""
        return dict(self._attributes)


def _layer(name: str, rank: int, transposed: bool, layouts: tuple[str, ...]) -> Any:
    kind = "Transposed convolution" if transposed else "Convolution"
    doc = f"{kind} over {rank} axes; integers are spread over them. Layouts: {', '.join(layouts)}."
    names = {"__doc__": doc, "rank": rank, "transposed": transposed, "layouts": layouts}
    return type(name, (_Convolution,), {**names, "__module__": __name__})


Conv1D = _layer("Conv1D", 1, False, ("NCW",))
Conv2D = _layer("Conv2D", 2, False, ("NCHW", "NHWC"))
Conv3D = _layer("Conv3D", 3, False, ("NCDHW", "NDHWC"))
Conv1DTranspose = _layer("Conv1DTranspose", 1, True, ("NCW",))
Conv2DTranspose = _layer("Conv2DTranspose", 2, True, ("NCHW", "NHWC"))
Conv3DTranspose = _layer("Conv3DTranspose", 3, True, ("NCDHW", "NDHWC"))


class BatchNorm(_Layer):
    """Batch normalisation; in training its running statistics are updated by the backward pass."""

    op = "BatchNorm"

    def __init__(
        self, axis: int = 1, momentum: float = 0.9, epsilon: float = 1e-5, center: bool = True,
        scale: bool = True, use_global_stats: bool = False, beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones", running_mean_initializer: Any = "zeros",
        running_variance_initializer: Any = "ones", in_channels: int = 0, **named: Any,
    ) -> None:  # fmt: skip
        super().__init__({
            "axis": axis, "momentum": momentum, "eps": epsilon, "fix_gamma": not scale,
            "use_global_stats": use_global_stats,
        }, **named)  # fmt: skip
        for name, learned, init in (  # in the order of the operator's inputs
            ("gamma", scale, gamma_initializer),
            ("beta", center, beta_initializer),
            ("running_mean", False, running_mean_initializer),
            ("running_var", False, running_variance_initializer),
        ):
            request = "write" if learned else "null"
            setattr(self, name, Parameter(name, request, (in_channels,), init=init))

    def cast(self, dtype: Any) -> None:
        super().cast(np.float32 if np.dtype(dtype) == np.float16 else dtype)
