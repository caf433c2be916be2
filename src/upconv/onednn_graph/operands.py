"""One oneDNN Graph operation as a transposed convolution: x, y and the weight, and its axes.

All names here refer to a transposed convolution: x has I positions and C_in channels, y has O
positions and C_out channels, the weight couples them. Every operation is a derivative of that form:

    operation                       x           y           result
    ConvTranspose                   src         dst         y
    ConvTransposeBackwardData       diff_src    diff_dst    x
    ConvTransposeBackwardWeights    src         diff_dst    the weight
    Convolution                     dst         src         x
    ConvolutionBackwardData         diff_dst    diff_src    y
    ConvolutionBackwardWeights      diff_dst    src         the weight

In the document a grouped weight of ConvTranspose in IOX is (C_in/groups, C_out, *k), and group j
has the j-th block of C_out. The library expects (C_in, C_out/groups, *k).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Required, TypedDict

import numpy as np

from ..arrays import Array
from ..dialects import arguments
from ..dialects.layer import Layer
from ..dialects.onednn_graph import (
    AutoPad,
    Operation,
    Rule,
    axes_of,
    convolved_size,
    weight_order,
    window_of,
)
from ..errors import ArgumentError, ShapeError
from ..problem import DataLayout, WeightLayout

Shape = tuple[int, ...]


class Attributes(TypedDict, total=False):
    """The attributes that all six operations have.

    strides, pads_begin, pads_end, dilations: one integer per spatial axis. Strides are required;
        omitted pads are 0, and omitted dilations are 1.
    auto_pad: None; "SAME_UPPER", "SAME_LOWER", "VALID" or "None" with rule="library", in lower case
        with rule="document". All but None replace the pads.
    groups: 1 if omitted. data_format: "NXC", or "NCX".
    weights_format: "XOI", or "IOX", of a ConvTranspose; "XIO", or "OIX", of a Convolution.
    rule: "library", or "document": which reading applies where libdnnl and oneDNN's document differ
        (docs/onednn-graph.md).
    """

    strides: Required[Any]
    pads_begin: Any
    pads_end: Any
    dilations: Any
    auto_pad: str | None
    groups: int
    data_format: str
    weights_format: str
    rule: str


@dataclass(frozen=True, slots=True)
class Data:
    """The caller's name for x or y, and its shape."""

    name: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Operands:
    """The transposed convolution; `regrouped`: whether the weight has the document's order."""

    layer: Layer
    regrouped: bool

    def library_weight(self, weight: Array) -> Array:
        """Return the caller's weight in the library's order: a view, or a copy if regrouped."""
        return self._regroup(weight, 0) if self.regrouped else weight

    def caller_weight(self, weight: Array) -> Array:
        """Convert a weight from the library's order to the order of the caller's rule."""
        return self._regroup(weight, 1) if self.regrouped else weight

    def _regroup(self, weight: Array, axis: int) -> Array:
        """Stack the groups, blocks of the other channel axis in IOX, along `axis`."""
        order = self.layer.weight_layout.to_iox(len(self.layer.axes))
        blocks = np.split(weight.transpose(order), self.layer.groups, axis=1 - axis)
        return np.concatenate(blocks, axis=axis).transpose(np.argsort(order))


def operands(
    operation: Operation,
    attributes: Attributes,
    weight: object,
    tensors: Mapping[str, Data],
    *,
    output_padding: object = None,
    dst_shape: object = None,
    library_same: bool = False,
) -> Operands:
    """Return an operation's problem, from the shapes of its weight and of x, y or both (`tensors`).

    library_same: whether both rules use the library's SAME, as for Convolution, which the document
    does not define. Raises `ArgumentError` or `ShapeError` for arguments that do not fit together.
    """
    for name in attributes.keys() - Attributes.__annotations__.keys():
        known = ", ".join(Attributes.__annotations__)
        raise ArgumentError("an attribute", repr(name), f"one of {known}")
    rule = arguments.member("rule", attributes.get("rule", "library"), Rule)
    layout = arguments.member("data_format", attributes.get("data_format", "NXC"), DataLayout)
    groups = arguments.integer("groups", attributes.get("groups", 1), low=1)
    rank = _rank(tensors)
    order = weight_order(attributes.get("weights_format"), operation)
    documented = rule is Rule.DOCUMENT and operation is Operation.CONV_TRANSPOSE
    shape = arguments.integers("weights_shape", weight, low=1)
    i, o, kernel = _channels(shape, order, rank, groups, documented=documented)
    sizes = {
        role: _spatial(data, layout, {"x": i, "y": o}[role], shape)
        for role, data in tensors.items()
    }
    _check_batch(tensors, layout)
    names = ("strides", "pads_begin", "pads_end", "dilations")
    mode = _auto_pad(attributes.get("auto_pad"), rule)
    window = window_of(mode, rank, kernel, **{name: attributes.get(name) for name in names})
    if "y" in tensors:
        dst_shape = tensors["y"].shape
    size = sizes["x"] if "x" in sizes else convolved_size(sizes["y"], window, mode)
    extra = arguments.per_axis("output_padding", output_padding, rank, low=0, absent=0)
    reader = Rule.LIBRARY if library_same else rule
    try:
        axes = axes_of(size, window, mode, reader, extra, dst_shape, layout)
    except ArgumentError as error:
        if "y" not in tensors:
            raise
        argument = error.argument.replace("dst_shape", f"{tensors['y'].name}.shape")
        raise type(error)(argument, error.got, error.expected, error.remedy) from None
    layer = Layer(axes, groups, layout, order)
    if "y" not in tensors and dst_shape is not None:
        wanted = layout.shape(tensors["x"].shape[0], o, layer.output_size)
        if arguments.integers("dst_shape", dst_shape, low=0) != wanted:
            raise ShapeError("dst_shape", str(dst_shape), f"{wanted}, as the operands imply")
    return Operands(layer, documented and groups > 1)


def _rank(tensors: Mapping[str, Data]) -> int:
    """Return the number of spatial axes, on which the operands must agree."""
    first, *others = tensors.values()
    rank = len(first.shape) - 2
    if not 1 <= rank <= 3:
        expected = "3 to 5 dimensions: batch, channels and 1 to 3 spatial axes"
        raise ShapeError(f"{first.name}.shape", str(first.shape), expected)
    for data in others:
        if len(data.shape) != rank + 2:
            expected = f"{rank + 2} dimensions, like {first.name}"
            raise ShapeError(f"{data.name}.shape", str(data.shape), expected)
    return rank


def _channels(
    shape: Shape, order: WeightLayout, rank: int, groups: int, *, documented: bool
) -> tuple[int, int, Shape]:
    """Return C_in, C_out and the kernel of a weight."""
    if len(shape) != rank + 2:
        expected = f"{rank + 2} dimensions, like the data"
        raise ShapeError("the weight's shape", str(shape), expected)
    i, o, *kernel = (shape[axis] for axis in order.to_iox(rank))
    divided = o if documented else i
    if divided % groups:
        expected = f"a divisor of {divided}, the weight's undivided channels"
        raise ArgumentError("groups", str(groups), expected, f"The weight's shape is {shape}.")
    return (i * groups, o, tuple(kernel)) if documented else (i, o * groups, tuple(kernel))


def _spatial(data: Data, layout: DataLayout, channels: int, weight: Shape) -> Shape:
    """Return the spatial size of x or y, whose channels are the weight's."""
    _, got, *size = (data.shape[axis] for axis in layout.to_ncx(len(data.shape) - 2))
    if got != channels:
        raise ShapeError(
            f"channels of {data.name}",
            str(got),
            f"{channels}, as the weight {weight} and groups imply",
            "See data_format and weights_format.",
        )
    return tuple(size)


def _check_batch(tensors: Mapping[str, Data], layout: DataLayout) -> None:
    batches = {data.name: data.shape[0] for data in tensors.values()}  # first in both layouts
    if len(set(batches.values())) > 1:
        got = " and ".join(f"{batch} in {name}" for name, batch in batches.items())
        raise ShapeError("the batch size", got, "one size")


def _auto_pad(value: object, rule: Rule) -> AutoPad:
    """Parse auto_pad in the rule's spelling; None means no auto_pad."""
    if value is None:
        return AutoPad.NONE
    words = {mode.value.lower() if rule is Rule.DOCUMENT else mode.value: mode for mode in AutoPad}
    word = arguments.text("auto_pad", value)
    if word not in words:
        expected = f"one of {', '.join(words)}, by rule {rule.value!r}"
        raise ArgumentError("auto_pad", repr(word), expected)
    return words[word]
