"""Resizes to known sizes inside a part, against ONNX Runtime, in all modes that a network has."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import upconv.onnx as uo  # noqa: E402

FLOOR = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
LINEAR = [
    {"mode": "linear", "coordinate_transformation_mode": where}
    for where in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners")
]


def model(size, sizes=None, scales=None, **attributes):
    """A convolution of 3 channels, a Resize, and a convolution."""
    values = {"w": np.random.default_rng(0).random((3, 3, 3, 3), np.float32)}
    inputs = ["v", "", "", ""]
    if sizes is not None:
        values["s"], inputs[3] = np.array([1, 3, *sizes]), "s"
    else:
        values["a"], inputs[2] = np.float32([1, 1, *scales]), "a"
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["v"], pads=[1] * 4),
        helper.make_node("Resize", inputs, ["r"], **attributes),
        helper.make_node("Conv", ["r", "w"], ["y"], pads=[1] * 4),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, *size))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 3, None, None))],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return proto.SerializeToString()


def parts_and_error(data, size):
    """The number of parts, and the largest difference from ONNX Runtime's result."""
    x = np.random.default_rng(1).random((1, 3, *size), np.float32)
    expected = ort.InferenceSession(data).run(None, {"x": x})[0]
    session = uo.Session(data, measure=False)
    result = session.run(None, {"x": x})[0]
    assert result.shape == expected.shape
    return len(session.report().rows), float(np.abs(result - expected).max())


@pytest.mark.parametrize("attributes", [FLOOR, *LINEAR], ids=lambda each: "-".join(each.values()))
@pytest.mark.parametrize("target", [(9, 14), (7, 10), (4, 3), (12, 5), (1, 2)])
def test_a_known_size_joins_the_part(target, attributes) -> None:
    count, error = parts_and_error(model((6, 5), sizes=target, **attributes), (6, 5))
    whole = not (target == (1, 2) and attributes.get("coordinate_transformation_mode") == (
        "pytorch_half_pixel"))  # fmt: skip
    assert count == (1 if whole else 2)
    assert error < 1e-4


@pytest.mark.parametrize("attributes", [FLOOR, *LINEAR], ids=lambda each: "-".join(each.values()))
@pytest.mark.parametrize(("scales", "whole"), [((1.5, 1.2), True), ((1.5, 1.1), False)])
def test_scales_join_the_part_if_they_give_whole_sizes(scales, whole, attributes) -> None:
    count, error = parts_and_error(model((6, 5), scales=scales, **attributes), (6, 5))
    assert count == (1 if whole else 2)
    assert error < 1e-4


def test_a_kept_ratio_ends_the_part() -> None:
    data = model((6, 5), sizes=(12, 12), keep_aspect_ratio_policy="not_larger", **LINEAR[0])
    count, error = parts_and_error(data, (6, 5))
    assert count == 2
    assert error < 1e-4
