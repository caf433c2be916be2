"""Random ConvTranspose models, for the tests of passes and of verification."""

import importlib
import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_texts import made, tensors


@dataclass(frozen=True)
class Case:
    """A model of one random ConvTranspose node, and an input for it."""

    model: onnx.ModelProto
    x: np.ndarray
    attributes: dict[str, Any] = field(hash=False)
    opset: int = 17
    open_sizes: bool = False

    def __str__(self) -> str:
        shape = "x".join(map(str, self.x.shape))
        w = numpy_helper.to_array(self.model.graph.initializer[0]).shape
        return f"x{shape} w{'x'.join(map(str, w))} opset{self.opset} {self.attributes}"


OPSETS = (13, 14, 15, 17, 18, 19, 20, 21, 22, 23, 24, 25)


def random_case(seed: int, *, opset: int | None = None, rank: int | None = None) -> Case:
    """Return a random valid ConvTranspose that ONNX Runtime does not refuse."""
    rng = random.Random(seed)
    rank = rank or rng.choice((1, 1, 2, 2, 2, 3))
    groups = rng.choice((1, 1, 2, 3))
    c, m = groups * rng.randint(1, 3), rng.randint(1, 3)
    kernel = [rng.randint(1, 5 if rank < 3 else 3) for _ in range(rank)]
    strides = [rng.randint(1, 4 if rank < 3 else 2) for _ in range(rank)]
    if rng.random() < 0.3:
        strides = [rng.choice((1, 2))] * rank
    dilations = [rng.choice((1, 1, 2, 3)) for _ in range(rank)]
    size = [rng.randint(3, 7 if rank < 3 else 5) for _ in range(rank)]
    attributes: dict[str, Any] = {"group": groups, "strides": strides, "dilations": dilations}
    extra = [rng.randint(0, s - 1) if rng.random() < 0.4 else 0 for s in strides]
    if any(extra):
        attributes["output_padding"] = extra
    extents = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    full = [s * (i - 1) + e for s, i, e in zip(strides, size, extents, strict=True)]
    _padding(rng, attributes, full, extra, strides)
    if rng.random() < 0.5:
        attributes["kernel_shape"] = kernel
    opset = opset or rng.choice(OPSETS)
    shaped = "output_shape" in attributes
    open_sizes = not shaped and rng.random() < 0.5
    w = np.random.default_rng(seed).standard_normal((c, m, *kernel)).astype(np.float32)
    b = np.random.default_rng(seed + 1).standard_normal(groups * m).astype(np.float32)
    x = np.random.default_rng(seed + 2).standard_normal((rng.choice((1, 2)), c, *size))
    model = _model(x.shape, w, b if rng.random() < 0.6 else None, attributes, opset, open_sizes)
    return Case(model, x.astype(np.float32), attributes, opset, open_sizes)


def _padding(
    rng: random.Random,
    attributes: dict[str, Any],
    full: list[int],
    extra: list[int],
    strides: list[int],
) -> None:
    way = rng.choice(("pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID", "shape", "none"))
    if way == "pads":
        room = [f + a - 1 for f, a in zip(full, extra, strict=True)]
        begins = [rng.randint(0, min(4, r)) for r in room]
        ends = [rng.randint(0, min(4, r - b)) for r, b in zip(room, begins, strict=True)]
        attributes["pads"] = begins + ends
    elif way == "shape":
        attributes["output_shape"] = [
            rng.randint(max(1, f - 3), f + s - 1) for f, s in zip(full, strides, strict=True)
        ]
        if rng.random() < 0.5:
            attributes["auto_pad"] = rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    elif way != "none":
        attributes["auto_pad"] = way


def _model(
    shape: tuple[int, ...],
    w: np.ndarray,
    b: np.ndarray | None,
    attributes: dict[str, Any],
    opset: int,
    open_sizes: bool,
) -> onnx.ModelProto:
    arrays = {"w": w} if b is None else {"w": w, "b": b}
    declared: list[int | str] = list(shape)
    if open_sizes:
        declared = ["N", shape[1], *(f"size{i}" for i in range(len(shape) - 2))]
    node = helper.make_node("ConvTranspose", ["x", *arrays], ["y"], "deconv", **attributes)
    return made([node], arrays, declared, opset=opset, rank=len(shape))


def with_norm(case: Case, seed: int) -> Case:
    """Return the case with a random normalization after it, in one of its forms."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    attributes = case.attributes
    model = _copied(case.model)
    w = numpy_helper.to_array(model.graph.initializer[0])
    m = attributes["group"] * w.shape[1]
    kind = rng.choice(("BatchNormalization", "Mul", "Add", "Sub", "Div"))
    if kind == "BatchNormalization":
        vectors = numbers.standard_normal((4, m)).astype(np.float32)
        vectors[3] = np.abs(vectors[3]) + 0.1
        _follow(model, kind, dict(zip(("g", "be", "me", "va"), vectors, strict=True)), epsilon=0.01)
    else:
        c = numbers.standard_normal((m, *[1] * (w.ndim - 2))).astype(np.float32) + 3
        _follow(model, kind, {"c": c})
    return replace(case, model=model)


ACTIVATIONS = {
    **dict.fromkeys(("Relu", "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "Sigmoid"), 13),
    **dict.fromkeys(("Tanh", "Softplus", "Softsign"), 13),
    "HardSwish": 14,
    "Mish": 18,
    "Gelu": 20,
}
"""Activations, and the first opset of each."""


def with_activation(case: Case, seed: int) -> Case:
    """Return the case with a random activation after it, or, half of the time, unchanged."""
    rng, model = random.Random(seed), _copied(case.model)
    if rng.random() < 0.5:
        return case
    _follow(model, rng.choice([k for k, since in ACTIVATIONS.items() if since <= case.opset]), {})
    return replace(case, model=model)


def with_crop(case: Case, seed: int, kind: str) -> Case:
    """Return the case with a random Pad or Slice before or after it."""
    rng = random.Random(seed)
    model, rank = _copied(case.model), case.x.ndim - 2
    if rng.random() < 0.5:
        amounts = [rng.choice((0, 0, 1, 2)) for _ in range(2 * rank)]
        amounts = amounts if kind == "Pad" else [a % 2 for a in amounts]
        return replace(case, model=_precede(case, model, kind, amounts))
    amounts = [rng.choice((0, 0, 1)) for _ in range(2 * rank)]
    if kind == "Pad":
        amounts[:rank] = [0] * rank
    _follow(model, kind, _inputs(kind, amounts, rank))
    return replace(case, model=model)


def _precede(case: Case, model: onnx.ModelProto, kind: str, amounts: list[int]) -> onnx.ModelProto:
    """Add a node between x and the ConvTranspose; its sizes stay open if the input's are."""
    rank = case.x.ndim - 2
    arrays = _inputs(kind, amounts, rank)
    node = helper.make_node(kind, ["x", *arrays], ["p"])
    model.graph.node[0].input[0] = "p"
    model.graph.node.insert(0, node)
    _add(model, arrays)
    sizes = [(d.dim_value or d.dim_param) for d in model.graph.input[0].type.tensor_type.shape.dim]
    if not case.open_sizes:
        signs = 1 if kind == "Pad" else -1
        both = zip(amounts[:rank], amounts[rank:], strict=True)
        inner = [
            size + signs * (a + b) for size, (a, b) in zip(case.x.shape[2:], both, strict=True)
        ]
        sizes[2:] = inner
        info = helper.make_tensor_value_info("p", TensorProto.FLOAT, sizes)
        model.graph.value_info.append(info)
    return model


def _inputs(kind: str, amounts: list[int], rank: int) -> dict[str, np.ndarray]:
    """Return the inputs of a Pad or Slice by name."""
    begins, ends = amounts[:rank], amounts[rank:]
    if kind == "Pad":
        return {"pads": np.array([0, 0, *begins, 0, 0, *ends])}
    entries = (begins, [-end or (1 << 62) for end in ends], range(2, 2 + rank))
    return dict(zip(("starts", "ends", "axes"), map(np.array, entries), strict=True))


def _follow(model: onnx.ModelProto, kind: str, arrays: dict[str, np.ndarray], **words: Any) -> None:
    """Add a node after the ConvTranspose; its output is called y."""
    model.graph.node[-1].output[0] = "z"
    model.graph.node.append(helper.make_node(kind, ["z", *arrays], ["y"], **words))
    _add(model, arrays)


def _add(model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> None:
    model.graph.initializer.extend(tensors(arrays))


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.SerializeToString())


def in_half(case: Case) -> Case:
    """Return the case in float16."""
    model = _copied(case.model)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            half = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
    for info in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        info.type.tensor_type.elem_type = TensorProto.FLOAT16
    return replace(case, model=model, x=case.x.astype(np.float16))


def in_int8(case: Case, seed: int) -> Case:
    """Return the case in QDQ form: integer weight and bias, and pairs before and after the node.

    The weight has one scale, or one per output channel of a group. All scales are powers of two, so
    every sum is exact, and results must be equal.
    """
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    model = _copied(case.model)
    [conv] = [node for node in model.graph.node if node.op_type == "ConvTranspose"]
    arrays = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    w, groups = arrays["w"], case.attributes["group"]
    shape = (w.shape[1],) if rng.random() < 0.5 else ()
    scale = np.float32(2) ** numbers.integers(-6, -3, shape).astype(np.float32)
    low = rng.choice((-100, 0))
    kind = np.int8 if low else np.uint8
    integers = numbers.integers(low, low + 200, w.shape).astype(kind)
    zero = numbers.integers(low + 90, low + 110, shape).astype(kind)
    _dequantize(model, conv, 1, (integers, scale, zero), axis=1)
    if "b" in arrays:
        bias = numbers.integers(-999, 999, arrays["b"].shape).astype(np.int32)
        _dequantize(model, conv, 2, (bias, np.tile(scale / 32, groups if shape else ())), axis=0)
    y, conv.output[0] = conv.output[0], "raw"
    conv.input[0] = _pair(model, conv, 0, conv.input[0], "xd", np.float32(1 / 32))
    _pair(model, conv, 1, "raw", y, np.float32(1 / 4))
    return replace(case, model=model)


def _dequantize(
    model: onnx.ModelProto, conv: onnx.NodeProto, index: int, arrays: Any, axis: int
) -> None:
    """Replace a node's input by dequantized integers, with scales and zero points."""
    name = conv.input[index]
    [old] = [tensor for tensor in model.graph.initializer if tensor.name == name]
    model.graph.initializer.remove(old)
    names = [f"{name}_{what}" for what in ("integers", "scale", "zero")][: len(arrays)]
    _add(model, dict(zip(names, arrays, strict=True)))
    said = {"axis": axis} if arrays[1].ndim else {}
    node = helper.make_node("DequantizeLinear", names, [name], **said)
    model.graph.node.insert(0, node)


def _pair(
    model: onnx.ModelProto, conv: onnx.NodeProto, after: int, x: str, y: str, scale: np.float32
) -> str:
    """Add QuantizeLinear and DequantizeLinear of x before or after a node; return y."""
    names = [f"{y}_scale", f"{y}_zero"]
    _add(model, {names[0]: scale, names[1]: np.uint8(128)})
    quantize = helper.make_node("QuantizeLinear", [x, *names], [f"{y}_quantized"])
    dequantize = helper.make_node("DequantizeLinear", [f"{y}_quantized", *names], [y])
    at = list(model.graph.node).index(conv) + after
    model.graph.node.insert(at, dequantize)
    model.graph.node.insert(at, quantize)
    return y


def official() -> dict[str, Any]:
    """Return ONNX's backend tests of ConvTranspose by name, with models and data."""
    importlib.import_module("onnx.backend.test.case.node.convtranspose")  # this makes its cases
    from onnx.backend.test.case import node

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "import_recursive", lambda _: None)  # 10 s of other operators' cases
        found = {case.name: case for case in node.collect_testcases("ConvTranspose")}
    return {name: found[name] for name in sorted(found) if name.startswith("test_convtranspose")}
