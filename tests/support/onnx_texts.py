"""Small models for the tests of upconv.onnx, from text or from nodes."""

import re

import numpy as np
from onnx import TensorProto, helper, numpy_helper, parser


def parsed(text, opset=17, **initializers):
    """Parse a model; a text without a header gets one with this opset.

    initializers: arrays by name; those that the text does not name are left out. ml_dtypes arrays
    become bfloat16 and 8-bit float tensors.
    """
    head = "" if text.startswith("<") else f'<ir_version: 9, opset_import: ["" : {opset}]>\n'
    model, named = parser.parse_model(head + text), set(re.findall(r"\w+", text))
    used = {name: array for name, array in initializers.items() if name in named}
    model.graph.initializer.extend(tensors(used))
    return model


def tensors(arrays):
    """Return arrays by name as a model's tensors."""
    return [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]


def made(nodes, arrays, x, outputs=("y",), opset=17, rank=None):
    """Return a model of nodes that read x, of this shape, and arrays by name.

    rank: the outputs' number of axes, which onnx's checker needs; None leaves it open.
    """
    sizes = None if rank is None else [None] * rank
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, sizes) for y in outputs],
        tensors(arrays),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def ints(*entries):
    return np.array(entries, np.int64)


def normal(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


THREE = """g (float[N, 4, W] x) => (float[N, 4, V] y) {
  h1 = ConvTranspose <strides = [2]> (x, w1, b1)
  r1 = Relu(h1)
  h2 = ConvTranspose <strides = [2], pads = [1, 1]> (r1, w2, b2)
  r2 = Relu(h2)
  y = ConvTranspose <strides = [2]> (r2, w3, b3)
}"""


def three(**changed):
    """Return three layers with ReLUs between them; `changed` replaces weights by name."""
    weights = {f"w{i}": normal(i, 4, 4, 4) for i in (1, 2, 3)}
    biases = {f"b{i}": normal(10 + i, 4) for i in (1, 2, 3)}
    model = parsed(THREE, **{**weights, **biases, **changed})
    for node in model.graph.node:
        node.name = f"node of {node.output[0]}"
    return model


def flipped(i):
    return {f"w{i}": normal(i, 4, 4, 4)[:, :, ::-1].copy()}
