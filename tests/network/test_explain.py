"""The table that a program prints of itself."""

import re

import numpy as np
import pytest

from upconv.errors import EngineError
from upconv.network import Network, Value


def weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def lines_of(*layers: str) -> list[str]:
    """The lines about the steps of a network of one convolution and some layers around it."""
    network = Network({"x": (1, 4, 40)})
    x: Value = network.inputs["x"]
    for layer in layers:
        if layer == "conv":
            x = network.conv(x, weight(4, 4, 3), padding=1)
        elif layer == "up":
            x = network.conv_transpose(x, weight(4, 2, 4), stride=2, padding=1)
        elif layer == "pool":
            x = network.max_pool(x, 2)
        elif layer == "square":
            x = network.mul(x, x)
        else:
            x = network.activation(x, layer)
    network.output(x)
    with network.compile(threads=1) as program:
        text = program.explain(measure=False)
    return [line.rstrip() for line in text.splitlines()]


def test_a_fused_layer_is_one_row() -> None:
    lines = lines_of("conv", "relu", "up", "tanh")
    assert lines[0] == "network    steps 2, convolutions 2, float32, threads 1"
    assert lines[1].startswith("memory     ")
    rows = [re.split(r"  +", line) for line in lines if line[:1].isdigit()]
    assert [row[:2] for row in rows] == [
        ["1", "conv 4->4 k3 + relu"],
        ["2", "conv_transpose 4->2 k4s2 + tanh"],
    ]


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        (("relu", "conv"), "its value is an input of the network"),
        (("conv", "pool", "relu"), "a pool cannot end in a chain"),
        (("conv", "relu", "elu"), "after relu, a convolution's kernel cannot compute elu"),
        (("conv", "softplus"), "after its sums, a convolution's kernel cannot compute softplus"),
    ],
)
def test_why_a_chain_is_a_step_of_its_own(layers: tuple[str, ...], reason: str) -> None:
    assert f"      separate: {reason}" in lines_of(*layers)


def test_measured_times_are_there() -> None:
    network = Network({"x": (1, 4, 40)})
    network.output(network.conv(network.inputs["x"], weight(4, 4, 3)))
    program = network.compile(threads=1)
    assert re.search(r"time +[\d.]+ (us|ms) for all steps, \d+% of it in conv", program.explain())
    program.close()
    with pytest.raises(EngineError, match="closed"):
        program.explain()
