"""A layer with data, in one direction: what every candidate is given and what it must return.

The data is drawn from a fixed seed. What is expected comes from the reference engine in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..arrays import Array, dtype_of
from ..ops import conv_transpose, conv_transpose_backward
from ..problem import Direction, DType, Problem
from ..testing import tolerance
from .layers import Layer

NEEDS = {Direction.INPUT_GRAD: "x", Direction.WEIGHT_GRAD: "weight"}
"""The gradients' names in `conv_transpose_backward`."""


@dataclass(frozen=True)
class Case:
    """Data for a layer, in NCX and IOX, of type `dtype`."""

    layer: Layer
    direction: Direction
    dtype: DType

    @property
    def forward(self) -> bool:
        """Whether the result is computed, and no gradient."""
        return self.direction is Direction.FORWARD

    @cached_property
    def problem(self) -> Problem:
        """The problem to solve."""
        problem = self.layer.problem(self.dtype)
        return problem if self.forward else problem.replace(direction=self.direction, bias=False)

    @property
    def flop(self) -> int:
        """Floating-point operations of the direct algorithm."""
        return 2 * self.problem.multiply_adds

    @cached_property
    def operands(self) -> tuple[Array, Array, Array]:
        """x (N, C, *size), w (C, M/groups, *k), and the bias (M,) or the gradient of the result."""
        last = (self.layer.oc,) if self.forward else self.problem.y_shape
        dtype, shapes = dtype_of(self.dtype.value), (self.layer.x_shape, self.layer.w_shape, last)
        draw = np.random.default_rng(7).standard_normal
        x, w, third = (draw(shape, np.float32).astype(dtype) for shape in shapes)
        return x, w, third

    @cached_property
    def expected(self) -> Array:
        """The result in float64, by the reference engine."""
        x, w, third = (array.astype(np.float64) for array in self.operands)
        how = {**self.layer.keywords, "engine": "reference"}
        if self.forward:
            return conv_transpose(x, w, third, **how)
        need = NEEDS[self.direction]
        found: Array = getattr(conv_transpose_backward(third, x, w, needs=(need,), **how), need)
        return found

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
