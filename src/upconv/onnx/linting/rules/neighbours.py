"""Rules about neighbouring operators that could be part of a layer."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import onnx_ir as ir

from ...constants import constant_value
from ...graphs import follower, is_op
from ...nodes import known_sizes
from ...passes import PASSES
from ..context import Context, attribute
from ..findings import Observation, quoted

_FOLDED = {
    **dict.fromkeys(("BatchNormalization", "Mul", "Div", "Add", "Sub"), "fold_batch_norm"),
    "Pad": "fold_pad",
    "Slice": "fold_slice",
}
"""Operator -> the pass that folds it into the node."""
FOLDS = tuple(dict.fromkeys(_FOLDED.values()))
"""The passes."""

_ALIGNED = {"asymmetric": ("floor",)} | dict.fromkeys(
    ("half_pixel", "pytorch_half_pixel"), ("round_prefer_floor", "round_prefer_ceil")
)
"""Coordinate mode of a Resize -> the nearest modes by which it repeats each element."""


def foldable_neighbour(context: Context) -> Iterator[Observation]:
    """A neighbouring operator can be folded into the node.

    Weight and bias can hold a BatchNormalization, or a scale or shift per channel, that follows;
    pads and output_padding can hold a Pad or a Slice before or after. As an operator of its own
    each reads and writes the whole array once more.

    Fix: `upconv lint --fix`, or `upconv rewrite IN OUT --passes NAME` with the pass that the
    message names: fold_batch_norm, fold_pad or fold_slice.
    """
    conv = context.conv
    if conv is None or conv.departures:
        return
    before = conv.x.producer()
    for where, node in (("precedes", before), ("follows", follower(conv.y))):
        by = None if node is None else _FOLDED.get(node.op_type)
        if node is None or by is None or (where == "precedes" and by == "fold_batch_norm"):
            continue
        if PASSES[by].refuses(conv) is None:
            yield Observation(
                f"{node.op_type} {quoted(node.name)} {where} and can be folded into the node by the"
                f" pass {by}.",
                {"neighbour": node.name, "operator": node.op_type, "pass": by},
            )
            return


def resize_before_conv(context: Context) -> Iterator[Observation]:
    """A Resize that repeats each element comes before a convolution.

    Nearest-neighbour upsampling by s and a convolution with kernel k compute the same as one
    transposed convolution with kernel k + s - 1 and stride s, which multiplies less: 4 products per
    output and channel against 9 for k = 3 and s = 2 in two dimensions. Its weight is the sum of s
    shifted copies per axis, so it makes no checkerboard that the pair does not make.

    Fix: If the layer is slow, replace the pair in the code that exports the model; for k = 3 and
    s = 2 by ConvTranspose2d(kernel_size=4, stride=2, padding=1).
    """
    x = next(iter(context.node.inputs), None)
    resize, shape = None if x is None else x.producer(), known_sizes(context.weight)
    kernel = [k for k in shape[2:] if k is not None] if shape else []
    steps = [attribute(context.node, n) for n in ("strides", "dilations")]
    if x is None or resize is None or follower(x) is not context.node:
        return
    scales = _repeats(resize, len(kernel))
    if scales and all(step == 1 for one in steps for step in one or ()):
        products = prod((k + s - 1) / s for k, s in zip(kernel, scales, strict=True))
        yield Observation(
            f"The Resize {quoted(resize.name)} repeats elements {scales} times before a kernel of"
            f" {kernel}: {prod(kernel)} products per output and channel, {products:g} as one"
            " transposed convolution.",
            {"resize": resize.name, "scales": scales, "kernel": kernel},
        )


def _repeats(node: ir.Node, rank: int) -> list[int] | None:
    """How often a Resize repeats the elements of each spatial axis, None where it does not."""
    if not is_op(node, "Resize") or len(node.inputs) < 3:
        return None
    words = {name: held.value for name, held in node.attributes.items() if not held.is_ref()}
    modes = _ALIGNED.get(words.get("coordinate_transformation_mode", "half_pixel"), ())
    if words.get("nearest_mode", "round_prefer_floor") not in modes:
        return None
    scales = constant_value(node.inputs[2]).array
    if words.get("mode", "nearest") != "nearest" or scales is None or scales.ndim != 1:
        return None
    if len(scales) != rank + 2 or not all(float(scale).is_integer() for scale in scales):
        return None
    first, second, *whole = map(int, scales)
    return whole if first == second == 1 and max(whole) > 1 and min(whole) > 0 else None
