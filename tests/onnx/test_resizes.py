"""Resizes to known sizes inside a part, against ONNX Runtime, in all modes that a network has."""

import numpy as np
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="sessions run in it")

from onnx import helper

from tests.support.onnx_sessions import by_upconv
from tests.support.onnx_texts import made, normal

FLOOR = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
LINEAR = [
    {"mode": "linear", "coordinate_transformation_mode": where}
    for where in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners")
]


def parts(sizes=(), scales=(), **attributes) -> int:
    """The number of parts of a convolution of (6, 5) positions, a Resize and a convolution."""
    last = np.array([1, 3, *sizes]) if sizes else np.float32([1, 1, *scales])
    operands = ["", "", "s"] if sizes else ["", "s"]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["v"], pads=[1] * 4),
        helper.make_node("Resize", ["v", *operands], ["r"], **attributes),
        helper.make_node("Conv", ["r", "w"], ["y"], pads=[1] * 4),
    ]
    model = made(nodes, {"w": normal(0, 3, 3, 3, 3) / 5, "s": last}, (1, 3, 6, 5), opset=19)
    return len(by_upconv(model, {"x": normal(1, 1, 3, 6, 5)}).report().rows)


@pytest.mark.parametrize("attributes", [FLOOR, *LINEAR], ids=lambda each: "-".join(each.values()))
@pytest.mark.parametrize("target", [(9, 14), (7, 10), (4, 3), (12, 5), (1, 2)])
def test_a_known_size_joins_the_part(target, attributes) -> None:
    unlike = target == (1, 2) and "pytorch_half_pixel" in attributes.values()
    assert parts(sizes=target, **attributes) == (2 if unlike else 1)


@pytest.mark.parametrize("attributes", [FLOOR, *LINEAR], ids=lambda each: "-".join(each.values()))
def test_scales_join_the_part_if_they_give_whole_sizes(attributes) -> None:
    assert parts(scales=(1.5, 1.2), **attributes) == 1
    assert parts(scales=(1.5, 1.1), **attributes) == 2


def test_a_kept_ratio_ends_the_part() -> None:
    assert parts(sizes=(12, 12), keep_aspect_ratio_policy="not_larger", **LINEAR[0]) == 2
