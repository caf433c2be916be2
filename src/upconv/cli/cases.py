"""A layer with data, in one direction: what every contender is given and what it must return.

The data is drawn from a fixed seed. What is expected comes from the reference engine in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np

from ..arrays import Array, dtype_of
from ..ops import conv_transpose, conv_transpose_backward
from ..problem import Direction, DType, Problem
from ..testing import tolerance
from .layers import Layer

_SEED = 7


class Way(Enum):
    """What is measured: the result, the gradient of the data, or of the weight."""

    FORWARD = "forward"
    DATA = "data"
    WEIGHT = "weight"

    @property
    def need(self) -> str:
        """The gradient's name in `conv_transpose_backward`."""
        return {"data": "x", "weight": "weight"}[self.value]

    @property
    def direction(self) -> Direction:
        """As a problem calls it."""
        return {
            Way.FORWARD: Direction.FORWARD,
            Way.DATA: Direction.INPUT_GRAD,
            Way.WEIGHT: Direction.WEIGHT_GRAD,
        }[self]


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of doing a case: `run` does the work once, `result` gives it as a NumPy array.

    `family` groups settings of one library; `workspace_bytes` is None where it cannot be asked.
    """

    name: str
    family: str
    run: Callable[[], object]
    result: Callable[[], Array]
    workspace_bytes: int | None = None


@dataclass(frozen=True)
class Case:
    """Data for a layer, in NCX and IOX: x, w, bias b, gradient g; all of `dtype`."""

    layer: Layer
    way: Way
    dtype: DType

    @cached_property
    def problem(self) -> Problem:
        """The problem to solve."""
        forward = self.layer.problem(self.dtype)
        if self.way is Way.FORWARD:
            return forward
        return forward.replace(direction=self.way.direction, bias=False)

    @property
    def flop(self) -> int:
        """Floating-point operations of the direct algorithm."""
        return 2 * self.problem.multiply_adds

    @cached_property
    def x(self) -> Array:
        """The input."""
        return self._drawn(0, self.layer.x_shape)

    @cached_property
    def w(self) -> Array:
        """The weight."""
        return self._drawn(1, self.layer.w_shape)

    @cached_property
    def b(self) -> Array:
        """The bias."""
        return self._drawn(2, (self.layer.oc,))

    @cached_property
    def g(self) -> Array:
        """The gradient of the result."""
        return self._drawn(3, self.problem.y_shape)

    @cached_property
    def expected(self) -> Array:
        """The result in float64, by the reference engine."""
        x, w, b = (a.astype(np.float64) for a in (self.x, self.w, self.b))
        how = {**self.layer.keywords, "engine": "reference"}
        if self.way is Way.FORWARD:
            return conv_transpose(x, w, b, **how)
        grad = self.g.astype(np.float64)
        found = conv_transpose_backward(grad, x, w, needs=(self.way.need,), **how)
        gradient: Array = getattr(found, self.way.need)
        return gradient

    @property
    def tolerance(self) -> float:
        """The largest `error` that rounding explains: summing, and storing the result."""
        return tolerance(self.problem) + self.problem.dtype.epsilon

    def error(self, result: Array) -> float:
        """The largest |result - expected| over the largest |expected|; inf for another shape."""
        if result.shape != self.expected.shape:
            return float("inf")
        largest = float(np.abs(self.expected).max()) or 1.0
        worst = float(np.abs(result.astype(np.float64) - self.expected).max()) / largest
        return worst if np.isfinite(worst) else float("inf")

    def new_result(self) -> Array:
        """An array to write into, full of NaN so that nothing left unwritten looks right."""
        return np.full(self.problem.result_shape, np.nan, dtype_of(self.dtype.value))

    def _drawn(self, stream: int, shape: tuple[int, ...]) -> Array:
        generator = np.random.default_rng((_SEED, stream))
        return generator.standard_normal(shape, np.float32).astype(dtype_of(self.dtype.value))
