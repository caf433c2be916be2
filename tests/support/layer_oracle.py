"""Random layers for the tests of dialects, their arrays, and their results by the definition."""

import numpy as np
from hypothesis import strategies as st

from upconv import testing
from upconv.dialects import Layer
from upconv.geometry import Axis, centred
from upconv.problem import DataLayout, Direction, DType, Problem, WeightLayout


def scatter(layer: Layer, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the result by the definition, in float64; arrays are in the layer's orders."""
    rank, start = len(layer.axes), layer.weight_layout.value.index("X")
    if layer.flipped:
        w = np.flip(w, tuple(range(start, start + rank)))
    channels = x.shape[layer.layout.to_ncx(rank)[1]]
    filters = w.shape[layer.weight_layout.to_iox(rank)[1]] * layer.groups
    orders = layer.layout, layer.weight_layout
    counts = len(x), channels, filters, layer.groups
    problem = Problem(Direction.FORWARD, layer.axes, *counts, DType.FLOAT64, *orders)
    return testing.by_taps(problem, x, w)


def arrays(layer: Layer, filters: int = 2, channels: int = 2, dtype=np.float32):
    """Return x and w in the layer's orders: small integers, so that every sum is exact."""
    rng = np.random.default_rng(2026)
    size = tuple(axis.size for axis in layer.axes)
    x = layer.layout.shape(2, channels * layer.groups, size)
    w = layer.weight_layout.shape(channels * layer.groups, filters, layer.kernel)
    return (rng.integers(-9, 10, shape).astype(dtype) for shape in (x, w))


def agree(layer: Layer, y: np.ndarray, x: np.ndarray, w: np.ndarray) -> None:
    """Assert that a framework's result is the definition's; both sum small integers exactly."""
    expected = scatter(layer, x, w)
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, atol=1e-3)


def each(low: int, high: int, rank: int) -> st.SearchStrategy:
    return st.tuples(*(st.integers(low, high),) * rank)


@st.composite
def given_layer(draw, most_axes: int = 2) -> dict:
    rank = draw(st.integers(1, most_axes))
    return {
        "size": draw(each(1, 4, rank)),
        "kernel": draw(each(1, 4, rank)),
        "s": draw(each(1, 4, rank)),
        "d": draw(each(1, 3, rank)),
        "groups": draw(st.integers(1, 3)),
        "begin": draw(each(0, 3, rank)),
        "end": draw(each(0, 3, rank)),
        "extra": draw(st.one_of(st.just((0,) * rank), each(0, 4, rank))),
        "shift": draw(each(-2, 5, rank)),  # requested output size, below the full result
    }


def full_of(one: dict) -> tuple[int, ...]:
    numbers = zip(one["size"], one["kernel"], one["s"], one["d"], strict=True)
    return tuple(Axis(*row).full for row in numbers)


def layers(
    *, most: tuple[int, int, int, int], begin: tuple[int, int], end: tuple[int, int], groups: int
) -> st.SearchStrategy[Layer]:
    """Draw layers of any order and grouping; `most` bounds size, kernel, stride and dilation."""
    free = st.builds(
        lambda size, k, s, d, p, q: Axis(size, k, s, d, p, min(q, Axis(size, k, s, d).full - p)),
        *(st.integers(1, bound) for bound in most),
        *(st.integers(*begin), st.integers(*end)),
    )
    same = st.builds(
        lambda size, k, s: centred(size, k, s, 1, size * s, upper=True),
        *(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3)),
    )
    return st.builds(
        Layer,
        st.sampled_from((free, same, same)).flatmap(  # some dialects express few free layers
            lambda axes: st.lists(axes, min_size=1, max_size=3).map(tuple)
        ),
        st.integers(1, groups),
        st.sampled_from(DataLayout),
        st.sampled_from(WeightLayout),
        st.booleans(),
    )
