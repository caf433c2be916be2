"""The layers that oneDNN tests its own deconvolution with, by every engine, in both layouts.

The shapes are public inputs of its test driver; tests/data/onednn_shapes.json says which. Those of
less than 8 MFLOP run by default, each in two directions; all in every direction with `-m long`.
"""

import json

import pytest

from tests.support.paths import DATA
from upconv import testing
from upconv.engines.base import Engine
from upconv.geometry import fitted
from upconv.problem import DataLayout, Direction, Problem

ROWS = json.loads((DATA / "onednn_shapes.json").read_text())["layers"]


def layer(row: dict[str, list[int]]) -> Problem:
    columns = ("size", "kernel", "stride", "dilation", "padding", "out")
    axes = tuple(fitted(*axis) for axis in zip(*(row[name] for name in columns), strict=True))
    channels = row["in_channels"], row["out_channels"], row["groups"]
    return Problem(Direction.FORWARD, axes, 1, *channels, bias=True)


LAYERS = tuple(map(layer, ROWS))
SMALL = tuple(problem for problem in LAYERS if problem.multiply_adds <= 4e6)


def check(engine: Engine, problem: Problem, direction: Direction, layout: DataLayout) -> bool:
    """False where the engine refuses."""
    bias = direction is not Direction.WEIGHT_GRAD
    one = problem.replace(direction=direction, layout=layout, bias=bias)
    if engine.refuses(one) is not None:
        return False
    testing.check(engine, one, threads=2)
    return True


@pytest.mark.parametrize("layout", DataLayout)
def test_small_layers(engine: Engine, layout: DataLayout) -> None:
    turns, first = tuple(Direction), tuple(DataLayout).index(layout)
    done = [check(engine, one, turns[i % 3], layout) for i, one in enumerate(SMALL, first)]
    assert sum(done) >= 0.8 * len(SMALL)


@pytest.mark.long
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("layout", DataLayout)
def test_all_layers(engine: Engine, layout: DataLayout, direction: Direction) -> None:
    assert sum(check(engine, one, direction, layout) for one in LAYERS) >= 0.5 * len(LAYERS)


def test_they_are_all_there() -> None:
    assert (len(SMALL), len(LAYERS)) == (102, 218)
    assert {problem.rank for problem in LAYERS} == {1, 2, 3}
