"""Elementwise arithmetic and functions: short tables with derivatives.

MXNet has four forms of each binary operator: elemwise_* for equal shapes, broadcast_*, with a
number on the right (_*_scalar) and on the left (_r*_scalar). `mx.np` has further copies (_npi_*).
One entry of `BINARY` defines them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...activations import erf
from ...errors import ShapeError
from .table import Array, Call, Shape, define, same_shape, same_type

Function = Callable[..., Any]


def _sigmoid(x: Array) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * x))  # exp(-x) would overflow


def _softplus(x: Array) -> Any:
    return np.logaddexp(x, np.zeros((), x.dtype))


def _mish_slope(x: Array) -> Any:
    t = np.tanh(_softplus(x))
    return t + x * _sigmoid(x) * (1 - t * t)


# key: the function of x, its derivative from x and y
UNARY: dict[str, tuple[Function, Function]] = {
    "relu": (lambda x: np.maximum(x, 0), lambda x, y: x > 0),
    "sigmoid": (_sigmoid, lambda x, y: y * (1 - y)),
    "tanh": (np.tanh, lambda x, y: 1 - y * y),
    "softrelu": (_softplus, lambda x, y: _sigmoid(x)),
    "softsign": (lambda x: x / (1 + np.abs(x)), lambda x, y: 1 / np.square(1 + np.abs(x))),
    "log_sigmoid": (lambda x: -_softplus(-x), lambda x, y: _sigmoid(-x)),
    "mish": (lambda x: x * np.tanh(_softplus(x)), lambda x, y: _mish_slope(x)),
    "negative": (np.negative, lambda x, y: -1),
    "abs": (np.abs, lambda x, y: np.sign(x)),
    "sign": (np.sign, lambda x, y: 0),
    "exp": (np.exp, lambda x, y: y),
    "log": (np.log, lambda x, y: 1 / x),
    "sqrt": (np.sqrt, lambda x, y: 0.5 / y),
    "square": (np.square, lambda x, y: 2 * x),
    "reciprocal": (lambda x: 1 / x, lambda x, y: -y * y),
    "sin": (np.sin, lambda x, y: np.cos(x)),
    "cos": (np.cos, lambda x, y: -np.sin(x)),
    "erf": (erf, lambda x, y: 2 / np.sqrt(np.pi) * np.exp(-x * x)),
    "floor": (np.floor, lambda x, y: 0),
    "ceil": (np.ceil, lambda x, y: 0),
    "identity": (np.array, lambda x, y: 1),
    "BlockGrad": (np.array, lambda x, y: 0),
    "zeros_like": (np.zeros_like, lambda x, y: 0),
    "ones_like": (np.ones_like, lambda x, y: 0),
}
_ALIASES = {"identity": ("_copy", "_np_copy"), "abs": ("_npi_absolute",)}
_ALIASES |= {"BlockGrad": ("stop_gradient",), "relu": ("_npx_relu",), "sigmoid": ("_npx_sigmoid",)}

# key: the function of x and y, its derivative by each from x, y and the result
BINARY: dict[str, tuple[Function, ...]] = {
    "add": (np.add, lambda x, y, z: 1, lambda x, y, z: 1),
    "sub": (np.subtract, lambda x, y, z: 1, lambda x, y, z: -1),
    "mul": (np.multiply, lambda x, y, z: y, lambda x, y, z: x),
    "div": (np.divide, lambda x, y, z: 1 / y, lambda x, y, z: -z / y),
    "mod": (np.mod, lambda x, y, z: 1, lambda x, y, z: -np.floor(x / y)),
    "power": (
        np.power,
        lambda x, y, z: y * np.power(x, y - 1),
        lambda x, y, z: z * np.log(np.where(x > 0, x, 1)),
    ),
    "maximum": (np.maximum, lambda x, y, z: x >= y, lambda x, y, z: x < y),
    "minimum": (np.minimum, lambda x, y, z: x <= y, lambda x, y, z: x > y),
    "equal": (np.equal,),
    "not_equal": (np.not_equal,),
    "greater": (np.greater,),
    "greater_equal": (np.greater_equal,),
    "lesser": (np.less,),
    "lesser_equal": (np.less_equal,),
}
ELEMENTWISE: dict[str, tuple[str, bool]] = {}
"""Each operator's key in `UNARY` or `BINARY`, and whether its number is on the left."""
_SYNONYMS = {"add": ("plus",), "sub": ("minus",)}
_ELEMWISE = ("add", "sub", "mul", "div")
"""Keys whose operator for equal shapes is elemwise_*; for other keys it is _*."""
NUMPY_WORDS = {"sub": "subtract", "mul": "multiply", "div": "true_divide", "lesser": "less"}
NUMPY_WORDS |= {"lesser_equal": "less_equal"}
"""Keys of `BINARY` that NumPy, and therefore `mx.np`, names differently."""


def summed_to(grad: Any, shape: Shape) -> Array:
    """Sum a gradient over the axes along which an operand of this shape was repeated."""
    extra = grad.ndim - len(shape)
    axes = [a for a in range(grad.ndim) if a < extra or shape[a - extra] == 1 != grad.shape[a]]
    return np.asarray(grad.sum(tuple(axes)).reshape(shape) if axes else grad)


def _define(
    names: list[str], word: str, function: Function, slopes: Any, left: bool | None = None,
    **rest: Any,
) -> None:  # fmt: skip
    """Define one operator under its names; `left` is None without a number, else the number's side.

    The older operators return the common type of their inputs, even for comparisons. Comparisons
    have no derivative.
    """
    older = not names[0].startswith("_npi")
    ELEMENTWISE[names[0]] = word, bool(left)

    def operands(c: Call, inputs: Any) -> Any:
        if left is None:
            return inputs
        x = inputs[0]
        number = c.p.scalar
        if older or x.dtype.kind == "f":
            number = np.asarray(number).astype(x.dtype)  # as in C: -1 of uint8 is 255
        return (number, x) if left else (x, number)

    def forward(c: Call, *inputs: Array) -> Array:
        if rest["shapes"] is not None:
            rest["shapes"](c.p, [x.shape for x in inputs])
        kinds = {x.dtype for x in inputs}
        if older and len(kinds) > 1:
            raise TypeError(f"the types {', '.join(map(str, kinds))} differ; expected one type.")
        with np.errstate(all="ignore"):
            y = np.asarray(function(*operands(c, inputs)))
        if older:
            return y.astype(inputs[0].dtype)
        widened = y.dtype == np.float64 and np.dtype(np.float64) not in kinds
        return y.astype(np.float32) if widened else y

    def backward(c: Call, grad: Array) -> list[Array]:
        with np.errstate(all="ignore"):
            grads = [
                grad * slope(*operands(c, c.inputs), c.outputs[0])
                for slope in (slopes if left is None else [slopes[left]])
            ]
        pairs = zip(grads, c.inputs, strict=True)
        return [np.asarray(summed_to(g, x.shape), x.dtype) for g, x in pairs]

    if not older:  # the types of the operands may differ
        rest["types"] = lambda p, inputs, outputs: (inputs, [None if slopes else np.dtype(bool)])
    none = lambda c, grad: [None] * len(c.inputs)  # noqa: E731
    define(" ".join(names), forward, backward if slopes else none, **rest)


def _define_all() -> None:
    for word, (function, slope) in UNARY.items():
        names = [word, f"_npi_{word}", f"_np_{word}", *_ALIASES.get(word, ())]
        _define(names, word, function, [slope], shapes=same_shape)
    two: dict[str, Any] = {"inputs": "lhs rhs", "shapes": None}
    one = {"attributes": "scalar:scalar=1.0 is_int:bool=True", "shapes": same_shape}
    for word, (function, *slopes) in BINARY.items():
        spellings, numpy_word = [word, *_SYNONYMS.get(word, ())], NUMPY_WORDS.get(word, word)
        equal = [f"{start}_{s}" for start in ("elemwise", "") for s in spellings]
        equal = equal if word in _ELEMWISE else equal[::-1]
        _define(equal, word, function, slopes, **{**two, "shapes": same_shape})
        _define([f"broadcast_{s}" for s in spellings], word, function, slopes, **two)
        _define([f"_npi_{numpy_word}"], word, function, slopes, **two)
        alike = word in ("add", "mul", "maximum", "minimum")  # the number's side does not matter
        sides = [(False, ["", "r"] if alike else [""])]
        for left, starts in [*sides, (True, ["r"])] if slopes and not alike else sides:
            names = [f"_{r}{s}_scalar" for r in starts for s in reversed(spellings)]
            _define(names, word, function, slopes, left, **one)
            names = [f"_npi_{r}{numpy_word}_scalar" for r in starts]
            _define(names, word, function, slopes, left, **one)


def _clip_gradient(c: Call, grad: Array) -> list[Array]:
    x, y = c.inputs[0], c.outputs[0]
    return [np.where((x < y) | (x > y), 0, grad)]  # NaN is not clipped


_define_all()
define(
    "clip _npi_clip",
    lambda c, x: np.asarray(np.clip(x, c.p.a_min, c.p.a_max), x.dtype),
    _clip_gradient,
    attributes="a_min:number? a_max:number?",
    shapes=same_shape,
)
define(
    "MakeLoss make_loss",
    lambda c, x: np.array(x),
    lambda c, grad: [np.full_like(grad, c.p.grad_scale)],
    attributes="grad_scale:number=1",
    shapes=same_shape,
)
define(
    "Cast cast _npx_cast",
    lambda c, x: x.astype(c.p.dtype),
    lambda c, grad: [grad.astype(c.inputs[0].dtype)],
    attributes="dtype:dtype",
    shapes=same_shape,
)


def chosen(condition: Array, x: Shape) -> Array:
    """Return the mask of a condition; a condition with one axis selects rows of x."""
    rows = condition.ndim == 1 and condition.shape == x[:1]
    if not rows and condition.shape != x:
        raise ShapeError("the shape of condition", str(condition.shape), f"{x} or {x[:1]}")
    return np.not_equal(condition, 0).reshape(condition.shape + (1,) * (len(x) - condition.ndim))


def _select(c: Call, condition: Array, x: Array, y: Array) -> Array:
    same_shape(c.p, [x.shape, y.shape])
    return np.where(chosen(condition, x.shape), x, y)


def _select_gradients(c: Call, grad: Array) -> list[Array | None]:
    mask = chosen(c.inputs[0], grad.shape)
    return [None, np.where(mask, grad, 0), np.where(mask, 0, grad)]


define(
    "where",
    _select,
    _select_gradients,
    inputs="condition x y",
    shapes=lambda p, inputs, outs: ([inputs[0], *(r := same_shape(p, inputs[1:], outs))[0]], r[1]),
    types=lambda p, inputs, outs: ([inputs[0], *(r := same_type(p, inputs[1:], outs))[0]], r[1]),
)
define(
    "add_n ElementWiseSum",
    lambda c, *inputs: np.asarray(sum(inputs[1:], inputs[0].copy())),
    lambda c, grad: [grad] * len(c.inputs),
    inputs="arg{}",
    attributes="num_args:few",
    shapes=same_shape,
)
