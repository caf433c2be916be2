"""Compiled networks have the values of their definitions, in every layout and precision.

A planted fault in each pass must be found by the same comparison.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.support import random_networks
from tests.support.processes import printed, require_feature
from tests.support.random_networks import Case
from upconv.network import compile as compiling
from upconv.network import fold, fuse
from upconv.network.graph import Convert, Convolution, Graph, Input, Lstm, Node
from upconv.network.layout_choice import laid_out
from upconv.network.place import place
from upconv.problem import DataLayout

EPSILON = {"float32": 2.0**-22, "bfloat16": 2.0**-8}
LAYOUTS: dict[str, Callable[[int, int], DataLayout]] = {
    "first": lambda seed, number: DataLayout.NCX,
    "last": lambda seed, number: DataLayout.NXC,
    "mixed": lambda seed, number: random.Random(99 * seed + number).choice(list(DataLayout)),
}


def in_layout(monkeypatch: pytest.MonkeyPatch, name: str, seed: int = 0) -> None:
    """Let networks be laid out so, whatever it costs."""
    labels = compiling.labels

    def forced(graph: Graph, *rest: Any) -> tuple[DataLayout, ...]:
        labels(graph, *rest)  # asks for the kernels of all convolutions
        return tuple(
            DataLayout.NXC if isinstance(node.operation, Lstm) else LAYOUTS[name](seed, number)
            for number, node in enumerate(graph.nodes)
        )

    monkeypatch.setattr(compiling, "labels", forced)


def wrong(case: Case, precision: str = "float32", threads: int = 2, *, opened: bool = False) -> str:
    """What is wrong with the results of two runs of a network; "" where nothing is."""
    graph, arrays, network = case.graph(), case.arrays(), case.network(opened=opened)
    before = [array.tobytes() for array in arrays]
    expected = random_networks.expected(graph, arrays, EPSILON[precision])
    for _ in range(2):
        results = network(*arrays, precision=precision, threads=threads)
        for result, (value, bound) in zip(
            results if isinstance(results, tuple) else (results,), expected, strict=True
        ):
            assert result.shape == value.shape
            with np.errstate(invalid="ignore"):  # faults may end in infinity
                error = np.abs(result - value).max(initial=0)
            if not error <= bound + EPSILON[precision]:
                return f"off by {error}, at most {bound} allowed: {case}"
    written = before != [array.tobytes() for array in arrays]
    return f"inputs are written: {case}" if written else ""


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("seed", range(100, 118))
def test_layouts(monkeypatch: pytest.MonkeyPatch, layouts: str, seed: int) -> None:
    in_layout(monkeypatch, layouts, seed)
    assert not wrong(random_networks.case(seed))


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("seed", range(200, 210))
def test_bfloat16(monkeypatch: pytest.MonkeyPatch, layouts: str, seed: int) -> None:
    pytest.importorskip("ml_dtypes", reason="bfloat16 arrays are ml_dtypes'")
    in_layout(monkeypatch, layouts, seed)
    assert not wrong(random_networks.case(seed), "bfloat16")


OTHERS = """
from tests.network import test_values as values
for seed in (203, 211):
    for precision in values.EPSILON:
        print(end=values.wrong(values.random_networks.case(seed), precision))
"""


@pytest.mark.parametrize(("processor", "feature"), [("haswell", "avx2"), ("x86-64", "sse2")])
def test_older_processors(processor: str, feature: str) -> None:
    """Without AVX-512, LLVM divides and converts vectors in other ways; the two networks have 24 of
    the operations and functions."""
    pytest.importorskip("ml_dtypes", reason="bfloat16 arrays are ml_dtypes'")
    require_feature(feature)
    assert printed(OTHERS, UPCONV_JIT_CPU=processor) == ""


@pytest.mark.parametrize("threads", [1, 3, 16])
def test_threads(threads: int) -> None:
    for seed in range(300, 306):
        assert not wrong(random_networks.case(seed), threads=threads)


@settings(max_examples=25)
@given(random_networks.networks())
def test_small_networks(case: Case) -> None:
    assert not wrong(case)


@pytest.mark.parametrize("batch", [1, 2])
def test_sums_and_second_results_inside_a_concatenation(
    monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    in_layout(monkeypatch, "first")
    weight = random_networks.A(4, 4, 3)
    calls: list[random_networks.Call] = [
        ("conv", [0], [weight], {"padding": 1}),
        ("add", [1, 0], [], {}),
        ("activation", [2], [("leaky_relu", 0.1)], {}),
        ("conv", [3], [weight], {"padding": 1}),
        ("add", [4, 0], [], {}),
        ("concat", [2, 5], [], {}),
        ("activation", [6], [("prelu", random_networks.P(8))], {}),
    ]
    assert not wrong(Case({"x": (batch, 4, 40)}, calls, [7, 6]))


def test_open_sizes() -> None:
    for seed in range(400, 406):
        assert not wrong(random_networks.case(seed), opened=True)


# Planted faults -----------------------------------------------------------------------------------


def _unscaled(operation: Convolution, weight: Any, factor: Any) -> Any:
    """`_scaled` that forgets the factor."""
    return weight


def _misplaced(graph: Graph) -> Graph:
    """`place` that puts parts of concatenations one channel too far to the front."""
    placed = place(graph)
    views = {value: (array, max(0, at - 1)) for value, (array, at) in placed.views.items()}
    return replace(placed, views=views)


def _mistaken(graph: Graph, *rest: Any) -> Graph:
    """`laid_out` that takes one converted value for another one of the same shape and form."""
    graph = laid_out(graph, *rest)
    first: dict[object, int] = {}
    same = {
        node.outputs[0]: first.setdefault(
            (graph.shapes[node.outputs[0]], graph.form(node.outputs[0])), node.outputs[0]
        )
        for node in graph.nodes
        if isinstance(node.operation, Convert)
    }
    nodes = (replace(n, inputs=tuple(same.get(v, v) for v in n.inputs)) for n in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def _appended(maker: Node, end: Any, node: Node, *, stored: bool) -> Node:
    """`fuse._appended` that reads a wrong input."""
    joined = APPENDED(maker, end, node, stored=stored)
    if len(maker.inputs) < 2:
        return joined
    ops = tuple(
        replace(op, operand=op.operand._replace(number=1)) if isinstance(op.operand, Input) else op
        for op in fuse.chain_of(joined) or ()
    )
    return fuse.with_chain(joined, ops, joined.inputs, joined.outputs)


APPENDED = fuse._appended
FAULTS: dict[str, tuple[Any, str, Any, str]] = {
    "layout": (compiling, "laid_out", _mistaken, "mixed"),
    "folding": (fold, "_scaled", _unscaled, ""),
    "placing": (compiling, "place", _misplaced, "first"),
    "fusing": (fuse, "_appended", _appended, ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function, fault, layouts = FAULTS[name]
    if layouts:
        in_layout(monkeypatch, layouts)
    monkeypatch.setattr(module, function, fault)
    assert found()


def found() -> bool:
    """Whether some random network has wrong results."""
    for seed in range(500, 540):
        try:
            if wrong(random_networks.case(seed)):
                return True
        except (AssertionError, IndexError, ValueError):
            return True
    return False
