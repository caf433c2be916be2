"""Batch normalization folded into the previous layer: `fold_batch_norm`.

In inference y = gamma * (z - mean) * r + beta, r = 1 / sqrt(var + eps), is linear in z. If z is the
result of a convolution, transposed or not, folding scales output channel f of the weight:

    weight'[.., f, ..] = weight[.., f, ..] * s[f]
    bias'[f] = (bias[f] - mean[f]) * s[f] + beta[f]

with s = gamma * r. An ordinary convolution's weight has all output channels on axis O. On that
axis, a transposed convolution's weight has the output channels of one group. Row i of its axis I
belongs to group j = i // (C / groups), whose output o is channel j * (F / groups) + o.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import memory
from ..argument_checks import boolean, frozen, one_of
from ..arrays import Array, as_array, element_type
from ..errors import ArgumentError, ShapeError, brief
from ..problem import WeightLayout
from ..signatures import WeightOrder
from .checks import epsilon, per_channel, required


class FoldedWeights(NamedTuple):
    """A layer's weight and bias that include a normalization.

    >>> FoldedWeights(np.ones((1, 1, 2)), np.zeros(1)).bias
    array([0.])
    """

    weight: Array
    bias: Array


@memory.bounded("the folded weight")
def fold_batch_norm(
    weight: Any,
    bias: Any = None,
    gamma: Any = None,
    beta: Any = None,
    mean: Any = None,
    var: Any = None,
    *,
    eps: float = 1e-5,
    groups: int = 1,
    weight_layout: WeightOrder = "IOX",
    transposed: bool = True,
    fix_gamma: bool = False,
) -> FoldedWeights:
    """Fold a batch normalization into the previous layer, for inference.

    `conv_transpose(x, *folded)` is `batch_norm(conv_transpose(x, weight, bias), ...)` up to
    rounding, for every stride, padding, dilation, layout and number of groups. The layer must have
    no activation; an activation after the normalization is unchanged.

    weight, groups, weight_layout: as in `conv_transpose`, or as in `conv` if not `transposed`.
    bias: (F,), or None for 0; F is the number of output channels over all groups.
    gamma, beta: (F,), or None for 1 and 0. `fix_gamma` treats gamma as 1.
    mean, var: (F,), the moving statistics. eps: added to var; every sum must be positive.

    The parameters have weight's dtype, or float32 with a 16-bit weight. Products are computed in
    float64 and rounded once.

    Returns `FoldedWeights`: `.weight` of weight's shape and `.bias` (F,), new arrays with weight's
    dtype. Raises `ArgumentError` (`ShapeError`, `DTypeError`) or `MemoryLimitError`.

    >>> import numpy as np, upconv
    >>> w, b = np.ones((1, 2, 2)), np.array([0.0, 10.0])
    >>> mean, var = np.array([1.0, 12.0]), np.array([4.0, 0.25])
    >>> folded = fold_batch_norm(w, b, mean=mean, var=var, eps=0)
    >>> folded.weight, folded.bias
    (array([[[0.5, 0.5], [2. , 2. ]]]), array([-0.5, -4. ]))
    >>> x = np.array([[[1.0, 3.0]]])
    >>> upconv.batch_norm(upconv.conv_transpose(x, w, b), mean=mean, var=var, eps=0).y
    array([[[ 0. ,  1.5,  1. ], [-2. ,  4. ,  2. ]]])
    >>> upconv.conv_transpose(x, *folded)
    array([[[ 0. ,  1.5,  1. ], [-2. ,  4. ,  2. ]]])
    """
    weight = as_array("weight", weight)
    form = _Form.of(weight, groups, weight_layout, transposed=boolean("transposed", transposed))
    dtype = element_type("weight", weight.dtype)
    where = f"one value per output channel of weight {weight.shape} with groups={groups}"
    remedy = "Axis O of a transposed layer's weight has the channels of one group (weight_layout)."
    vectors = {
        name: per_channel(name, value, form.outputs, "weight", dtype, where, remedy)
        for name, value in (
            ("bias", bias),
            ("gamma", None if boolean("fix_gamma", fix_gamma) else gamma),
            ("beta", beta),
            ("mean", mean),
            ("var", var),
        )
    }
    why = "Folding is for inference, which normalizes with the moving statistics."
    moving_mean = required("mean", vectors["mean"], why).astype(np.float64)
    total = required("var", vectors["var"], why).astype(np.float64) + epsilon(eps)
    _require_positive(total)
    scale = _or(vectors["gamma"], 1.0) / np.sqrt(total)
    with np.errstate(all="ignore"):
        shifted = (_or(vectors["bias"], 0.0) - moving_mean) * scale + _or(vectors["beta"], 0.0)
        return FoldedWeights(form.scaled(weight, scale), shifted.astype(weight.dtype))


class _Form(NamedTuple):
    """The order of a weight's axes, its groups on axis I, and the number of output channels."""

    to_iox: tuple[int, ...]
    groups: int
    outputs: int

    @classmethod
    def of(cls, weight: Array, groups: object, layout: object, *, transposed: bool) -> _Form:
        order = one_of("weight_layout", frozen("weight_layout", layout), WeightLayout)
        if weight.ndim < 3 or not weight.size:
            expected = f"at least 3 axes ({order.value}), none of size 0"
            remedy = "Two axes are channels; the others belong to the kernel."
            raise ShapeError("weight.shape", str(weight.shape), expected, remedy)
        to_iox = order.to_iox(weight.ndim - 2)
        rows, per_group = (weight.shape[axis] for axis in to_iox[:2])
        divided = rows if transposed else per_group
        count = frozen("groups", groups, depth=0)
        if not isinstance(count, int) or count < 1 or divided % count:
            kind = "input" if transposed else "output"
            expected = f"a divisor of the {divided} {kind} channels of weight {weight.shape}"
            remedy = "Groups are equal blocks of channels; use 1 for an ordinary layer."
            raise ArgumentError("groups", brief(groups), expected, remedy)
        if not transposed:
            return cls(to_iox, 1, per_group)
        return cls(to_iox, count, per_group * count)

    def scaled(self, weight: Array, scale: Array) -> Array:
        """Return a new weight, with each output channel multiplied by its scale."""
        memory.require(3 * weight.nbytes, "the folded weight")
        result = np.empty(weight.shape, weight.dtype)
        source, target = weight.transpose(self.to_iox), result.transpose(self.to_iox)
        factors = scale.reshape(self.groups, -1, *[1] * (weight.ndim - 2))
        parts = (np.split(array, self.groups) for array in (source, target))
        for rows, scaled, factor in zip(*parts, factors, strict=True):
            scaled[...] = rows * factor
        return result


def _require_positive(total: Array) -> None:
    """Raise `ArgumentError` for a sum that makes the weight infinite or NaN."""
    wrong = np.flatnonzero(~(total > 0) | ~np.isfinite(total))
    if wrong.size:
        first = int(wrong[0])
        remedy = "A variance is not negative; with eps > 0 it may be 0."
        raise ArgumentError(f"var[{first}] + eps", f"{total[first]:g}", "a number > 0", remedy)


def _or(parameter: Array | None, default: float) -> Any:
    return default if parameter is None else parameter.astype(np.float64)
