"""What arrays and symbols share: operators between them, and operators' names as methods."""

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
"""Functions of two arrays, or of an array and a number, by the names that they have in MXNet."""


class Fluent:
    """A value that operators apply to; `_apply` computes an operator, or adds it to a graph."""

    numpy_like = False
    wide = "broadcast_"  # how the operators of two begin that apply to shapes that differ
    __array_priority__ = 1000.0  # a number of NumPy on the left leaves the operator to us

    def _apply(self, row: Operator, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        raise NotImplementedError

    def call(self, name: str, *values: Any, **named: Any) -> Any:
        """Apply the operator of this name, in `mx.np` the one it has there, to self and others."""
        numpy_name = f"_npi_{name}"
        row = OPERATORS[numpy_name if self.numpy_like and numpy_name in OPERATORS else name]
        if named.get("out", 0) is None:  # numpy.sum and its like pass it on
            del named["out"]
        inputs, attributes = row.bind((self, *values), named)
        return self._apply(row, [x for x in inputs if x is not None], attributes)

    def __getattr__(self, name: str) -> Any:
        """Every operator is a method by its name."""
        if name.startswith("_") or name not in OPERATORS:
            raise AttributeError(f"{type(self).__name__} has no {name!r}.")
        return partial(self.call, name)

    def reshape(self, *shape: Any, **named: Any) -> Any:
        """The same elements in another shape, in which MXNet's codes may be but for `mx.np`."""
        codes = named.pop("shape", shape[0] if len(shape) == 1 else shape)
        return self.call("reshape", **{"newshape" if self.numpy_like else "shape": codes}, **named)

    def with_other(self, word: str, other: Any, left: bool = False) -> Any:
        """An operator of two, the other being a number or of self's kind, on the left or not."""
        start, wide = ("_npi_", "_npi_") if self.numpy_like else ("_", self.wide)
        word = NUMPY_WORDS.get(word, word) if self.numpy_like else word
        if isinstance(other, Fluent):
            row = OPERATORS[f"{wide}{word}"]
            return self._apply(row, [other, self] if left else [self, other], {})
        row = OPERATORS[f"{start}{'r' if left else ''}{word}_scalar"]
        return self._apply(row, [self], {"scalar": other})

    def __neg__(self) -> Any:
        return self.call("negative")

    def __abs__(self) -> Any:
        return self.call("abs")

    T: Any = property(lambda self: self.call("transpose"), doc="The axes in the opposite order.")


def _fits(other: Any) -> bool:
    """Whether an operator takes it: an array or a symbol, or a number."""
    return isinstance(other, (Fluent, Number, np.number, np.bool_))


def _add_operator(name: str, word: str) -> None:
    def apply(self: Fluent, other: Any) -> Any:
        return self.with_other(word, other) if _fits(other) else NotImplemented

    def apply_left(self: Fluent, other: Any) -> Any:
        return self.with_other(word, other, left=True) if _fits(other) else NotImplemented

    setattr(Fluent, f"__{name}__", apply)
    if f"_r{word}_scalar" in OPERATORS:
        setattr(Fluent, f"__r{name}__", apply_left)


for _name, _word in _DUNDERS.items():
    _add_operator(_name, _word)
Fluent.__hash__ = object.__hash__  # type: ignore[method-assign]


def two(word: str, first: Any, second: Any) -> Any:
    """A function of two of which at least one is an array or a symbol."""
    if isinstance(first, Fluent):
        return first.with_other(word, second)
    if isinstance(second, Fluent):
        return second.with_other(word, first, left=True)
    raise MXNetTypeError(f"{word} takes arrays or symbols; got {type(first)} and {type(second)}.")


def named(name: str, function: Callable[[str, Operator], Any]) -> Any:
    """What `mx.nd` and `mx.sym` have by the name of an operator, which `function` makes callable.

    It is not kept in the module, where it would hide max, sum and so on of Python.
    """
    if name in FUNCTIONS:
        return lambda lhs, rhs: two(FUNCTIONS[name], lhs, rhs)
    if name not in OPERATORS:
        raise AttributeError(f"upconv.mxnet has no operator {name!r}; docs/mxnet.md lists them.")
    return function(name, OPERATORS[name])
