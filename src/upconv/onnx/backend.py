"""ConvTranspose by ONNX's exact text, on NumPy arrays, and as a backend in ONNX's manner.

    conv_transpose(X, W, B, **attributes)      one node
    ConvTransposeBackend                       models of such nodes, and nothing else

What the attributes mean is read in `upconv.dialects.from_onnx`, by the text or as a runtime reads
it; what the operands must look like is checked here, so that errors speak of X, W, B and of ONNX's
attributes. ONNX's own backend tests run on the backend.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
from onnx import ModelProto, NodeProto
from onnx.backend.base import Backend, BackendRep

from .. import ops
from ..arrays import Array, as_array, optional_array
from ..dialects import from_onnx
from ..engines.base import Engine
from ..errors import ArgumentError, DTypeError, ModelError, ShapeError, brief
from .checker import NEWEST_OPSET, reported
from .constants import DEFAULT_DOMAINS

BFLOAT16_SINCE = 22
"""The opset that added bfloat16 to the operator."""

_OURS = {"x": "X", "weight": "W", "bias": "B", "groups": "group"}
_NAMES = re.compile(r"^(x|weight|bias|groups)\b")


def conv_transpose(
    X: Any,  # noqa: N803 - ONNX's names of the operands
    W: Any,  # noqa: N803
    B: Any = None,  # noqa: N803
    *,
    auto_pad: object = "NOTSET",
    dilations: object = None,
    group: object = 1,
    kernel_shape: object = None,
    output_padding: object = None,
    output_shape: object = None,
    pads: object = None,
    strides: object = None,
    opset: object = BFLOAT16_SINCE,
    rule: object = "spec",
    engine: str | Engine | None = None,
) -> Array:
    """ONNX's ConvTranspose: what a node with these attributes makes of these operands.

    X: (N, C, *size). W: (C, M/group, *kernel). B: (M,) or None. All float16, float32, float64 or,
        from opset 22 on, bfloat16 (ml_dtypes), and of one type.
    Attributes: as in a model, lists, bytes and all; None is one that is absent. `pads` lists all
        begins, then all ends.
    opset: of the node; the sides of odd totals were exchanged in opset 11.
    rule: whose reading where they part: "spec", "onnxruntime" or "openvino".
    engine: as in `upconv.conv_transpose`.

    Returns (N, M, *output_size), of X's type. Raises `ArgumentError` (`ShapeError`, `DTypeError`)
    naming the operand or attribute, and `MemoryLimitError` before allocating.

    >>> import numpy as np
    >>> X, W = np.float32([[[1, 2]]]), np.float32([[[1, 10, 100]]])
    >>> conv_transpose(X, W, strides=[2], auto_pad="SAME_UPPER")
    array([[[  1.,  10., 102.,  20.]]], dtype=float32)
    >>> conv_transpose(X, W, strides=[2], pads=[1, 0], output_shape=None)
    array([[[ 10., 102.,  20., 200.]]], dtype=float32)
    """
    x, w, b = as_array("X", X), as_array("W", W), optional_array("B", B)
    for name, operand in (("X", x), ("W", w)):
        if len(operand.shape) != max(3, len(x.shape)):
            meant = "(N, C, *size)" if name == "X" else "(C, M/group, *kernel)"
            axes = f"{max(3, len(x.shape))} axes: {meant}"
            raise ShapeError(
                f"{name}.shape", str(operand.shape), axes, "One of length 1 is an axis."
            )
    if str(x.dtype) == "bfloat16" and opset in range(BFLOAT16_SINCE):
        raise DTypeError("X.dtype", "bfloat16", "another", f"So says opset {opset}.")
    layer = from_onnx(
        x.shape[2:],
        w.shape[2:] if kernel_shape is None else kernel_shape,
        strides=strides,
        pads=pads,
        dilations=dilations,
        output_padding=output_padding,
        output_shape=output_shape,
        auto_pad=auto_pad,
        group=group,
        opset=opset,
        rule=rule,
    )
    if layer.kernel != w.shape[2:]:
        raise ShapeError("kernel_shape", str(layer.kernel), f"{w.shape[2:]}, that of W, or absent")
    try:
        return ops.conv_transpose(x, w, b, **layer.keywords(), engine=engine)
    except ArgumentError as error:
        name = _NAMES.sub(lambda found: _OURS[found[0]], error.argument)
        raise type(error)(name, error.got, error.expected, error.remedy) from None


class ConvTransposeBackend(Backend):  # type: ignore[misc]  # onnx is not typed
    """A backend, as `onnx.backend.base` has them, for models of ConvTranspose nodes.

    >>> text = '<ir_version: 8, opset_import: ["": 11]> '
    >>> text += "g (float[1,1,2] x, float[1,1,3] w) => (float[1,1,5] y)"
    >>> model = onnx.parser.parse_model(text + "{ y = ConvTranspose <strides = [2]> (x, w) }")
    >>> import numpy as np
    >>> x, w = np.float32([[[1, 2]]]), np.float32([[[1, 10, 100]]])
    >>> ConvTransposeBackend.run_model(model, [x, w])
    (array([[[  1.,  10., 102.,  20., 200.]]], dtype=float32),)
    """

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **_: Any) -> bool:
        """Whether a model has ConvTranspose nodes and no others."""
        return cls.supports_device(device) and all(map(_is_ours, model.graph.node))

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **_: Any) -> ConvTransposeRun:
        """A model ready to run; raises `ModelError` for what is no sound model of such nodes."""
        _require_device(device)
        with reported():
            onnx.checker.check_model(model)
        opset = next(o.version for o in model.opset_import if o.domain in DEFAULT_DOMAINS)
        weights = model.graph.initializer
        constants = {one.name: ir.serde.deserialize_tensor(one).numpy() for one in weights}
        for node in model.graph.node:
            _require_ours(node)
        inputs = [i.name for i in model.graph.input if i.name not in constants]
        outputs = [o.name for o in model.graph.output]
        return ConvTransposeRun(tuple(model.graph.node), inputs, outputs, constants, opset)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: object = None,  # noqa: ARG003 - onnx's signature
        **keywords: Any,
    ) -> tuple[Array, ...]:
        """The outputs of one node; `opset_version` among the keywords tells its opset."""
        _require_device(device)
        with reported():
            onnx.checker.check_node(node)
        opset = keywords.get("opset_version", NEWEST_OPSET)
        names = [name for name in node.input if name]
        return _run([node], _named(names, inputs), list(node.output), opset)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether this backend runs there: on the processor, that is."""
        return device.split(":")[0] == "CPU"


@dataclass(frozen=True, slots=True)
class ConvTransposeRun(BackendRep):  # type: ignore[misc]  # onnx is not typed
    """A prepared model: its nodes in order, and what is known before it runs."""

    nodes: tuple[NodeProto, ...]
    inputs: Sequence[str]
    outputs: Sequence[str]
    constants: Mapping[str, Array]
    opset: int

    def run(self, inputs: Any, **_: Any) -> tuple[Array, ...]:
        """The model's outputs; inputs: a sequence in the model's order, or arrays by name."""
        fed = _named(self.inputs, inputs)
        return _run(self.nodes, {**self.constants, **fed}, self.outputs, self.opset)


def _run(
    nodes: Sequence[NodeProto], known: Mapping[str, Any], wanted: Sequence[str], opset: int
) -> tuple[Array, ...]:
    values = dict(known)
    for node in nodes:
        _require_ours(node)
        operands = [values[name] if name else None for name in _known(node.input, values)]
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        values[node.output[0]] = conv_transpose(*operands, **attributes, opset=opset)
    return tuple(values[name] for name in _known(wanted, values))


def _known(names: Sequence[str], values: Mapping[str, Any]) -> Sequence[str]:
    for name in names:
        if name and name not in values:
            raise ModelError(f"{brief(name)} is used before anything defines it.")
    return names


def _named(names: Sequence[str], inputs: Any) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    arrays = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if len(arrays) != len(names):
        raise ArgumentError("inputs", f"{len(arrays)} arrays", f"{len(names)}: {', '.join(names)}")
    return dict(zip(names, arrays, strict=True))


def _is_ours(node: NodeProto) -> bool:
    return node.op_type == "ConvTranspose" and node.domain in DEFAULT_DOMAINS


def _require_ours(node: NodeProto) -> None:
    if not _is_ours(node):
        what = f"{node.op_type} node {brief(node.name or next(iter(node.output), ''))}"
        raise ModelError(f"{what}: expected ConvTranspose nodes; run others elsewhere.")


def _require_device(device: str) -> None:
    if not ConvTransposeBackend.supports_device(device):
        raise ArgumentError("device", brief(device), "'CPU'")
