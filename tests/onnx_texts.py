"""For the tests of upconv.onnx's runtimes and verification: small models written as text."""

from __future__ import annotations

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
