"""An activation after a transposed convolution keeps its values in every form.

Where the kernel is shorter than the stride some phases have no taps, and beyond the pads an output
padding has none either: there the result is the bias, or 0, and the activation applies to it too.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are ONNX's")
pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="values are compared in ONNX Runtime")

import onnx
from onnx import helper, numpy_helper

from onnx_rewriting import assert_same_values, rewritten
from onnx_texts import normal, parsed
from upconv.onnx.passes import PASSES
from upconv.onnx.passes.base import _ELEMENTWISE
from upconv.onnx.runtimes import RUNTIMES

SAID = {
    "LeakyRelu": {"alpha": 0.3},
    "Elu": {"alpha": 0.7},
    "Selu": {"alpha": 1.2, "gamma": 0.9},
    "Celu": {"alpha": 0.6},
    "ThresholdedRelu": {"alpha": 0.2},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "Gelu": {"approximate": "tanh"},
}
FORMS = [name for name in PASSES if name.startswith("sub_pixel")] + ["no_output_padding"]


def with_activation(kind: str, seed: int) -> onnx.ModelProto:
    """A deconvolution, often with dead phases or much output padding, and an activation."""
    rng = random.Random(seed)
    rank, groups = rng.choice((1, 2)), rng.choice((1, 2))
    strides = [rng.randint(2, 4) for _ in range(rank)]
    kernel = [rng.choice((1, s - 1, s, s + 1)) for s in strides]
    extra = [rng.randint(0, s - 1) if rng.random() < 0.7 else 0 for s in strides]
    ends = [rng.randint(0, 1) for _ in strides]
    node = helper.make_node(
        "ConvTranspose", ["x", "w", "b"][: rng.choice((2, 2, 3))], ["c"], "up", strides=strides,
        group=groups, pads=[0] * rank + ends, output_padding=extra,
    )  # fmt: skip
    made = helper.make_node(kind, ["c"], ["y"], "act", **SAID.get(kind, {}))
    shape = [1, 2 * groups, *(rng.randint(3, 5) for _ in range(rank))]
    graph = helper.make_graph(
        [node, made],
        "activated",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * (rank + 2))],
        [
            numpy_helper.from_array(normal(seed, 2 * groups, 2, *kernel), "w"),
            numpy_helper.from_array(normal(seed + 1, 2 * groups), "b"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.mark.parametrize("kind", _ELEMENTWISE)
def test_every_form_keeps_the_values_of_an_activation(kind: str) -> None:
    seeds = random.Random(kind)
    moved = set()
    for form in FORMS:
        for _ in range(12):
            model = with_activation(kind, seeds.randrange(1 << 20))
            after, [step] = rewritten(model, form)
            assert_same_values(model, after)
            if step.fired and after.graph.node[-1].op_type != kind:
                moved.add(form)
    assert {"sub_pixel", "sub_pixel:polyphase"} <= moved


@pytest.mark.parametrize(
    ("kind", "at_zero"),
    [("Sigmoid", 0.5), ("HardSigmoid", 0.5), ("Softplus", np.log(2)), ("Elu", 0)],
)
def test_a_phase_without_taps_is_the_activation_of_zero(kind: str, at_zero: float) -> None:
    model = parsed(
        f"""g (float[1, 1, 2] x) => (float[1, 1, M] y) {{
        c = ConvTranspose <strides = [3], output_padding = [2]> (x, w) y = {kind}(c) }}""",
        w=np.float32([[[2]]]),
    )
    after, [step] = rewritten(model, "sub_pixel:polyphase")
    assert step.fired
    with RUNTIMES["onnxruntime"].session(after, threads=1) as session:
        [y] = session.run({"x": np.ones((1, 1, 2), np.float32)}).values()
    np.testing.assert_allclose(y[0, 0, [1, 2, 4, 5]], at_zero, rtol=1e-6)
