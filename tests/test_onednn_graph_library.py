"""Random graphs against libdnnl's own Graph API, which runs them in one child process.

What is left out of the random cases is what the library refuses or gets wrong; that is in
test_onednn_graph_departures.py, case by case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from graph_cases import KINDS, case, disagreement
from upconv import EngineError, EngineMissing
from upconv.onednn_graph import Graph, LibraryProcess, LogicalTensor, Op, run_by_library

WINDOW = {"strides": [2], "pads_begin": [0], "pads_end": [0], "dilations": [1]}


@pytest.fixture(scope="module")
def library() -> Iterator[LibraryProcess]:
    try:
        process = LibraryProcess(threads=1)
    except EngineMissing as missing:
        pytest.skip(str(missing))
    with process:
        yield process


def agreed(library: LibraryProcess, first: int, count: int) -> Counter[str]:
    """How many random cases of each kind agree; every one that the library runs must."""
    counted: Counter[str] = Counter()
    for seed in range(first, first + 3 * count):
        if sum(counted.values()) == count:
            break
        one = case(seed, KINDS[seed % len(KINDS)], data_types=("f32", "f32", "f32", "bf16", "f16"))
        try:
            wanted = library.run(one.graph, one.data)[one.output]
        except EngineError as error:  # processors without 16-bit arithmetic
            assert one.data_type != "f32", f"{one}: {error}"  # noqa: PT017
            assert "unimplemented" in str(error) or "could not create" in str(error)  # noqa: PT017
            continue
        got = one.graph.execute(one.data)[one.output]
        said = disagreement(one, got, wanted, ignore=unwritten(one, got))
        assert not said, said
        counted[one.kind] += 1
    return counted


def unwritten(one, got: np.ndarray) -> np.ndarray | None:
    """bfloat16 gradients of taps that meet no data: the library leaves memory as it was there."""
    if one.data_type != "bf16" or not one.kind.endswith("Weights"):
        return None
    return np.asarray(one.graph.execute(one.magnitudes())[one.output] == 0)


def test_300_random_graphs_agree_with_the_library(library: LibraryProcess) -> None:
    counted = agreed(library, 0, 300)
    assert sum(counted.values()) == 300
    assert min(counted[kind] for kind in KINDS) >= 30


@pytest.mark.long
def test_many_random_graphs_agree_with_the_library(library: LibraryProcess) -> None:
    assert sum(agreed(library, 10_000, 6000).values()) == 6000


def test_a_planted_fault_is_caught(library: LibraryProcess) -> None:
    """Results moved by one channel or position, which rolling may leave as they are."""
    caught = 0
    for seed in range(40):
        one = case(seed, "Convolution", data_types=("f32",))  # what every processor computes
        wanted = library.run(one.graph, one.data)[one.output]
        moved = np.roll(wanted, 1, axis=1)
        same = np.array_equal(moved, wanted)
        caught += bool(disagreement(one, moved, wanted)) or same
    assert caught >= 38


def small(attributes=None, dims=(1, 5, 2), out=None) -> tuple[Graph, dict[int, np.ndarray]]:
    graph = Graph()
    x, w = LogicalTensor(0, "f32", dims), LogicalTensor(1, "f32", (3, 4, 2))
    y = LogicalTensor(2, "f32", out)
    graph.add_op(Op(0, "ConvTranspose", [x, w], [y], {**WINDOW, **(attributes or {})}, "up"))
    graph.finalize()
    rng = np.random.default_rng(0)
    data = {0: rng.standard_normal(dims), 1: rng.standard_normal((3, 4, 2))}
    return graph, {id_: array.astype(np.float32) for id_, array in data.items()}


def test_the_process_survives_the_library(library: LibraryProcess) -> None:
    bad, good = small({"output_padding": [2]}), small()
    for _ in range(2):
        with pytest.raises(
            EngineError,
            match=r"^libdnnl ended its process by SIGABRT after \"terminate called .*\"\."
            r" upconv's own result is not affected\.$",
        ):
            library.run(*bad)
        got = good[0].execute(good[1])[2]
        np.testing.assert_allclose(library.run(*good)[2], got, rtol=1e-5, atol=1e-5)


def test_a_refusal_names_the_function_and_the_status(library: LibraryProcess) -> None:
    graph = Graph()
    x, w = LogicalTensor(0, "f32", (1, 5, 2)), LogicalTensor(1, "f32", (3, 4, 2))
    graph.add_op(Op(0, "ConvolutionBackwardData", [x, w], [LogicalTensor(2, "f32")], WINDOW))
    graph.finalize()
    with pytest.raises(
        EngineError,
        match=r"^libdnnl refuses the graph: dnnl_graph_partition_compile says invalid_shape"
        r" \(status 9\)\.$",
    ):
        library.run(graph, small()[1])


def test_several_partitions_and_outputs_of_a_graph(library: LibraryProcess) -> None:
    graph = Graph()
    x, w, y, z, s = (
        LogicalTensor(id_, "f32", dims)
        for id_, dims in enumerate([(1, 5, 2), (3, 4, 2), None, None, None])
    )
    graph.add_op(Op(0, "ConvTranspose", [x, w], [y], WINDOW))
    graph.add_op(Op(1, "End", [y], []))
    graph.add_op(Op(2, "ReLU", [y], [z]))
    graph.add_op(Op(3, "Multiply", [z, y], [s]))
    graph.finalize()
    data = small()[1]
    own, theirs = graph.execute(data), library.run(graph, data)
    assert set(own) == set(theirs) == {2, 4}
    assert library.partitions > 1
    for id_, array in own.items():
        np.testing.assert_allclose(theirs[id_], array, rtol=1e-5, atol=1e-5)


def test_a_process_for_one_graph(library: LibraryProcess) -> None:
    graph, data = small()
    found = run_by_library(graph, data, path=library.path, policy="debug")
    np.testing.assert_allclose(found[2], graph.execute(data)[2], rtol=1e-5, atol=1e-5)


def test_a_library_that_is_none_or_says_nothing() -> None:
    graph, data = small()
    with pytest.raises(EngineError, match=r"^libdnnl refuses the graph: .*nowhere\.so"):
        run_by_library(graph, data, path="/nowhere.so")
    with (
        LibraryProcess("/nowhere.so", seconds=0.0) as hurried,
        pytest.raises(EngineError, match=r"^libdnnl did not answer within 0 seconds"),
    ):
        hurried.run(graph, data)
