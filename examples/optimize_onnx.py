"""An ONNX decoder, made faster for ONNX Runtime if possible, and verified against the original.

Claims: the optimized model computes the same results, and so does a model in which every layer is
an ordinary convolution and a shuffle. Whether a form wins, and which, depends on the machine.
Without onnx and ONNX Runtime, the script says so and ends.
"""

from __future__ import annotations

from importlib.util import find_spec

TEXT = """
<ir_version: 8, opset_import: ["": 17]>
decoder (float[1, 64, 16, 16] x) => (float[1, 3, 64, 64] y) {
  a = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w1)
  b = Relu(a)
  y = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (b, w2)
}
"""


def main() -> None:
    """Optimize a decoder, rewrite it with a pass, and compare both with the original."""
    if not all(map(find_spec, ("onnx", "onnx_ir", "onnxruntime"))):
        print("ONNX's libraries are not installed: pip install '.[onnx]'")
        return
    import numpy as np
    import onnx

    from upconv.onnx import optimize, rewrite, verify

    model = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for name, shape in {"w1": (64, 32, 4, 4), "w2": (32, 3, 4, 4)}.items():
        weight = rng.standard_normal(shape, np.float32) / 16
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))

    result = optimize(model, threads=2, seconds=0.1)
    for layer in result.layers:
        print(f"{layer.node}: {layer.chosen}; {layer.why}")
    print(result.verdict)
    assert verify(model, result.proto).equal

    convolutions = rewrite(model, ["sub_pixel"]).proto()
    operators = [node.op_type for node in convolutions.graph.node]
    print(*operators)
    assert "ConvTranspose" not in operators
    assert verify(model, convolutions).equal


if __name__ == "__main__":
    main()
