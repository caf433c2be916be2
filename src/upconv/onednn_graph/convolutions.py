"""The six convolution operations as one layer: who is x, w and y, their shapes, the axes.

All names are a transposed convolution's: x has I positions and C_in channels, y has O positions and
C_out channels, w couples them. Each operation is one derivative of the same form:

    operation                       x           y           w              makes
    ConvTranspose                   src         dst         weights        y
    ConvTransposeBackwardData       diff_src    diff_dst    weights        x
    ConvTransposeBackwardWeights    src         diff_dst    diff_weights   w
    Convolution                     dst         src         weights        x
    ConvolutionBackwardData         diff_dst    diff_src    weights        y
    ConvolutionBackwardWeights      diff_dst    src         diff_weights   w

Pads become crops in `upconv.dialects.onednn_graph`. By the document a ConvTranspose weight is
(C_in/groups, C_out, *k) in IOX: group j owns the j-th block of C_out. The library has
(C_in, C_out/groups, *k). They differ where groups > 1.

What lives here: Convolved and what makes it. What never does: arithmetic on data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import Array
from ..dialects.layer import Layer
from ..dialects.onednn_graph import (
    WEIGHTS,
    AutoPad,
    Rule,
    convolved_size,
    from_onednn_graph,
)
from ..dialects.onednn_graph import Operation as Spelling
from ..errors import ArgumentError, ShapeError
from ..problem import DataLayout, WeightLayout
from .logical_tensors import Dims, Shape, joined, shown
from .operations import Operation
from .schemas import SCHEMAS


@dataclass(frozen=True, slots=True)
class Roles:
    """Which of x, w, y the two data inputs and the output are, and how weights are spelled."""

    inputs: tuple[str, str]
    output: str
    spelling: Spelling


ROLES: dict[str, Roles] = {
    "ConvTranspose": Roles(("x", "w"), "y", Spelling.CONV_TRANSPOSE),
    "ConvTransposeBackwardData": Roles(("y", "w"), "x", Spelling.CONV_TRANSPOSE),
    "ConvTransposeBackwardWeights": Roles(("x", "y"), "w", Spelling.CONV_TRANSPOSE),
    "Convolution": Roles(("y", "w"), "x", Spelling.CONVOLUTION_BACKWARD_DATA),
    "ConvolutionBackwardData": Roles(("x", "w"), "y", Spelling.CONVOLUTION_BACKWARD_DATA),
    "ConvolutionBackwardWeights": Roles(("y", "x"), "w", Spelling.CONVOLUTION_BACKWARD_DATA),
}


@dataclass(frozen=True, slots=True)
class Convolved:
    """An operation whose shapes are known.

    `layer` is the transposed convolution; `regrouped` says that the graph's weight is the
    document's; `result` is the shape of what the operation makes, `weight` of w in the graph.
    """

    roles: Roles
    layer: Layer
    regrouped: bool
    x: Shape
    y: Shape
    weight: Shape

    @property
    def result(self) -> Shape:
        """Shape of the output."""
        return {"x": self.x, "y": self.y, "w": self.weight}[self.roles.output]

    @property
    def channel_axis(self) -> int:
        """Which axis of the result, where it is data, holds the channels."""
        return 1 if self.layer.layout is DataLayout.NCX else len(self.x) - 1

    def weight_in(self, weight: Array) -> Array:
        """The graph's weight in the library's order: a view, or a copy where it is regrouped."""
        if not self.regrouped:
            return weight
        iox = weight.transpose(self._to_iox())
        groups, (i, o, *kernel) = self.layer.groups, iox.shape
        split = iox.reshape(i, groups, o // groups, *kernel).swapaxes(0, 1)
        return self._from_iox(split.reshape(groups * i, o // groups, *kernel))

    def weight_out(self, weight: Array) -> Array:
        """A weight in the library's order as the graph has it."""
        if not self.regrouped:
            return weight
        iox = weight.transpose(self._to_iox())
        groups, (i, o, *kernel) = self.layer.groups, iox.shape
        split = iox.reshape(groups, i // groups, o, *kernel).swapaxes(0, 1)
        return self._from_iox(split.reshape(i // groups, groups * o, *kernel))

    def _to_iox(self) -> tuple[int, ...]:
        return self.layer.weight_layout.to_iox(len(self.layer.axes))

    def _from_iox(self, weight: Array) -> Array:
        return weight.transpose(tuple(int(place) for place in np.argsort(self._to_iox())))


@dataclass(frozen=True, slots=True)
class _Data:
    """x or y taken apart by the layout."""

    batch: int
    channels: int
    size: Shape

    @classmethod
    def of(cls, shape: Shape, layout: DataLayout) -> _Data:
        batch, channels, *size = (shape[place] for place in layout.to_ncx(len(shape) - 2))
        return cls(batch, channels, tuple(size))


def convolved(
    operation: Operation,
    inputs: tuple[Dims, ...],
    output: Dims,
    told: tuple[int, ...] | None,
    rule: Rule,
) -> Convolved:
    """What an operation computes, from the dims of its tensors.

    `inputs` are the dims of the two data inputs, all known; `output` may be unknown; `told` is what
    a dst_shape or weights_shape tensor holds, if there is one and its data are known.

    Raises `ArgumentError` or `ShapeError` for what does not fit together.
    """
    roles, attributes = ROLES[operation.kind], operation.attributes
    shapes: dict[str, Any] = dict(zip(roles.inputs, inputs, strict=True))
    layout = DataLayout(attributes["data_format"])
    rank = _rank(operation, [*inputs, output])
    if roles.output == "w":
        shapes["w"] = _weights_shape(output, told, attributes["weights_shape"])
    weights = WEIGHTS[roles.spelling][attributes["weights_format"]]
    i, o, kernel, regrouped = _weight_extents(shapes["w"], weights, rank, operation, rule)
    data = {role: _Data.of(shapes[role], layout) for role in "xy" if role in shapes}
    _check_channels(operation.kind, data, i, o, shapes["w"])
    words = {
        name: attributes[name]
        for name in ("strides", "pads_begin", "pads_end", "dilations", "auto_pad")
    }
    words["auto_pad"] = _spelled(words["auto_pad"])
    if "x" in data:
        batch, size = data["x"].batch, data["x"].size
    else:
        batch, size = data["y"].batch, convolved_size(data["y"].size, kernel, **words)
    wanted = shapes["y"] if "y" in data else None
    if roles.output == "y":
        wanted = _dst_shape(operation, output, told, rule)
    asked = told is not None or (wanted is not None and wanted == attributes.get("dst_shape"))
    name = "dst_shape" if asked else f"dims of {_slot(operation.kind, 'y')}"
    try:
        layer = from_onednn_graph(
            size,
            kernel,
            **words,
            output_padding=attributes.get("output_padding"),
            dst_shape=wanted,
            groups=attributes["groups"],
            data_format=layout.value,
            weights_format=attributes["weights_format"],
            operation=roles.spelling.value,
            rule=_rule_of(operation, rule).value,
        )
    except ArgumentError as error:  # the dialect calls the wanted size dst_shape whoever wants it
        argument = error.argument.replace("dst_shape", name)
        raise type(error)(argument, error.got, error.expected, error.remedy) from None
    x, y = layout.shape(batch, i, size), layout.shape(batch, o, layer.output_size)
    made = Convolved(roles, layer, regrouped, x, y, shapes["w"])
    joined(name, wanted, y)
    joined(f"dims of {_slot(operation.kind, roles.output)}", output, made.result)
    return made


def _rank(operation: Operation, all_dims: list[Dims]) -> int:
    """Spatial axes of the tensors, which must agree."""
    slots = (*operation.schema.inputs[:2], *operation.schema.outputs)
    rank = len(all_dims[0] or ()) - 2
    if not 1 <= rank <= 3:
        expected = "3 to 5 dimensions: batch, channels, one to three of space"
        raise ShapeError(f"dims of {slots[0].name}", shown(all_dims[0]), expected)
    for slot, dims in zip(slots, all_dims, strict=True):
        if dims is not None and len(dims) != rank + 2:
            expected = f"{rank + 2} dimensions, as {slots[0].name} has"
            raise ShapeError(f"dims of {slot.name}", shown(dims), expected)
    return rank


def _weights_shape(output: Dims, told: Shape | None, attribute: Shape | None) -> Shape:
    """The weight's shape: the tensor's if there is one, else the output's, else the attribute's."""
    if told is not None:
        joined("weights_shape", told, output)
        return told
    if output is not None and None not in output:
        return tuple(size for size in output if size is not None)
    if attribute is None:
        remedy = "Give weights_shape, or the dims of diff_weights."
        raise ShapeError("dims of diff_weights", shown(output), "all known", remedy)
    joined("weights_shape", attribute, output)
    return attribute


def _dst_shape(operation: Operation, output: Dims, told: Shape | None, rule: Rule) -> Shape | None:
    """The wanted shape of y: the tensor's, the output's own if known, the attribute's, or none."""
    known = None
    if output is not None and None not in output:
        known = tuple(size for size in output if size is not None)
    attribute: Shape | None = operation.attributes.get("dst_shape")
    if told is not None:
        joined("dst_shape", told, known)
        return told
    if known is not None:
        if rule is Rule.DOCUMENT:  # the library takes what it knows and says nothing
            joined("dst_shape", attribute, known)
        return known
    return attribute


def _weight_extents(
    shape: Shape, weights: WeightLayout, rank: int, operation: Operation, rule: Rule
) -> tuple[int, int, Shape, bool]:
    """C_in, C_out, the kernel, and whether the weight is grouped as the document has it."""
    groups = operation.attributes["groups"]
    if len(shape) != rank + 2 or min(shape) < 1:
        expected = f"{rank + 2} sizes >= 1, in the order {operation.attributes['weights_format']}"
        raise ShapeError("dims of the weights", str(shape), expected)
    i, o, *kernel = (shape[place] for place in weights.to_iox(rank))
    documented = rule is Rule.DOCUMENT and ROLES[operation.kind].spelling is Spelling.CONV_TRANSPOSE
    whole, other = (o, i) if documented else (i, o)
    if whole % groups:
        expected = f"a divisor of {whole}, the weight's whole channels"
        raise ArgumentError("groups", str(groups), expected, f"The weight's dims are {shape}.")
    if documented:
        return other * groups, whole, tuple(kernel), groups > 1
    return whole, other * groups, tuple(kernel), False


def _check_channels(kind: str, data: dict[str, _Data], i: int, o: int, weight: Shape) -> None:
    """Channels of x and y are the weight's, and their batches are one."""
    for role, wanted in (("x", i), ("y", o)):
        if role in data and data[role].channels != wanted:
            raise ShapeError(
                f"channels of {_slot(kind, role)}",
                str(data[role].channels),
                f"{wanted}, by the weight {weight} and groups",
                "See data_format and weights_format.",
            )
    if len({one.batch for one in data.values()}) > 1:
        sizes = " and ".join(f"{one.batch} in {_slot(kind, role)}" for role, one in data.items())
        raise ShapeError("the batch size", sizes, "one size")


def _slot(kind: str, role: str) -> str:
    """What an operation calls x, y or w."""
    roles, schema = ROLES[kind], SCHEMAS[kind]
    slots = dict(
        zip((*roles.inputs, roles.output), (*schema.inputs[:2], *schema.outputs), strict=True)
    )
    return slots[role].name


def _spelled(auto_pad: str) -> str:
    """The library's spelling of either rule's."""
    return next(mode.value for mode in AutoPad if mode.value.lower() == auto_pad.lower())


def _rule_of(operation: Operation, rule: Rule) -> Rule:
    """The document has formulas for the two operations that make y, and for those of gradients of
    ConvTranspose by analogy; a convolution's own padding is the usual one by both.
    """
    return Rule.LIBRARY if operation.kind in _USUAL else rule


_USUAL = ("Convolution", "ConvolutionBackwardWeights")
