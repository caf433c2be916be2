"""Layers: `mx.gluon.nn`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import brief
from .. import ndarray as nd
from ..base import MXNetTypeError, MXNetValueError, absent, raised_by, require
from ..operators import OPERATORS
from .block import Block, HybridBlock, HybridSequential, Sequential, SymbolBlock
from .parameter import Parameter

_POOLS = [
    (f"{kind}Pool{i}D", i) for kind in ("Max", "Avg", "GlobalMax", "GlobalAvg") for i in (1, 2, 3)
]
__all__ = [
    "ELU", "GELU", "SELU", "Activation", "BatchNorm", "Block", "Conv1D", "Conv1DTranspose",
    "Conv2D", "Conv2DTranspose", "Conv3D", "Conv3DTranspose", "Dense", "Dropout", "Flatten",
    "HybridBlock", "HybridLambda", "HybridSequential", "InstanceNorm", "Lambda", "LeakyReLU",
    "PReLU", "ReflectionPad2D", "Sequential", "SiLU", "Swish", "SymbolBlock",
    *(name for name, _ in _POOLS),
]  # fmt: skip

_DEFAULTS = {
    "output_padding": 0, "dilation": 1, "groups": 1, "layout": None, "activation": None,
    "use_bias": True, "weight_initializer": None, "bias_initializer": "zeros", "in_channels": 0,
}  # fmt: skip
_PLAIN = [name for name in _DEFAULTS if name != "output_padding"]


class _Layer(HybridBlock):
    """One operator with its parameters, in the order of its inputs, and an activation."""

    op = ""
    fixed: dict[str, Any] = {}  # noqa: RUF012 - not written
    act: Any = None

    def __init__(self, prefix: Any = None, params: Any = None, **attributes: Any) -> None:
        super().__init__(prefix)
        unknown = attributes.keys() - (OPERATORS[self.op].attributes if self.op else attributes)
        if unknown:
            raise MXNetTypeError(f"{type(self).__name__} has no argument {min(unknown)!r}.")
        self._attributes = {**self.fixed, **attributes}

    def hybrid_forward(self, F: Any, x: Any, **parameters: Any) -> Any:  # noqa: N803
        result = getattr(F, self.op)(x, *parameters.values(), **self._attributes)
        return result if self.act is None else self.act(result)

    def _learn(self, name: str, learned: bool, size: int, init: Any) -> None:
        """Add a parameter; calls follow the order of the operator's inputs."""
        setattr(self, name, Parameter(name, "write" if learned else "null", (size,), init=init))

    def _finish(
        self, size: int, biased: bool, init: Any, activation: str | None, dtype: Any = np.float32
    ) -> None:
        """Add a bias and an activation, if requested."""
        self.bias = Parameter("bias", shape=(size,), dtype=dtype, init=init) if biased else None
        self.act = Activation(activation) if activation else None

    def __repr__(self) -> str:
        attributes = ", ".join(f"{name}={value}" for name, value in self._attributes.items())
        return f"{type(self).__name__}({attributes})"


class Activation(_Layer):
    """An activation by its name: relu, sigmoid, tanh, softrelu, softsign, ..."""

    op = "Activation"

    def __init__(self, activation: str, **named: Any) -> None:
        super().__init__(**named, act_type=activation)


class LeakyReLU(_Layer):
    """x where x is positive, alpha * x elsewhere."""

    op, fixed = "LeakyReLU", {"act_type": "leaky"}

    def __init__(self, alpha: float, **named: Any) -> None:
        super().__init__(**named, slope=alpha)


class ELU(LeakyReLU):
    """x where x is positive, alpha * (exp(x) - 1) elsewhere."""

    fixed = {"act_type": "elu"}  # noqa: RUF012

    def __init__(self, alpha: float = 1.0, **named: Any) -> None:
        super().__init__(alpha, **named)


class PReLU(_Layer):
    """LeakyReLU with a learned alpha for each channel, or one for all channels."""

    op, fixed = "LeakyReLU", {"act_type": "prelu"}

    def __init__(self, alpha_initializer: Any = 0.25, in_channels: int = 1, **named: Any) -> None:
        super().__init__(**named)
        self.alpha = Parameter("alpha", shape=(in_channels,), init=alpha_initializer)


class SELU(_Layer):
    """The self-normalizing ELU, with its two constants."""

    op, fixed = "LeakyReLU", {"act_type": "selu"}


class GELU(_Layer):
    """x times the cumulative distribution of the standard normal at x."""

    op, fixed = "LeakyReLU", {"act_type": "gelu"}


class Swish(_Layer):
    """x * sigmoid(beta * x)."""

    def __init__(self, beta: float = 1.0, **named: Any) -> None:
        super().__init__(**named, beta=beta)

    def hybrid_forward(self, F: Any, x: Any, **parameters: Any) -> Any:  # noqa: N803
        return x * F.sigmoid(x * self._attributes["beta"])


SiLU = Swish


class HybridLambda(HybridBlock):
    """A block that computes f(F, *inputs) or F.f(*inputs), where F is `mx.nd` or `mx.sym`."""

    def __init__(self, function: Any, prefix: str | None = None) -> None:
        super().__init__(prefix)
        named = isinstance(function, str)
        require(not named or hasattr(nd, function), f"mx.nd has no function {function!r}")
        if not named and not callable(function):
            raise MXNetValueError(f"function is {brief(function)}; expected a callable or a name.")
        self._function = function

    def hybrid_forward(self, F: Any, *inputs: Any) -> Any:  # noqa: N803
        named = isinstance(self._function, str)
        return getattr(F, self._function)(*inputs) if named else self._applied(F, *inputs)

    def _applied(self, F: Any, *inputs: Any) -> Any:  # noqa: N803
        return self._function(F, *inputs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self._function, '__name__', self._function)})"


class Lambda(HybridLambda):
    """A block that computes f(*inputs) on arrays; f may be the name of a function of `mx.nd`."""

    def _applied(self, F: Any, *inputs: Any) -> Any:  # noqa: N803
        return self._function(*inputs)


class Flatten(_Layer):
    """A layer that joins all axes except the first."""

    op = "Flatten"


class Dropout(_Layer):
    """A layer that sets elements to zero at a given rate, only in training."""

    op = "Dropout"

    def __init__(self, rate: float, axes: Any = (), **named: Any) -> None:
        super().__init__(**named, p=rate, axes=axes)


class Dense(_Layer):
    """x W^T + b; `flatten` joins all axes of x except the first."""

    op = "FullyConnected"

    def __init__(
        self, units: int, activation: str | None = None, use_bias: bool = True,
        flatten: bool = True, dtype: Any = np.float32, weight_initializer: Any = None,
        bias_initializer: Any = "zeros", in_units: int = 0, **named: Any,
    ) -> None:  # fmt: skip
        super().__init__(**named, num_hidden=units, no_bias=not use_bias, flatten=flatten)
        self.weight = Parameter(
            "weight", shape=(units, in_units), dtype=dtype, init=weight_initializer
        )
        self._finish(units, use_bias, bias_initializer, activation, dtype)


def _repeated(value: Any, rank: int) -> tuple[int, ...]:
    with raised_by("sizes of a layer"):
        return (value,) * rank if isinstance(value, int) else tuple(value)


def _per_axis(name: str, value: Any, rank: int) -> tuple[int, ...]:
    """Return one integer for each axis."""
    sizes = _repeated(value, rank)
    require(len(sizes) == rank, f"{name} is {value}; expected an int or {rank} of them")
    return sizes


class _Convolution(_Layer):
    """A convolution over `rank` axes, transposed or not."""

    rank, transposed = 0, False
    layouts: tuple[str, ...] = ()

    def __init__(
        self, channels: int, kernel_size: Any, strides: Any = 1, padding: Any = 0, *values: Any,
        **named: Any,
    ) -> None:  # fmt: skip
        order = list(_DEFAULTS) if self.transposed else _PLAIN
        options = {**_DEFAULTS, **dict(zip(order, values, strict=False)), **named}
        unknown = named.keys() - {*order, "prefix", "params"}
        if unknown or len(values) > len(order):
            raise MXNetTypeError(f"{type(self).__name__} has no arguments {sorted(unknown)}.")
        layout = options["layout"] or self.layouts[0]
        require(layout in self.layouts, f"layout is {layout!r}; expected one of {self.layouts}")
        kernel, groups = _per_axis("kernel_size", kernel_size, self.rank), options["groups"]
        self.outpad = _per_axis("output_padding", options["output_padding"], self.rank)
        self.op = "Deconvolution" if self.transposed else "Convolution"
        super().__init__(
            kernel=kernel, stride=_repeated(strides, self.rank), pad=_repeated(padding, self.rank),
            dilate=_repeated(options["dilation"], self.rank), num_filter=channels, num_group=groups,
            no_bias=not options["use_bias"], layout=layout,
            **({"adj": self.outpad} if self.transposed else {}),
        )  # fmt: skip
        inputs = options["in_channels"]
        with raised_by("channels or groups"):
            ends = (inputs, channels // groups) if self.transposed else (channels, inputs // groups)
        shape = (ends[0], *kernel, ends[1]) if layout[-1] == "C" else (*ends, *kernel)
        self.weight = Parameter("weight", shape=shape, init=options["weight_initializer"])
        bias, init = options["use_bias"], options["bias_initializer"]
        self._finish(channels, bias, init, options["activation"])

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the operator."""
        return dict(self._attributes)


def _layer(name: str, rank: int, transposed: bool, layouts: tuple[str, ...]) -> Any:
    kind = "Transposed convolution" if transposed else "Convolution"
    doc = f"{kind} over {rank} axes; an integer applies to each. Layouts: {', '.join(layouts)}."
    names = {"__doc__": doc, "rank": rank, "transposed": transposed, "layouts": layouts}
    return type(name, (_Convolution,), {**names, "__module__": __name__})


Conv1D = _layer("Conv1D", 1, False, ("NCW",))
Conv2D = _layer("Conv2D", 2, False, ("NCHW", "NHWC"))
Conv3D = _layer("Conv3D", 3, False, ("NCDHW", "NDHWC"))
Conv1DTranspose = _layer("Conv1DTranspose", 1, True, ("NCW",))
Conv2DTranspose = _layer("Conv2DTranspose", 2, True, ("NCHW", "NHWC"))
Conv3DTranspose = _layer("Conv3DTranspose", 3, True, ("NCDHW", "NDHWC"))


class _Pool(_Layer):
    """A pooling over the spatial axes; strides default to the pool size."""

    op, rank = "Pooling", 0
    layouts: tuple[str, ...] = ()

    def __init__(
        self, pool_size: Any = 2, strides: Any = None, padding: Any = 0, layout: str | None = None,
        ceil_mode: bool = False, **named: Any,
    ) -> None:  # fmt: skip
        layout = layout or self.layouts[0]
        require(layout in self.layouts, f"layout is {layout!r}; expected one of {self.layouts}")
        kernel = _per_axis("pool_size", pool_size, self.rank)
        super().__init__(
            **named, kernel=kernel, pad=_per_axis("padding", padding, self.rank), layout=layout,
            stride=kernel if strides is None else _per_axis("strides", strides, self.rank),
            pooling_convention="full" if ceil_mode else "valid",
        )  # fmt: skip


def _pool(name: str, rank: int) -> Any:
    everywhere, kind = "Global" in name, "max" if "Max" in name else "avg"
    axes, text = "DHW"[-rank:], "Maximum" if kind == "max" else "Average"
    names = {"rank": rank, "layouts": (f"NC{axes}", f"N{axes}C"), "__module__": __name__}
    names["__doc__"] = f"{text} of {'all positions' if everywhere else 'each window'}."
    names["fixed"] = {"pool_type": kind, "global_pool": everywhere}
    return type(name, (_Pool,), names)


__getattr__ = absent("gluon.nn.")
globals().update({name: _pool(name, rank) for name, rank in _POOLS})


class ReflectionPad2D(_Layer):
    """A border of `padding` positions mirrored at the edge, or of Pad's eight widths."""

    op, fixed = "Pad", {"mode": "reflect"}

    def __init__(self, padding: Any = 0, **named: Any) -> None:
        widths = (0,) * 4 + (padding,) * 4 if isinstance(padding, int) else padding
        super().__init__(**named, pad_width=widths)


class InstanceNorm(_Layer):
    """Normalization of each instance's channels, which are axis 1."""

    op = "InstanceNorm"

    def __init__(
        self, axis: int = 1, epsilon: float = 1e-5, center: bool = True, scale: bool = False,
        beta_initializer: Any = "zeros", gamma_initializer: Any = "ones", in_channels: int = 0,
        **named: Any,
    ) -> None:  # fmt: skip
        require(axis == 1, f"axis is {axis}; upconv.mxnet normalizes instances along axis 1 only")
        super().__init__(**named, eps=epsilon)
        self._learn("gamma", scale, in_channels, gamma_initializer)
        self._learn("beta", center, in_channels, beta_initializer)


class BatchNorm(_Layer):
    """Batch normalization; in training the backward pass updates its running statistics."""

    op = "BatchNorm"

    def __init__(
        self, axis: int = 1, momentum: float = 0.9, epsilon: float = 1e-5, center: bool = True,
        scale: bool = True, use_global_stats: bool = False, beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones", running_mean_initializer: Any = "zeros",
        running_variance_initializer: Any = "ones", in_channels: int = 0, **named: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            **named, axis=axis, momentum=momentum, eps=epsilon, fix_gamma=not scale,
            use_global_stats=use_global_stats,
        )  # fmt: skip
        self._learn("gamma", scale, in_channels, gamma_initializer)
        self._learn("beta", center, in_channels, beta_initializer)
        self._learn("running_mean", False, in_channels, running_mean_initializer)
        self._learn("running_var", False, in_channels, running_variance_initializer)

    def cast(self, dtype: Any) -> None:
        super().cast(np.float32 if np.dtype(dtype) == np.float16 else dtype)
