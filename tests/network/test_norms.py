"""Instance, group and layer norm of networks as native code, against their definition."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.native_steps import DTYPES, LAYOUTS, Case, checked, run
from upconv.engines.jit import statistics
from upconv.engines.jit.cpu import host
from upconv.network.graph import Input, Norm, Op
from upconv.network.norms import steps
from upconv.network.tables import Target
from upconv.problem import DataLayout, DType


def drawn(seed: int) -> Case:
    """A random norm of random arrays."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    most = {1: 5000, 2: 70, 3: 14}[rank]
    channels, groups = [(6, 3), (6, 6), (6, 1), (1, 1), (20, 4), (96, 8), (33, 33)][rng.integers(7)]
    size = rng.integers(1, most, rank).tolist()
    shape = (int(rng.integers(1, 4)), channels, *size)
    end = []
    if rng.integers(2):
        end += [Op("mul", rng.uniform(0.5, 1.5, channels)), Op("add", rng.uniform(-1, 1, channels))]
    if rng.integers(2):
        end.append(Op("leaky_relu", 0.2))
    if rng.integers(3) == 0:
        end += [Op("store"), Op("add", Input(1))]
    per_position = bool(rng.integers(3) == 0)
    inputs = 1 + any(isinstance(op.operand, Input) for op in end)
    return Case(
        Norm(groups, 1e-5, per_position, tuple(end)), (shape,) * inputs, LAYOUTS[rng.integers(2)],
        DTYPES[rng.integers(3)], int(rng.integers(1, 9)), slack=256, scale=4.0, seed=seed,
        view=bool(rng.integers(2)), out_view=bool(rng.integers(2)),
        in_place=bool(rng.integers(2)),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(80))
def test_random_norms(seed):
    case = drawn(seed)
    spread = case.shapes[0][1] // case.operation.groups > 1 or not case.operation.per_position
    checked(replace(case, spread=2.0 if spread else 1.0), steps)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["instance", "group", "layer"])
def test_threads_and_units_do_not_change_bits(layout, dtype, kind, monkeypatch):
    """Units of one job and phases with barriers compute the same sums in the same order."""
    rng = np.random.default_rng(4)
    shape = layout.shape(2, 24, (33, 41))
    x = (rng.standard_normal(shape) + 3).astype(dtype.numpy)
    operation = Norm({"instance": 24, "group": 4, "layer": 1}[kind], 1e-5, kind == "layer")
    results = set()
    for cache in (0, 1 << 30):
        cpu = replace(host(), l2=cache)
        for threads in (1, 2, 5, 8):
            out = np.empty_like(x)
            listed = steps(operation, [out], [x], Target(layout, threads, cpu))
            for _ in range(2):
                run(listed)
            results.add(out.tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("groups", "per_position"), [(8, False), (2, False), (1, True)])
def test_a_large_mean_keeps_the_variance(layout, groups, per_position):
    """Sums of squares would lose a variance of 1 beside a mean of 1000."""
    for size in ((400,), (300, 300), (7, 9, 5)):
        channels = 8 if not per_position else 64
        operation = Norm(groups, 1e-5, per_position)
        case = Case(operation, ((1, channels, *size),), layout, threads=2, mean=1e3, spread=1.0)
        checked(replace(case, slack=1e-4 * 2**23), steps)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups", [8, 2])
def test_an_outlier_where_sums_begin_keeps_the_variance(layout, groups):
    """The shift of all sums is the first row: here it is far from all others."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((1, 8, 120, 90))
    x[:, :, :2] += 3e3
    wanted = x.reshape(1, groups, -1)
    wanted = (wanted - wanted.mean(2, keepdims=True)) / wanted.std(2, keepdims=True)
    perm = np.argsort(layout.to_ncx(2))
    given = np.ascontiguousarray(x.transpose(perm)).astype(np.float32)
    out = np.empty_like(given)
    run(steps(Norm(groups, 0.0), [out], [given], Target(layout, 2, host())))
    assert np.abs(out.transpose(layout.to_ncx(2)) - wanted.reshape(x.shape)).max() < 1e-4


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 77])
def test_what_is_not_finite_spreads_over_its_group_only(layout, value, where):
    rng = np.random.default_rng(6)
    x = rng.standard_normal((2, 6, 200)).astype(np.float32)
    x[1, 3, where] = value
    perm = np.argsort(layout.to_ncx(1))
    given = np.ascontiguousarray(x.transpose(perm))
    out = np.empty_like(given)
    run(steps(Norm(3, 1e-5), [out], [given], Target(layout, 1, host())))
    bad = np.isnan(out.transpose(layout.to_ncx(1)))
    assert bad[1, 2:4].all()
    assert bad.sum() == 2 * 200


def test_constant_groups_become_zero():
    x = np.full((1, 4, 50), 7.25, np.float32)
    out = np.empty_like(x)
    run(steps(Norm(4, 1e-5), [out], [x], Target(DataLayout.NCX, 1, host())))
    assert not out.any()


def test_a_new_size_compiles_nothing():
    codes = (statistics.part_code, statistics.final_code, statistics.merge_code)

    def prepared(positions, layout):
        shape = layout.shape(1, 8, (positions,))
        arrays = [np.zeros(shape, np.float32) for _ in range(2)]
        return steps(Norm(4, positions * 1e-6), arrays[:1], arrays[1:], Target(layout, 2, host()))

    for layout in LAYOUTS:
        prepared(50_000, layout)
    before = [code.cache_info().misses for code in codes]
    for positions in (50_001, 60_000, 1_000_000):
        for layout in LAYOUTS:
            assert prepared(positions, layout)
    assert [code.cache_info().misses for code in codes] == before


def test_bfloat16_is_rounded_once():
    rng = np.random.default_rng(8)
    x = rng.standard_normal((1, 2, 999)).astype(DType.BFLOAT16.numpy)
    out, wide = np.empty_like(x), np.empty(x.shape, np.float32)
    run(steps(Norm(2, 1e-5), [out], [x], Target(DataLayout.NCX, 1, host())))
    run(steps(Norm(2, 1e-5), [wide], [x], Target(DataLayout.NCX, 1, host())))
    assert np.array_equal(out, wide.astype(out.dtype))
