"""A model's ConvTranspose nodes, parsed for passes, rules and trials.

Runtimes read auto_pad and output_shape differently (see `upconv.dialects.onnx`). A node is read by
the requested rule, by default ONNX's own. `departures` names the rules that read it differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import onnx_ir as ir

from ..argument_checks import function
from ..dialects import Layer, arguments, from_onnx
from ..dialects.onnx import AutoPad, Rule
from ..errors import DTypeError, ModelError, UpconvError, brief
from ..geometry import Axis
from .constants import Constant, constant_value
from .graphs import is_op, named, opset_of, roots

ANY_SIZE = 1 << 24
"""The size that stands for a dynamic one: a power of two above all strides in practice."""

_READ = {
    *("kernel_shape", "strides", "pads", "dilations", "output_padding", "output_shape"),
    *("group", "auto_pad"),
}

Sizes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ConvTransposeNode:
    """A ConvTranspose node, y = conv_transpose(x, w) + b, with everything that is known about it.

    `sizes` are x's spatial sizes. An unknown size is None; the axis then has `ANY_SIZE`, and
    kernel, stride, dilation and crops hold for every size. `weight` is w's value, or why it has
    none. `departures` are the rules under which the node has another result. `x`, `w`, `b` and `y`
    are looked up at each use, as rewriting an earlier node replaces the values that this one reads.
    """

    node: ir.Node
    opset: int
    layer: Layer
    sizes: Sizes
    weight: Constant
    departures: tuple[Rule, ...]

    @property
    def name(self) -> str:
        """The node's name, or its output's name if it has none."""
        return named(self.node)

    @property
    def x(self) -> ir.Value:
        """The input, (N, C, *sizes)."""
        return cast(ir.Value, self.node.inputs[0])

    @property
    def w(self) -> ir.Value:
        """The weight, (C, M/groups, *k)."""
        return cast(ir.Value, self.node.inputs[1])

    @property
    def b(self) -> ir.Value | None:
        """The bias, (M,)."""
        return self.node.inputs[2] if len(self.node.inputs) > 2 else None

    @property
    def y(self) -> ir.Value:
        """The output, (N, M, *out)."""
        return self.node.outputs[0]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The geometry, one axis per spatial axis."""
        return self.layer.axes

    @property
    def groups(self) -> int:
        """The number of groups."""
        return self.layer.groups

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.layer.axes)

    @property
    def auto_pad(self) -> AutoPad:
        """The padding mode of the node."""
        return AutoPad(self.node.attributes.get_string("auto_pad", "NOTSET"))

    @property
    def has_output_shape(self) -> bool:
        """Whether the node states the sizes of its output."""
        return "output_shape" in self.node.attributes


@dataclass(frozen=True, slots=True, eq=False)
class Unreadable:
    """A ConvTranspose node that cannot be read, and why, in one sentence.

    `wrong` is true if ONNX, or the rule by which the node is read, forbids such a node. Otherwise
    the model does not say enough about it.
    """

    node: ir.Node
    opset: int
    reason: str
    wrong: bool = False


def conv_transpose_nodes(
    model: ir.Model, rule: Rule | None = None, only: Callable[[ir.Node], bool] | None = None
) -> list[ConvTransposeNode | Unreadable]:
    """Return all ConvTranspose nodes of a model, its subgraphs and functions, in order.

    only: a function that selects nodes; None selects all.

    >>> import onnx_ir as ir
    >>> model = ir.from_onnx_text('''<ir_version: 8, opset_import: ["": 17]>
    ...     g (float[N, 1, L] x) => (float[N, 1, M] y)
    ...     <float[1, 1, 2] w = {1, 1}> { y = ConvTranspose<strides = [2]>(x, w) }''')
    >>> [conv] = conv_transpose_nodes(model)
    >>> conv.axes[0].stride, conv.sizes
    (2, (None,))
    """
    if not isinstance(model, ir.Model):
        got = f"{brief(model)} ({type(model).__name__})"
        raise DTypeError("model", got, "the result of upconv.onnx.load")
    function("only", only, "a node")
    if rule is not None and not isinstance(rule, Rule):
        rule = arguments.member("rule", rule, Rule)
    return [
        read(node, opset_of(model, body), rule)
        for body in roots(model)
        for node in body.all_nodes()
        if is_op(node, "ConvTranspose") and (only is None or only(node))
    ]


def read(node: ir.Node, opset: int, rule: Rule | None = None) -> ConvTransposeNode | Unreadable:
    """Read a ConvTranspose node by `rule`; None means the ONNX specification."""
    try:
        return _read(node, opset, rule)
    except (UpconvError, _UnknownError) as error:
        reason, wrong = " ".join(str(error).split()), isinstance(error, UpconvError)
        return Unreadable(node, opset, reason, wrong)


def known_sizes(value: ir.Value | None) -> Sizes | None:
    """Return a value's declared sizes, None for dynamic ones; None if its rank is unknown."""
    if value is None or value.shape is None:
        return None
    return tuple(d if isinstance(d, int) and d >= 0 else None for d in value.shape)


class _UnknownError(Exception):
    """Something about a node cannot be known."""


def _read(node: ir.Node, opset: int, rule: Rule | None) -> ConvTransposeNode:
    x, w = [*node.inputs, None, None][:2]
    if x is None or w is None:
        raise ModelError("it has no input or no weight")
    weight, attributes = constant_value(w), _attributes(node)
    kernel = _kernel(w, weight, attributes.pop("kernel_shape", None))
    sizes = _sizes(x, len(kernel))
    layer, departures = _layer(kernel, sizes, attributes, opset, rule)
    conv = ConvTransposeNode(node, opset, layer, sizes, weight, departures)
    _check_channels(conv)
    return conv


def _attributes(node: ir.Node) -> dict[str, Any]:
    """Return the attributes that the node states, under ONNX's names."""
    parameters = [name for name, attribute in node.attributes.items() if attribute.is_ref()]
    if parameters:
        raise _UnknownError(f"its {parameters[0]} is a parameter of the function that contains it")
    return {name: node.attributes[name].value for name in node.attributes if name in _READ}


def _kernel(w: ir.Value, weight: Constant, stated: Sequence[int] | None) -> tuple[int, ...]:
    shape = known_sizes(w) if weight.array is None else weight.array.shape
    if shape is None and is_op(producer := w.producer(), "DequantizeLinear"):
        shape = known_sizes(next(iter(producer.inputs), None))
    if shape is None and stated is not None:
        return tuple(stated)
    if shape is None or len(shape) < 3 or None in shape[2:]:
        raise _UnknownError(f"the shape of its weight is {shape}; a (C, M/group, *k) is needed")
    if weight.array is not None and stated is not None and tuple(stated) != shape[2:]:
        raise ModelError(f"its kernel_shape contradicts its weight, {shape}")
    return tuple(int(k) for k in shape[2:] if k is not None)


def _sizes(x: ir.Value, rank: int) -> Sizes:
    shape = known_sizes(x)
    if shape is None:
        return (None,) * rank
    if len(shape) != rank + 2:
        raise ModelError(f"its input has {len(shape)} axes and its weight {rank + 2}")
    return shape[2:]


def _layer(
    kernel: tuple[int, ...], sizes: Sizes, attributes: dict[str, Any], opset: int, rule: Rule | None
) -> tuple[Layer, tuple[Rule, ...]]:
    """Read the layer by one rule; return it and the rules under which its crops differ."""
    if "output_shape" in attributes and None in sizes:
        raise _UnknownError(
            "it has an output_shape, so its crops depend on the size of its input, which is not"
            " known; state the sizes of the model's inputs"
        )
    size = tuple(ANY_SIZE if size is None else size for size in sizes)

    def by(one: Rule) -> Layer:
        return from_onnx(size, kernel, **attributes, opset=opset, rule=one.value)

    def crops(one: Rule) -> object:
        try:
            return by(one).crops
        except UpconvError:
            return None  # a refusal is not another reading

    layer = by(rule or Rule.SPEC)
    return layer, tuple(other for other in Rule if crops(other) not in (None, layer.crops))


def _check_channels(conv: ConvTransposeNode) -> None:
    """Raise unless the channels of weight, bias and input fit each other."""
    array, groups = conv.weight.array, conv.groups
    if array is None:
        return
    if not array.size:
        raise ModelError(f"its weight {array.shape} is empty")
    if array.shape[0] % groups:
        raise ModelError(f"its weight has {array.shape[0]} input channels, group is {groups}")
    x, outs = known_sizes(conv.x), groups * array.shape[1]
    if x is not None and x[1] not in (None, array.shape[0]):
        raise ModelError(f"its input has {x[1]} channels and its weight {array.shape[0]}")
    b = constant_value(conv.b).array
    if b is not None and b.shape != (outs,):
        raise ModelError(f"its bias is {b.shape}; expected ({outs},)")
