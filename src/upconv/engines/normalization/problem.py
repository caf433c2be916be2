"""What is to be normalised, as one frozen value, and what an engine of it is.

Batch normalisation works channel by channel. With n elements in a channel, of data x,

    mean = sum(x) / n             var = sum((x - mean)**2) / n
    r = 1 / sqrt(var + eps)       xh = (x - mean) * r           y = gamma * xh + beta

and, g being the gradient of y,

    d_beta = sum(g)     d_gamma = sum(g * xh)
    d_x = gamma * r * (g - sum(g) / n - xh * sum(g * xh) / n)

Where mean and var are given, and not made from the batch, the sums drop out of d_x. (Ioffe and
Szegedy, "Batch Normalization", 2015, section 3.)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple, Protocol

import numpy as np

from ...problem import DType
from ..base import Array

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Normalization:
    """One batch normalisation forward, or its gradients where `backward`.

    `axis` is the channels'; `batch_statistics` says that mean and var are the batch's own.
    `strides` holds, in bytes, those of the arrays of x's shape: (x, y), or (grad, x, d_x). An
    engine works on arrays as they lie, so the layout is a part of the signature.

    >>> problem = Normalization((2, 6, 5), 1, DType.FLOAT32, ((120, 20, 4), (120, 20, 4)))
    >>> print(problem, problem.channels, problem.count)
    batch norm forward 2x6x5 axis 1 float32 batch statistics 6 10
    """

    shape: tuple[int, ...]
    axis: int
    dtype: DType
    strides: tuple[Strides, ...]
    eps: float = 1e-5
    batch_statistics: bool = True
    backward: bool = False
    accumulate: bool = False

    @property
    def channels(self) -> int:
        """How many channels there are."""
        return self.shape[self.axis]

    @property
    def count(self) -> int:
        """How many elements each channel has: n."""
        return prod(self.shape[: self.axis]) * prod(self.shape[self.axis + 1 :])

    def inverse_deviation(self, var: Array) -> Array:
        """r of every channel: 1 / sqrt(var + eps).

        0 where the batch's own variance and eps both are, so that a constant channel gives beta, as
        in MXNet's own code; given ones are divided by as they are, as everywhere.
        """
        with np.errstate(all="ignore"):
            total = var + self.eps
            invstd = 1 / np.sqrt(total)
        if self.batch_statistics:
            invstd[total == 0] = 0
        return np.asarray(invstd)

    def __str__(self) -> str:
        direction = "backward" if self.backward else "forward"
        size = "x".join(map(str, self.shape))
        statistics = "batch statistics" if self.batch_statistics else "given statistics"
        return f"batch norm {direction} {size} axis {self.axis} {self.dtype.value} {statistics}"


class Moments(NamedTuple):
    """Mean and biased variance of every channel: (C,), float64."""

    mean: Array
    var: Array


class Totals(NamedTuple):
    """Sums over every channel: (C,), float64. `g` is sum(g), `gx` is sum(g * xh)."""

    g: Array
    gx: Array


class NormPrimitive(Protocol):
    """One normalisation, ready to run; by many threads at once."""

    @property
    def workspace_bytes(self) -> int:
        """The most scratch memory one running call takes, in bytes."""

    @property
    def resident_bytes(self) -> int:
        """Memory kept while cached."""

    def forward(
        self, y: Array, x: Array, gamma: Array, beta: Array, given: Moments | None
    ) -> Moments:
        """Normalise x into y, and say by which moments: the `given` ones, or the batch's own.

        gamma, beta and moments: (C,), float64. y is x itself, or shares no memory with it.
        """

    def backward(
        self, dx: Array | None, grad: Array, x: Array, gamma: Array, mean: Array, invstd: Array
    ) -> Totals:
        """The gradients with respect to beta and gamma, and that of x into dx unless it is None.

        `invstd` is r above. dx is grad or x itself, or shares memory with neither.
        """

    def close(self) -> None:
        """Give back what the primitive holds."""


class NormEngine(Protocol):
    """A way of computing normalisations."""

    @property
    def name(self) -> str:
        """The word users write; the engine of the same name that convolves is its sibling."""

    def fingerprint(self) -> str:
        """What a built primitive depends on besides its problem."""

    def refuses(self, problem: Normalization) -> str | None:
        """None when it can do `problem`, else why not, in one sentence for people."""

    def build(self, problem: Normalization, threads: int, variant: str = "") -> NormPrimitive:
        """A primitive for a problem that is not refused; there are no variants."""
