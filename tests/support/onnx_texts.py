"""For the tests of upconv.onnx's runtimes and verification: small models written as text."""

import numpy as np
from onnx import numpy_helper, parser


def parsed(text, opset=17, ir_version=9, **initialisers):
    """A model of one graph; initialisers by name, as arrays.

    ml_dtypes' arrays become bfloat16 and 8-bit float tensors.
    """
    head = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>\n'
    model = parser.parse_model(head + text)
    for name, array in initialisers.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


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
    """Three layers with ReLUs between them; weights by name may be others."""
    weights = {f"w{i}": normal(i, 4, 4, 4) for i in (1, 2, 3)}
    biases = {f"b{i}": normal(10 + i, 4) for i in (1, 2, 3)}
    model = parsed(THREE, **{**weights, **biases, **changed})
    for node in model.graph.node:
        node.name = f"node of {node.output[0]}"
    return model


def flipped(i):
    return {f"w{i}": normal(i, 4, 4, 4)[:, :, ::-1].copy()}
