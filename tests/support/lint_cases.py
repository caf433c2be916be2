"""Models of one ConvTranspose for the tests of upconv.onnx.linting, and its taps' effects."""

from itertools import product

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.onnx_rewriting import values
from tests.support.onnx_texts import ints, normal, tensors
from upconv.onnx.inputs import feeds
from upconv.onnx.linting import lint

NEWEST = onnx.defs.onnx_opset_version()


def deconv(
    w, size=(5, 7), *, batch=2, opset=17, bias=None, name="up", x_shape=None, y_shape=None, **said
):
    """Return a model of one ConvTranspose with attributes `said`; a shape as w makes an input."""
    kind = TensorProto.FLOAT
    fed = not isinstance(w, np.ndarray)
    group = said.get("group", 1)
    if not fed:
        kind = helper.np_dtype_to_tensor_dtype(w.dtype)
    channels = w[0] if fed else w.shape[0]
    inputs = [helper.make_tensor_value_info("x", kind, x_shape or [batch, channels, *size])]
    names, arrays = ["x", "w"], {}
    if fed:
        inputs.append(helper.make_tensor_value_info("w", kind, w))
    else:
        arrays["w"] = w
    if bias is not None:
        names.append("b" if bias else "")
        if bias:
            arrays["b"] = np.arange(1, 1 + w.shape[1] * group).astype(w.dtype)
    node = helper.make_node("ConvTranspose", names, ["y"], name=name, **said)
    output = helper.make_tensor_value_info("y", kind, y_shape)
    graph = helper.make_graph([node], "g", inputs, [output], tensors(arrays))
    ir_version = 8 if opset < 21 else 10
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def followed(model, *nodes, **initializers):
    """Return the model with nodes after y; the last one makes z."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(tensors(initializers))
    kind = model.graph.output[0].type.tensor_type.elem_type
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("z", kind, None))
    return model


def scattered(x, w, strides, dilations=None):
    """Return the full result by its definition: every input times every tap, scattered.

    x: (C, *size), w: (C, M, *k). Plain loops, independent of upconv.
    """
    rank = x.ndim - 1
    dilations = dilations or (1,) * rank
    full = [
        s * (n - 1) + d * (k - 1) + 1
        for s, n, d, k in zip(strides, x.shape[1:], dilations, w.shape[2:], strict=True)
    ]
    y = np.zeros((w.shape[1], *full))
    for i in product(*map(range, x.shape[1:])):
        for t in product(*map(range, w.shape[2:])):
            o = tuple(s * a + d * b for s, a, d, b in zip(strides, i, dilations, t, strict=True))
            y[(slice(None), *o)] += x[(slice(None), *i)] @ w[(slice(None), slice(None), *t)]
    return y


def inside(y, strides, kernel, dilations=None):
    """Return one period of a full result, far from its border: (M, *strides)."""
    dilations = dilations or (1,) * len(strides)
    starts = [
        s * (d * (k - 1) // s + 1) for s, k, d in zip(strides, kernel, dilations, strict=True)
    ]
    return y[(slice(None), *(slice(a, a + s) for a, s in zip(starts, strides, strict=True)))]


def only(model, code, **how):
    """Return the findings of one rule; at most one per node in these models."""
    return lint(model, select=[code], **how).findings


def one(model, code, **how):
    """Return the message of a rule's only finding."""
    (finding,) = only(model, code, **how)
    return finding.message


def ran(model, runtime, **given):
    """Return the first output of a model; x is random unless it is given."""
    pytest.importorskip(runtime)
    name = {"openvino": "openvino:f32"}.get(runtime, runtime)
    return values(model, given or feeds(model), name)[0]


W33 = normal(0, 6, 4, 3, 3)
W44 = normal(1, 6, 4, 4, 4)
WIDE = normal(0, 16, 12, 3, 3)
"""A weight with enough channels that its checkerboard is not due to chance."""
EVEN = np.ones((6, 4, 2, 2), np.float32)
SAME = {"strides": [2, 2], "auto_pad": "SAME_UPPER"}
S2 = {"strides": [2, 2]}

BATCH_NORM = {name: np.ones(4, np.float32) for name in ("scale", "shift", "mean", "var")}


def with_batch_norm(model, *outputs, **said):
    node = helper.make_node(
        "BatchNormalization",
        ["y", "scale", "shift", "mean", "var"],
        ["z", *outputs],
        "norm",
        **said,
    )
    return followed(model, node, **BATCH_NORM)


def dequantized(scale, **said):
    """Return a model whose weight (6, 4, 2, 2) comes from a DequantizeLinear."""
    model = deconv(EVEN, strides=[2, 2])
    del model.graph.initializer[:]
    arrays = {"q": np.ones(EVEN.shape, np.int8), "scale": np.asarray(scale, np.float32)}
    model.graph.initializer.extend(tensors(arrays))
    node = helper.make_node("DequantizeLinear", ["q", "scale"], ["w"], **said)
    model.graph.node.insert(0, node)
    return model


def padded(pads, before=True):
    """Return a stride-1 layer with a Pad of zeros before it, or after it without a bias."""
    model = deconv(W33, pads=[1, 1, 1, 1])
    model.graph.initializer.extend(tensors({"pads": ints(*pads)}))
    if before:
        model.graph.node[0].input[0] = "wide"
        model.graph.node.insert(0, helper.make_node("Pad", ["x", "pads"], ["wide"], "pad"))
        return model
    return followed(model, helper.make_node("Pad", ["y", "pads"], ["z"], "pad"))


def sliced(step):
    node = helper.make_node("Slice", ["y", "starts", "ends", "axes", "steps"], ["z"], "cut")
    cut = {"starts": ints(1), "ends": ints(-1), "axes": ints(2), "steps": ints(step)}
    return followed(deconv(W44, strides=[2, 2]), node, **cut)


def shifted(shape):
    node = helper.make_node("Add", ["y", "c"], ["z"], "shift")
    return followed(deconv(W44, strides=[2, 2]), node, c=np.ones(shape, np.float32))


BF16 = deconv((6, 4, 2, 2), strides=[2, 2], opset=22)
for info in (*BF16.graph.input, *BF16.graph.output):
    info.type.tensor_type.elem_type = TensorProto.BFLOAT16

BAD = {
    "UPC001": (deconv(W33, **S2), deconv(W44, **S2)),
    "UPC002": (deconv(WIDE, **S2), deconv(normal(1, 32, 16, 4, 4), **S2)),
    "UPC003": (deconv(EVEN, strides=[2, 3]), deconv(EVEN, **S2)),
    "UPC004": (
        deconv(EVEN, **S2, output_padding=[1, 0]),
        deconv(W33, **S2, output_padding=[1, 0], pads=[1] * 4),
    ),
    "UPC101": (
        deconv(W33, **S2, output_shape=[10, 14], auto_pad="SAME_UPPER"),
        deconv(W33, **SAME),
    ),
    "UPC102": (deconv(W33, x_shape=[1, 6, "h", 7], **SAME), deconv(W33, **SAME)),
    "UPC105": (
        deconv(W33, **S2, y_shape=[2, 4, 11, 14]),
        deconv(W33, **S2, y_shape=[2, 4, "h", 15]),
    ),
    "UPC107": (dequantized(np.ones(6), axis=0), dequantized(np.ones(4), axis=1)),
    "UPC108": (
        with_batch_norm(deconv(W44, **S2), "m", "v", training_mode=1),
        with_batch_norm(deconv(W44, **S2)),
    ),
    "UPC109": (deconv(W33, pads=[-1, 0, 0, 0]), deconv(W33, pads=[1, 0, 0, 0])),
    "UPC201": (
        deconv(W33, **S2, dilations=[3, 3], output_padding=[2, 0]),
        deconv(W33, **S2, output_padding=[1, 1]),
    ),
    "UPC202": (deconv(W33, **S2, bias=False), deconv(W33, **S2, bias=True)),
    "UPC204": (deconv(W44.astype(np.float64), **S2), deconv(W44.astype(np.float16), **S2)),
    "UPC401": (
        with_batch_norm(deconv(W44, **S2)),
        with_batch_norm(deconv(W44, **S2), "m", "v", training_mode=1),
    ),
    "UPC901": (
        deconv(W33, x_shape=[1, 6, "h", 7], **S2, output_shape=[9, 14]),
        deconv(W33, x_shape=[1, 6, "h", 7], **S2),
    ),
    "UPC902": (deconv((6, 4, 2, 2), **S2), deconv(EVEN, **S2)),
}  # fmt: skip
"""Code -> a model with that finding, and a similar one without it."""

FOLDED = {
    "fold_batch_norm": (
        (with_batch_norm(deconv(W44, **S2)), shifted((4, 1, 1))),
        shifted((11, 16)),
    ),
    "fold_pad": ((padded([0, 0, 1, 0, 0, 0, 0, 0]),), padded([0, 0, 2, 0, 0, 0, 0, 0])),
    "fold_slice": ((sliced(1),), sliced(2)),
}
"""Pass -> models for which UPC401 suggests it, and one that it cannot fold."""
