"""Random networks in random chunks: the bits of one chunk, values within bounds, states, ends."""

import random

import pytest

from tests.support import network_streams, random_networks, random_streams
from upconv.errors import ArgumentError, EngineRefusal, ShapeError


def check(seed: int) -> None:
    """A network whose values all have a rate, at any length."""
    one, rng = random_streams.streamable(seed), random.Random(seed)
    precision, algorithm = rng.choice(
        (("float32", "direct"), ("float32", "direct"), ("float32", "auto"), ("bfloat16", "auto"))
    )
    options = {"precision": precision, "algorithm": algorithm, "chunk": rng.choice((1, 4, 64))}
    stream = network_streams.opened(one.case, one.axis, **options)
    with pytest.raises(ArgumentError, match="empty"):
        stream.finish()
    case = one.at(one.unit * rng.randint(1, max(1, 24 // one.unit)))
    try:
        case.graph()
    except ShapeError:  # too short
        return
    network_streams.check(case, one.axis, stream, rng, precision, algorithm)


@pytest.mark.parametrize("first", range(0, 16, 8))
def test_random_networks_in_random_chunks(first: int) -> None:
    for seed in range(first, first + 8):
        check(seed)


def test_last_results_that_depend_on_padding_alone() -> None:
    check(105)


@pytest.mark.long
@pytest.mark.parametrize("first", range(16, 2016, 100))
def test_two_thousand_networks_in_random_chunks(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed)


def check_any(seed: int, precision: str, algorithm: str) -> None:
    """A network of any operations, of which some are refused."""
    case, rng = random_networks.case(seed), random.Random(seed)
    axis = network_streams.axis_of(case)
    if axis is None:
        return
    options = {"precision": precision, "algorithm": algorithm, "chunk": rng.choice((1, 4, 64))}
    try:
        stream = network_streams.opened(case, axis, **options)
    except EngineRefusal:
        return
    network_streams.check(case, axis, stream, rng, precision, algorithm)


@pytest.mark.parametrize(
    ("precision", "algorithm", "first"),
    [("float32", "direct", 0), ("float32", "auto", 20), ("bfloat16", "auto", 10)],
)
def test_networks_of_any_operations(precision: str, algorithm: str, first: int) -> None:
    if precision == "bfloat16":
        pytest.importorskip("ml_dtypes")
    for seed in range(first, first + 20):
        check_any(seed, precision, algorithm)


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["direct", "auto"])
def test_many_networks_of_any_operations(algorithm: str) -> None:
    for seed in range(40, 2000):
        check_any(seed, "float32", algorithm)
