"""What batch normalisation returns, and what its `out` is made of. Nothing is computed here."""

from __future__ import annotations

from typing import NamedTuple

from ..arrays import Array


class BatchNormResult(NamedTuple):
    """The results of `batch_norm`; in `out`, None where a new array is to be made.

    y: x's shape and dtype. saved_mean, saved_invstd: (C,), float64, what y was made with;
    invstd is 1 / sqrt(var + eps). moving_mean, moving_var: (C,), of mean's and var's dtypes, None
    where those were.

    >>> BatchNormResult().y is None
    True
    """

    y: Array | None = None
    saved_mean: Array | None = None
    saved_invstd: Array | None = None
    moving_mean: Array | None = None
    moving_var: Array | None = None


class BatchNormGradients(NamedTuple):
    """The gradients of one batch normalisation; None where one was not needed.

    >>> d_x, d_gamma, d_beta = BatchNormGradients()
    >>> d_gamma is None
    True
    """

    x: Array | None = None
    gamma: Array | None = None
    beta: Array | None = None
