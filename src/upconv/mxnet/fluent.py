"""Methods that arrays and symbols share: arithmetic, and every operator by its name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Number
from typing import Any

import numpy as np

from .base import MXNetTypeError
from .operators import OPERATORS, Operator
from .operators.elementwise import NUMPY_WORDS

_DUNDERS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "mod": "mod", "pow": "power",
    "eq": "equal", "ne": "not_equal", "gt": "greater", "ge": "greater_equal", "lt": "lesser",
    "le": "lesser_equal",
}  # fmt: skip
FUNCTIONS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div",
    "modulo": "mod", "power": "power", "maximum": "maximum", "minimum": "minimum",
}  # fmt: skip
"""Functions of two arrays, or of an array and a number, by their names in MXNet."""


class Fluent:
    """A value to which operators apply; `_apply` computes an operator or adds it to a graph."""

    numpy_like = False
    arithmetic_prefix = "broadcast_"  # of operators on shapes that differ
    __array_priority__ = 1000.0  # NumPy numbers on the left leave arithmetic to this class

    def _apply(self, operator: Operator, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        raise NotImplementedError

    def call(self, name: str, *values: Any, **named: Any) -> Any:
        """Apply the operator of this name, or its variant in `mx.np`, to self and others."""
        numpy_name = f"_npi_{name}"
        operator = OPERATORS[numpy_name if self.numpy_like and numpy_name in OPERATORS else name]
        if named.get("out", 0) is None:  # numpy.sum and similar functions pass it on
            del named["out"]
        inputs, attributes = operator.bind((self, *values), named)
        return self._apply(operator, [x for x in inputs if x is not None], attributes)

    def __getattr__(self, name: str) -> Any:
        """Return an operator as a method."""
        if name.startswith("_") or name not in OPERATORS:
            raise AttributeError(f"{type(self).__name__} has no {name!r}.")
        return partial(self.call, name)

    def reshape(self, *shape: Any, **named: Any) -> Any:
        """Return the elements in another shape, which may use MXNet's codes outside `mx.np`."""
        codes = named.pop("shape", shape[0] if len(shape) == 1 else shape)
        return self.call("reshape", **{"newshape" if self.numpy_like else "shape": codes}, **named)

    def with_other(self, word: str, other: Any, left: bool = False) -> Any:
        """Apply arithmetic with a number or a value of the same kind on either side."""
        start, prefix = ("_npi_",) * 2 if self.numpy_like else ("_", self.arithmetic_prefix)
        word = NUMPY_WORDS.get(word, word) if self.numpy_like else word
        if isinstance(other, Fluent):
            operator = OPERATORS[f"{prefix}{word}"]
            return self._apply(operator, [other, self] if left else [self, other], {})
        operator = OPERATORS[f"{start}{'r' if left else ''}{word}_scalar"]
        return self._apply(operator, [self], {"scalar": other})

    def __neg__(self) -> Any:
        return self.call("negative")

    def __abs__(self) -> Any:
        return self.call("abs")

    T: Any = property(lambda self: self.call("transpose"), doc="The array with its axes reversed.")


def _arithmetic(word: str, left: bool) -> Any:
    """Return a method that takes an array, a symbol or a number, on either side."""

    def apply(self: Fluent, other: Any) -> Any:
        fits = isinstance(other, (Fluent, Number, np.number, np.bool_))
        return self.with_other(word, other, left) if fits else NotImplemented

    return apply


for _name, _word in _DUNDERS.items():
    setattr(Fluent, f"__{_name}__", _arithmetic(_word, False))
    if f"_r{_word}_scalar" in OPERATORS:
        setattr(Fluent, f"__r{_name}__", _arithmetic(_word, True))
Fluent.__hash__ = object.__hash__  # type: ignore[method-assign]


def two(word: str, first: Any, second: Any) -> Any:
    """Apply arithmetic to two operands, at least one of which is an array or a symbol."""
    if isinstance(first, Fluent):
        return first.with_other(word, second)
    if isinstance(second, Fluent):
        return second.with_other(word, first, left=True)
    raise MXNetTypeError(f"{word} takes arrays or symbols; got {type(first)} and {type(second)}.")


def named(name: str, function: Callable[[str, Operator], Any], prefix: str = "") -> Any:
    """Return a function of `mx.nd`, `mx.np` or `mx.sym` by its name.

    function: creates it from an operator. prefix: the prefix of the operator's name. Modules do not
    store the result, because it would shadow built-ins such as max and sum.
    """
    if name in FUNCTIONS:
        return lambda lhs, rhs: two(FUNCTIONS[name], lhs, rhs)
    if f"{prefix}{name}" not in OPERATORS:
        raise AttributeError(f"upconv.mxnet has no operator {name!r}; docs/mxnet.md lists them.")
    return function(name, OPERATORS[f"{prefix}{name}"])
