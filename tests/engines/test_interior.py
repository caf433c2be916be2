"""What engines are given of a problem, and what lies around it: axes of one position, trimming."""

from itertools import product
from math import prod

import numpy as np
import pytest

import upconv
from upconv import testing
from upconv.engines import interior, load
from upconv.engines.interior import Interior
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import host
from upconv.engines.jit.positions.primitive import Positions
from upconv.engines.ordered_sums import invariant_engine
from upconv.geometry import Axis, fitted
from upconv.problem import DataLayout, Direction, Problem, WeightLayout

POINT = Axis(1, 1, 2)
LINE = Axis(1025, 3, 2, 1, 1, 1)
WIDE = {
    "one row": (POINT, LINE),
    "one row, one plane": (POINT, POINT, LINE),
    "one column": (LINE, POINT),
    "one position": (POINT, POINT),
    "one row made by the padding": (Axis(1, 3, 1, 1, 1, 1), LINE),
}


@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("axes", WIDE)
def test_axes_of_one_position(axes: str, layout: DataLayout) -> None:
    """Channels enough for slabs, which cut the first axis that is left."""
    problem = Problem(Direction.FORWARD, WIDE[axes], 2, 128, 64, layout=layout, bias=True)
    flat = problem.replace(axes=tuple(a for a in WIDE[axes] if a.size > 1) or (POINT,))
    for engine in map(load, ("jit", "reference")):
        for variant in engine.variants(flat, 2):
            given = testing.operands(problem)
            results = []
            for one in (problem, flat):
                kernel = [slice(None)] * 2 + [
                    a.kernel // 2 if a.size == 1 else slice(None) for a in problem.axes
                ]
                w = given.b[tuple(kernel)].reshape(flat.weight_shape) if one is flat else given.b
                primitive = engine.build(one, 2, variant)
                out = np.full(one.y_shape, np.nan, np.float32)
                primitive.run(out, given.a.reshape(one.x_shape), primitive.pack(w), given.bias)
                results.append(out.reshape(flat.y_shape))
            np.testing.assert_allclose(*results, rtol=0, atol=1e-5, err_msg=variant)


def test_a_point_among_other_axes_is_dropped_from_arrays_and_problem() -> None:
    axes = (Axis(3, 2, 2), Axis(1, 3, 1, 1, 1, 1), Axis(4, 2, 2))
    for layout, weight_layout in product(DataLayout, WeightLayout):
        problem = Problem(
            Direction.FORWARD, axes, 2, 6, 12, 3, layout=layout, weight_layout=weight_layout
        )
        interior = Interior.of(problem, margins=True, points=False)
        assert interior.problem is not None
        assert interior.problem.kernel == (2, 2)
        given = testing.operands(problem)
        assert given.a[interior.x].shape == interior.problem.x_shape
        assert given.before[interior.y].shape == interior.problem.y_shape
        assert given.b[interior.w].shape == interior.problem.weight_shape
        assert np.shares_memory(given.before[interior.y], given.before)


def test_inputs_that_are_cropped_away_take_no_tables() -> None:
    """1.4 MiB of x once took 45 seconds and 5.7 GiB."""
    size = 300
    whole = fitted(size, 64, 64, 1, 0, 0).full
    axes = (fitted(size, 64, 64, 1, whole // 2, 64),) * 2 + (Axis(4, 3),)
    problem = Problem(Direction.FORWARD, axes, 1, 1, 1)
    primitive = load("jit").build(problem, 1)
    assert primitive.resident_bytes < 4 << 20
    testing.check(
        load("jit"), problem.replace(axes=(fitted(9, 64, 64, 1, 256, 64),) * 2 + axes[2:])
    )


def test_resident_bytes_count_the_tables() -> None:
    axes = (Axis(100, 2, 2), Axis(100, 2, 2), Axis(3, 2, 2))
    problem = Problem(Direction.FORWARD, axes, 1, 2, 2)
    sizes = []
    for first in (axes[0], Axis(400, 2, 2)):
        correlation = Correlation.of(problem.replace(axes=(first, *axes[1:])))
        kernel = Positions(correlation, 1, host())
        tables = sum(table.nbytes for table in kernel._tables.values())
        sizes.append((tables, kernel.resident_bytes))
    (few, small), (many, large) = sizes
    assert few < many
    assert large - small == many - few


def test_tables_beyond_what_they_are_worth_are_refused() -> None:
    axes = (Axis(100, 64, 64), Axis(100, 64, 64), Axis(4, 2, 2))
    refusal = load("jit").refuses(Problem(Direction.FORWARD, axes, 1, 1, 1))
    assert refusal is not None
    assert str(64 * 64 * 100 * 100) in refusal
    assert prod(axis.out for axis in axes[:2]) == 64 * 64 * 100 * 100


@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("activation", ["gelu", "tanh", "silu", "relu"])
def test_what_nothing_reaches_has_the_bits_of_what_zeros_reach(
    activation: str, layout: DataLayout
) -> None:
    """The border is NumPy's to fill and the interior the kernel's; both are f(bias) here."""
    shape = layout.shape(1, 3, (4,))
    w, bias = np.ones((5, 3, 2), np.float32), np.linspace(-2, 2, 5, dtype=np.float32)
    y = upconv.conv(
        np.zeros(shape, np.float32), w, bias, padding=20, layout=layout.value,
        activation=activation, engine="jit",
    )  # fmt: skip
    y = y if layout is DataLayout.NCX else y.transpose(0, 2, 1)
    assert (y == y[..., 22:23]).all()


def test_the_border_of_float64_results_needs_eight_bytes_a_number(monkeypatch) -> None:
    needed: list[int] = []
    monkeypatch.setattr(interior.memory, "require", lambda nbytes, _: needed.append(nbytes))
    upconv.conv(np.ones((1, 1, 4)), np.ones((1, 1, 2)), padding=20, engine="jit")
    assert 2 * 19 * 8 in needed  # 19 positions on each side, which no input reaches


def test_an_order_of_sums_is_kept_at_every_size() -> None:
    """Each output from few inputs and from many, by the kernel the model takes for the many."""
    jit = load("jit")
    rng = np.random.default_rng(3)
    for channels, long in ((4, 9000), (64, 30)):
        whole = Problem(Direction.FORWARD, (Axis(long, 4, 2, 1, 1, 1),), 1, channels, 32)
        engine = invariant_engine(whole)
        x, w = (rng.standard_normal(s, np.float32) for s in whole.operand_shapes)
        results = []
        for problem, by in (
            (whole, jit),
            (whole.replace(axes=(fitted(10, 4, 2, 1, 1, 16),)), engine),
        ):
            primitive = by.build(problem, 1)
            out = np.empty(problem.y_shape, np.float32)
            given = x[..., : problem.size[0]]
            primitive.run(out, given, primitive.pack(w))
            results.append(out[..., :16])
        assert results[0].tobytes() == results[1].tobytes(), engine.sums
