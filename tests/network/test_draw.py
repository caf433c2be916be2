"""Drawings of networks: every node and shape is in them, and boxes do not overlap."""

import re
from itertools import combinations
from xml.etree import ElementTree

import numpy as np

from tests.support import random_networks
from tests.support.repeating import seeds
from upconv.network import Network
from upconv.network.draw import drawing
from upconv.network.fuse import fuse

NAME = "{http://www.w3.org/2000/svg}"


def boxes(svg: str) -> list[tuple[float, ...]]:
    """x, y, width and height of every box but the background."""
    rectangles = ElementTree.fromstring(svg).findall(f"{NAME}rect")[1:]
    sides = ("x", "y", "width", "height")
    return [tuple(float(rectangle.get(side, "")) for side in sides) for rectangle in rectangles]


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{NAME}text")]


def network() -> Network:
    result = Network({"x": (1, 4, None)})
    x = result.inputs["x"]
    y = result.activation(x, ("leaky_relu", 0.1))
    weight = np.ones((4, 4, 3), np.float32)
    y = result.conv(y, weight, padding=2, dilation=2, activation=("prelu", np.ones(4)))
    result.output(result.instance_norm(x + y) * 2.5)
    return result


def test_a_drawing_says_what_nodes_do_and_which_shapes_values_have() -> None:
    drawn = texts(network().draw())
    for text in ("x", "leaky_relu 0.1", "conv 4->4 k3d2", "prelu", "add", "instance norm"):
        assert text in drawn
    assert {"mul 2.5", "output 0", "(1, 4, ?)"} <= {*drawn}
    assert drawn.count("(1, 4, ?)") == 6


def test_fused_ends_are_in_the_box_of_their_node() -> None:
    graph = fuse(network().graph(x=(1, 4, 9)))
    svg = drawing(graph)
    assert len(boxes(svg)) == len(graph.nodes) + 2
    lines = re.sub(r"<[^>]*>", "\n", svg)
    assert re.search(r"conv 4-&gt;4 k3d2\s+prelu\s+add", lines)
    assert re.search(r"instance norm\s+mul 2.5", lines)


def test_boxes_lie_apart_and_within_the_drawing() -> None:
    for seed in seeds(40):
        case = random_networks.case(seed)
        svg = case.network().draw()
        width, height = (float(ElementTree.fromstring(svg).get(side, "")) for side in SIDES)
        found = boxes(svg)
        assert len(found) >= len(case.calls) + len(case.inputs) + len(case.outputs)
        for x, y, w, h in found:
            assert 0 <= x <= x + w <= width, case
            assert 0 <= y <= y + h <= height, case
        for (x, y, w, h), (x2, y2, w2, h2) in combinations(found, 2):
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y, case


SIDES = ("width", "height")
