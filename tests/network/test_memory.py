"""The arena of a network: no value is written where a living one lies, and little is wasted."""

from typing import Any

import numpy as np
import pytest

from tests.support import random_networks
from upconv.engine_choice import Algorithm
from upconv.network import Network, memory
from upconv.network.compile import Compiler
from upconv.network.graph import Graph, Options, Pointwise
from upconv.network.memory import ALIGNMENT, Arena, arena
from upconv.network.place import root
from upconv.problem import DType


def compiled(seed: int) -> Graph:
    """The graph of a random network, laid out and placed."""
    case = random_networks.case(seed)
    compiler = Compiler(case.graph())
    return compiler.compiled(case.inputs, Options(DType.FLOAT32, 2, Algorithm.DIRECT)).graph


def mistakes(graph: Graph, places: Arena) -> list[tuple[int, int]]:
    """Run a graph on an array that remembers whose bytes are whose: (node, value) that is lost."""
    owners = np.full(places.nbytes // ALIGNMENT, -1)
    callers = {value: np.full(1, -1) for value in memory.outside(graph)}

    def part(value: int) -> np.ndarray:
        holder = root(graph, value)[0]
        if holder in callers:
            return callers[holder]
        first = places.offsets[holder] // ALIGNMENT
        return owners[first : first + memory.nbytes_of(graph, holder) // ALIGNMENT]

    def is_lost(value: int) -> bool:
        return bool((part(value) != root(graph, value)[0]).any())

    for value in graph.inputs.values():
        part(value)[:] = root(graph, value)[0]
    lost = []
    for number, node in enumerate(graph.nodes):
        lost += [(number, value) for value in node.inputs if is_lost(value)]
        for value in node.outputs:
            part(value)[:] = root(graph, value)[0]
        # A result may take the place of input 0 of a pointwise node, and of no other input.
        in_place = isinstance(node.operation, Pointwise)
        lost += [(number, value) for value in node.inputs[in_place:] if is_lost(value)]
        lost += [(number, value) for value in node.outputs if is_lost(value)]
    return lost + [(len(graph.nodes), value) for value in graph.outputs if is_lost(value)]


@pytest.mark.parametrize("seed", range(60))
def test_no_value_is_lost(seed: int) -> None:
    graph = compiled(seed)
    places = arena(graph)
    assert all(offset % ALIGNMENT == 0 for offset in places.offsets.values())
    assert mistakes(graph, places) == []


LIVES = memory._lives


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0)])
def test_a_life_that_is_too_short_is_caught(
    before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted faults: lives that begin one node later, or end one node earlier."""

    def shorter(graph: Graph) -> Any:
        homes, lives = LIVES(graph)
        return homes, {
            value: life._replace(
                begin=min(life.end, life.begin + before), end=max(life.begin, life.end - after)
            )
            for value, life in lives.items()
        }

    graphs = [compiled(seed) for seed in (1, 2, 4, 5, 6, 8, 9, 10)]
    monkeypatch.setattr(memory, "_lives", shorter)
    assert any(mistakes(graph, arena(graph)) for graph in graphs)


def test_values_of_a_chain_take_two_places() -> None:
    """Of ten convolutions in a row, however long: what is read, and what is written."""
    rng = np.random.default_rng(0)
    network = Network({"x": (1, 4, 1000)})
    value = network.inputs["x"]
    for _ in range(10):
        value = network.conv(value, rng.standard_normal((4, 4, 3)), padding=1)
    network.output(value)
    assert arena(network.graph()).nbytes == 2 * 4 * 1000 * 4


def test_pointwise_nodes_take_the_place_of_their_input() -> None:
    network = Network({"x": (1, 4, 1000)})
    value = network.conv(network.inputs["x"], np.ones((8, 4, 1)))
    network.output(network.activation(network.activation(value, "tanh"), "silu"))
    assert arena(network.graph()).nbytes == 8 * 1000 * 4


def test_inputs_and_outputs_lie_in_the_callers_arrays() -> None:
    network = Network({"x": (1, 4, 1000)})
    value = network.activation(network.inputs["x"], "tanh")
    network.output(network.activation(network.pad(value, 1), "silu"), network.inputs["x"])
    graph = network.graph()
    assert [*memory.outside(graph)] == [*graph.inputs.values(), *graph.outputs]
    assert arena(graph).nbytes == sum(-(-4 * 4 * n // 64) * 64 for n in (1000, 1002))


def test_what_others_read_is_not_overwritten() -> None:
    network = Network({"x": (1, 4, 1000)})
    value = network.conv(network.inputs["x"], np.ones((8, 4, 1)))
    network.output(network.activation(value, "tanh") + value)
    assert arena(network.graph()).nbytes >= 2 * 8 * 1000 * 4
