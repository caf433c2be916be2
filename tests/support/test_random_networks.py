"""Random networks can be rebuilt from their strings, cover every operation, and stay finite."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings

from tests.support import random_networks
from tests.support.random_networks import A, Case, P
from tests.support.repeating import seeds, single
from upconv.network.definitions import evaluate
from upconv.network.kinds import KINDS


def repeated(case: Case) -> Case:
    """Rebuild a case from its string."""
    text = str(case).partition("random_networks.")[2]
    return eval(text, {"A": A, "P": P, "Case": Case})


def test_a_case_is_repeated_by_its_text_and_by_its_seed() -> None:
    for seed in seeds(30):
        case = random_networks.case(seed)
        assert repeated(case) == case == random_networks.case(seed)
        assert f"seed {seed}: " in str(case)


def test_cases_have_every_operation_branches_and_ranks() -> None:
    operations, ranks, counts = Counter(), Counter(), set()
    shared = 0
    for seed in seeds(150):
        graph = random_networks.case(seed).graph()
        operations.update(type(node.operation) for node in graph.nodes)
        ranks[len(graph.shapes[0]) - 2] += 1
        counts.add(len(graph.nodes))
        shared += any(len(readers) > 1 for readers in graph.readers().values())
    if single():
        return
    assert operations.keys() == KINDS.keys()
    assert min(ranks[rank] for rank in (1, 2, 3)) > 20
    assert shared > 50
    assert max(counts) > 20


def test_open_sizes_give_the_graph_of_known_ones() -> None:
    for seed in seeds(30):
        case = random_networks.case(seed)
        opened, known = case.network(opened=True).graph(**case.inputs), case.graph()
        assert opened.shapes == known.shapes
        assert opened.outputs == known.outputs


@settings(max_examples=40)
@given(random_networks.networks(nodes=15))
def test_float32_is_within_the_bounds_of_float64(case: Case) -> None:
    graph = case.graph()
    results = evaluate(graph, case.arrays())
    exact = evaluate(graph, case.arrays(np.float64))
    bounds = random_networks.expected(graph, case.arrays(), 2**-20)
    for result, reference, (value, bound) in zip(results, exact, bounds, strict=True):
        np.testing.assert_array_equal(value, reference)
        assert np.isfinite(value).all(), case
        assert np.abs(result - value).max() <= bound, case
        assert bound <= 1e-2 * np.abs(value).max() + 1e-4 or bound == np.inf, case


def test_a_planted_error_is_beyond_the_bounds() -> None:
    """Results shifted by one position exceed the bounds in most cases."""
    seen = 0
    for seed in seeds(30):
        case = random_networks.case(seed, nodes=8)
        graph, arrays = case.graph(), case.arrays()
        (value, bound), *_ = random_networks.expected(graph, arrays, 2**-20)
        seen += bool((np.abs(np.roll(value, 1, -1) - value) > bound).any())
    assert single() or seen > 20
