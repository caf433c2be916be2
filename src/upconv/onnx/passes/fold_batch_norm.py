"""A normalisation after a ConvTranspose in its weight and bias: `upconv.fold_batch_norm`.

    z = (y - mean) * gamma / sqrt(var + eps) + beta,   y = conv_transpose(x, w) + b

is a transposed convolution with another weight and bias. Arithmetic is in float64, rounded once.

Cases: 1. BatchNormalization in inference. 2. Mul, Add, Sub and Div by one constant per channel, as
which exporters and other folders leave one. 3. several of these in a row, folded together.

The weight, the bias and all parameters must be constant, and only the normalisation may read y.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ...errors import UpconvError
from ...normalization import fold_batch_norm
from ..building import Builder
from ..constants import DEFAULT_DOMAINS, constant_value
from ..nodes import ConvTransposeNode
from .base import Refusal, constant_float_weight, follower
from .wording import attributes, worded

_TRAINING_MODE = 14
"""From this opset on an attribute says that a node trains; before it its further outputs do."""


@dataclass(frozen=True, slots=True)
class FoldBatchNorm:
    """A ConvTranspose with the normalisation after it in its weight and bias."""

    @property
    def name(self) -> str:
        """Its name."""
        return "fold_batch_norm"

    def refuses(self, site: ConvTransposeNode) -> str | None:
        """Nothing to fold, anything that is computed or read by others, or weights too large."""
        refusal = constant_float_weight(site)
        if refusal is not None:
            return refusal
        try:
            _fold(site)
        except Refusal as refused:
            return str(refused)
        return None

    def rewrite(self, site: ConvTransposeNode, builder: Builder) -> None:
        """Cases 1 to 3."""
        fold = _fold(site)
        w, b = builder.constant(fold.weight, "weight"), builder.constant(fold.bias, "bias")
        said = attributes(site.axes, site.groups, worded(site).paddings)
        y = builder.deconv(site.x, w, b, said)
        builder.replace(fold.nodes[-1].outputs[0], y, [*fold.nodes[::-1], site.node])


@dataclass(frozen=True, slots=True)
class _Affine:
    """z = (y - mean) * gamma / sqrt(var + eps) + beta, vectors of one entry per channel."""

    gamma: Array
    beta: Array
    mean: Array
    var: Array
    eps: float = 0.0


@dataclass(frozen=True, slots=True)
class _Fold:
    """The new parameters, and the nodes that are in them."""

    weight: Array
    bias: Array
    nodes: tuple[ir.Node, ...]


def _fold(site: ConvTransposeNode) -> _Fold:
    if site.bias is not None and site.bias.array is None:
        raise Refusal(f"its bias is not constant: {site.bias.reason}")
    if any(worded(site).zeros):
        raise Refusal("its output is longer than ONNX's attributes can say; normalise it first")
    bias = np.zeros(_channels(site)) if site.bias is None else site.bias.array
    w, b = site.array.astype(np.float64), np.asarray(bias, np.float64)
    nodes: list[ir.Node] = []
    value, reason = site.y, ""
    while (node := follower(value)) is not None:
        try:
            one = _affine(node, value, site)
            w, b = _folded(w, b, one, site.groups)
        except Refusal as refusal:
            reason = str(refusal)
            break
        nodes.append(node)
        value = node.outputs[0]
    if not nodes:
        raise Refusal(reason or "nobody, or not one node alone, reads its output")
    return _Fold(_rounded(w, site.array.dtype), _rounded(b, site.array.dtype), tuple(nodes))


def _folded(w: Array, b: Array, one: _Affine, groups: int) -> tuple[Array, Array]:
    try:
        weight, bias = fold_batch_norm(
            w, b, one.gamma, one.beta, one.mean, one.var, eps=one.eps, groups=groups
        )
    except UpconvError as error:
        raise Refusal(f"it cannot be folded: {error}") from None
    return weight, bias


def _rounded(array: Array, dtype: np.dtype) -> Array:
    with np.errstate(over="ignore"):
        rounded = array.astype(dtype)
    if not np.isfinite(rounded.astype(np.float64)).all():
        raise Refusal(f"the folded weight or bias is not finite in {dtype}")
    return rounded


def _channels(site: ConvTransposeNode) -> int:
    return site.groups * int(site.array.shape[1])


def _affine(node: ir.Node, y: ir.Value, site: ConvTransposeNode) -> _Affine:
    reader = _READERS.get(node.op_type) if node.domain in DEFAULT_DOMAINS else None
    if reader is None or not node.outputs:
        raise Refusal(f"a {node.op_type} reads its output, which is no normalisation")
    return reader(node, y, site)


def _batch_norm(node: ir.Node, y: ir.Value, site: ConvTransposeNode) -> _Affine:
    """Case 1."""
    if len(node.inputs) != 5 or node.inputs[0] is not y:
        raise Refusal("the BatchNormalization after it is not of its output, or lacks parameters")
    trains = site.opset >= _TRAINING_MODE and _number(node, "training_mode", 0) != 0
    if trains or any(value.name for value in node.outputs[1:]):
        raise Refusal("the BatchNormalization after it is one for training")
    if not _number(node, "spatial", 1):
        raise Refusal("the BatchNormalization after it has statistics per position")
    gamma, beta, mean, var = (_constant(value, site) for value in node.inputs[1:])
    for vector in (gamma, beta, mean, var):
        if vector.shape != (_channels(site),):
            raise Refusal(f"the BatchNormalization after it has parameters of shape {vector.shape}")
    return _Affine(gamma, beta, mean, var, _number(node, "epsilon", 1e-5))


def _arithmetic(
    made: Callable[[Array], tuple[Array, Array]] | None,
    reversed_: Callable[[Array], tuple[Array, Array]] | None,
) -> Callable[[ir.Node, ir.Value, ConvTransposeNode], _Affine]:
    """Case 2: the scale and shift of y by c, and of c by y."""

    def read(node: ir.Node, y: ir.Value, site: ConvTransposeNode) -> _Affine:
        first = node.inputs[0] is y
        way = made if first else reversed_
        if way is None or len(node.inputs) != 2 or node.inputs[0] is node.inputs[1]:
            raise Refusal(f"the {node.op_type} after it is not linear in its output")
        c = _per_channel(_constant(node.inputs[1 if first else 0], site), site, node.op_type)
        with np.errstate(divide="ignore"):
            scale, shift = way(c)
        return _Affine(scale, shift, np.zeros_like(c), np.ones_like(c))

    return read


def _per_channel(c: Array, site: ConvTransposeNode, kind: str) -> Array:
    """c along the channels; one entry for each, which is all it may have."""
    rank, channels = site.rank + 2, _channels(site)
    shape: Sequence[int] = (1,) * (rank - c.ndim) + c.shape
    if (
        len(shape) != rank
        or shape[1] not in (1, channels)
        or any(size != 1 for axis, size in enumerate(shape) if axis != 1)
    ):
        raise Refusal(f"the constant of the {kind} after it is {c.shape}, not one per channel")
    return np.broadcast_to(c.reshape(-1), (channels,)).astype(np.float64)


def _constant(value: ir.Value | None, site: ConvTransposeNode) -> Array:
    constant = constant_value(value)
    if constant.array is None:
        raise Refusal(f"what normalises its output is not constant: {constant.reason}")
    try:
        return constant.array.astype(np.float64)
    except (TypeError, ValueError):
        raise Refusal("what normalises its output is no array of numbers") from None


def _number(node: ir.Node, name: str, absent: float) -> float:
    attribute = node.attributes.get(name)
    if attribute is None:
        return absent
    if attribute.is_ref() or not isinstance(attribute.value, (int, float)):
        raise Refusal(f"the {name} of the {node.op_type} after it is no number known here")
    return float(attribute.value)


def _one(c: Array) -> Array:
    return np.ones_like(c)


_READERS: dict[str, Callable[[ir.Node, ir.Value, ConvTransposeNode], _Affine]] = {
    "BatchNormalization": _batch_norm,
    "Mul": _arithmetic(lambda c: (c, 0 * c), lambda c: (c, 0 * c)),
    "Div": _arithmetic(lambda c: (1 / c, 0 * c), None),
    "Add": _arithmetic(lambda c: (_one(c), c), lambda c: (_one(c), c)),
    "Sub": _arithmetic(lambda c: (_one(c), -c), lambda c: (-_one(c), c)),
}
"""Operator -> how it is read."""
