"""Winograd's algorithm: its matrices, values beside direct sums, and what is not finite."""

import pickle
import random
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

import upconv
from tests.support import winograd_layers
from tests.support.repeating import seeds
from upconv import testing
from upconv.activations import Activation
from upconv.engine_choice import Algorithm, Selection, by_model
from upconv.engine_choice import variants as variants_of
from upconv.engines import load
from upconv.engines.jit import cpu as cpus
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import Cpu, host
from upconv.engines.jit.kernel_choice import table
from upconv.engines.jit.winograd import weights as winograd_weights
from upconv.engines.jit.winograd.schedule import schedules
from upconv.engines.jit.winograd.tables import Tables
from upconv.engines.jit.winograd.transforms import Transform
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem

HALVES, THIRDS = Transform.of(2, 2), Transform.of(3, 3)
NESTED = [
    *(Transform.of(*sizes).around(HALVES) for sizes in ((2, 2), (3, 2), (2, 3), (4, 3))),
    *(Transform.of(*sizes).around(HALVES.around(HALVES)) for sizes in ((2, 2), (2, 3))),
    Transform.of(2, 3).around(THIRDS),
]


def layer(channels: int = 64, size: int = 32, **more: object) -> Problem:
    """One that gains."""
    axes = (Axis(size, 4, 2, 1, 1, 1), Axis(size, 4, 2, 1, 1, 1))
    return Problem(Direction.FORWARD, axes, 1, channels, channels, **more)  # type: ignore[arg-type]


def vocoder(channels: int, size: int, kernel: int, dilation: int) -> Problem:
    """A convolution of a residual block."""
    crop = dilation * (kernel - 1) // 2
    axes = (Axis(size, kernel, 1, dilation, crop, crop),)
    return Problem(Direction.INPUT_GRAD, axes, 1, channels, channels)


@pytest.mark.parametrize(
    "transform",
    [Transform.of(m, r) for m, r in product(range(1, 5), range(1, 4)) if m + r <= 7] + NESTED,
    ids=lambda transform: transform.name,
)
def test_matrices_are_exact(transform: Transform) -> None:
    rng = random.Random(1)
    for r in range(1, transform.r + 1):
        fewer = transform.of_taps(r)
        assert fewer.points <= transform.points
        d = [Fraction(rng.randint(-999, 999)) for _ in range(fewer.m + fewer.r - 1)]
        g = [Fraction(rng.randint(-999, 999)) for _ in range(r)]
        made = d
        for matrix in fewer.b:
            made = [_dot(row, made) for row in matrix]
        made = [_dot(row[:r], g) * number for row, number in zip(fewer.g, made, strict=True)]
        for matrix in fewer.a:
            made = [_dot(row, made) for row in matrix]
        assert made == [_dot(g, d[b : b + r]) for b in range(fewer.m)]


def _dot(row: tuple[Fraction, ...], column: list[Fraction]) -> Fraction:
    return sum((a * b for a, b in zip(row, column, strict=True)), Fraction(0))


@pytest.mark.parametrize("seed", [*range(24), 167, 439, 810])
def test_errors_beside_direct_sums(seed: int) -> None:
    problem, threads = winograd_layers.layer(seed)
    names = winograd_layers.variants(problem, threads)
    exact = winograd_layers.variants(problem, threads, exact=True)
    for variant in {names[0], names[-1], exact[-1]}:
        most = 4 if variant in exact else 16
        assert winograd_layers.ratio(problem, variant, threads, seed) <= most, (problem, variant)


def test_a_planted_fault_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight's transform that is a thousandth too large at one point."""
    terms = winograd_weights._terms

    def wrong(*given: Any) -> tuple[np.ndarray, np.ndarray]:
        counts, factors = terms(*given)
        factors[:, :, -1] *= 1.001
        return counts, factors

    monkeypatch.setattr(winograd_weights, "_terms", wrong)
    for seed in seeds(6):
        problem, threads = winograd_layers.layer(seed)
        variant = winograd_layers.variants(problem, threads)[0]
        assert winograd_layers.ratio(problem, variant, threads, seed) > 16, (problem, variant)


@pytest.mark.parametrize("seed", range(100, 108))
def test_bits_do_not_depend_on_threads(seed: int) -> None:
    problem, _ = winograd_layers.layer(seed)
    given = testing.operands(problem)
    for variant in winograd_layers.variants(problem, 2):
        one = winograd_layers.computed(problem, variant, 1, given)
        for threads in (2, 5):
            again = winograd_layers.computed(problem, variant, threads, given)
            assert one.tobytes() == again.tobytes(), (problem, variant)


CASES = [case for case in testing.cases() if not case.rounded]
REASONS = {case: winograd_layers.refusal(case) for case in CASES}


def test_a_refusal_is_a_sentence() -> None:
    assert all(reason is None or len(reason.split()) >= 3 for reason in REASONS.values())


@pytest.mark.parametrize("problem", [case for case in REASONS if REASONS[case] is None], ids=str)
def test_conformance(problem: Problem) -> None:
    """Cases that every engine passes, where they can be done: within a wide tolerance, since
    rounding errors of Winograd's are those of a whole tile."""
    given = testing.operands(problem)
    wanted = testing.expected(problem, given)
    # Rounding a 16-bit result is most of what direct sums err.
    allowed = wanted.allowed.max(initial=0.0) * (8 if problem.dtype.itemsize > 2 else 1.5)
    names = winograd_layers.variants(problem, 2)
    for variant in {names[0], names[-1]}:
        found = winograd_layers.computed(problem, variant, 2, given)
        assert np.abs(found - wanted.value).max(initial=0.0) <= allowed, variant


@pytest.mark.parametrize("seed", range(300, 316))
def test_sixteen_bits(seed: int) -> None:
    """Operands are widened while they are packed, and results rounded as they leave. Outputs that
    no input reaches get float32 errors of their tile."""
    problem, threads = winograd_layers.layer(seed)
    for dtype in (DType.BFLOAT16, DType.FLOAT16):
        made = problem.replace(dtype=dtype)
        given = testing.operands(made, seed)
        wanted = testing.expected(made, given)
        for variant in winograd_layers.variants(made, threads, exact=True)[:1]:
            found = winograd_layers.computed(made, variant, threads, given)
            errors = np.abs(found.astype(np.float64) - wanted.value)
            allowed = 1.5 * wanted.allowed + 1e-3 * wanted.allowed.max()
            assert (errors <= allowed).all(), (made, variant)


@pytest.mark.parametrize("residual", [False, True])
def test_channels_that_share_a_set_of_the_cache(residual: bool) -> None:
    """Rows of results 128 KB apart are turned aside before they are written."""
    after = Epilogue(Activation.RELU, residual=residual)
    made = Problem(Direction.FORWARD, (Axis(1 << 14, 4, 2, 1, 1, 1),), 1, 16, 20, epilogue=after)
    assert made.result_shape[-1] == 1 << 15
    for variant in winograd_layers.variants(made, 2)[:2]:
        assert winograd_layers.ratio(made, variant, 2, 5) <= 4, variant


def test_small_integers_are_exact_in_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    """With usual caches, as the model chooses by their sizes."""
    cpu = replace(cpus.host(), l1=32 << 10, l2=1 << 20, l3=32 << 20)
    monkeypatch.setattr(cpus, "_host", lambda forced: cpu)
    rng = np.random.default_rng(1)
    layers = layer(), layer(layout=DataLayout.NXC), vocoder(64, 999, 7, 3), vocoder(64, 999, 11, 1)
    for made in layers:
        variant = chosen(made, Algorithm.AUTO).variant
        assert variant.startswith("winograd"), "the model has changed its mind: take another layer"
        x, w = (rng.integers(-8, 9, shape).astype(np.float32) for shape in made.operand_shapes)
        given = testing.Operands(x, w, None, None, np.zeros(made.result_shape, np.float32))
        direct = winograd_layers.computed(made, "", 2, given)
        for each in winograd_layers.variants(made, 2, exact=True):
            assert np.array_equal(winograd_layers.computed(made, each, 2, given), direct), each


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_an_operand_that_is_not_finite_goes_the_direct_way(bad: float, layout: str) -> None:
    rng = np.random.default_rng(2)
    shape = (2, 32, 9, 11) if layout == "NCX" else (2, 9, 11, 32)
    x = rng.standard_normal(shape, np.float32)
    w, bias = rng.standard_normal((32, 40, 4, 4), np.float32), np.zeros(40, np.float32)
    how = {"stride": 2, "padding": 1, "layout": layout, "engine": "jit", "activation": "relu"}
    plan = upconv.plan(shape, w, bias, algorithm="winograd", **how)
    direct = upconv.plan(shape, w, bias, algorithm="direct", **how)
    for place in ((0, 0, 0, 0), tuple(n - 1 for n in shape), (1, 4, 5, 6)):
        given = x.copy()
        given[place] = bad
        with np.errstate(all="ignore"):
            assert plan(given).tobytes() == direct(given).tobytes()
    # What was not finite in one call leaves no trace in the next.
    assert not np.array_equal(plan(x), direct(x))
    np.testing.assert_allclose(plan(x), direct(x), atol=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_dilated_operand_that_is_not_finite(bad: float) -> None:
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((1, 32, 200), np.float32), rng.standard_normal((32, 32, 7))
    w, x[0, 3, 150] = w.astype(np.float32), bad
    how = {"padding": 9, "dilation": 3, "engine": "jit"}
    found, direct = (
        upconv.conv(x, w, algorithm=algorithm, **how) for algorithm in ("winograd", "direct")
    )
    assert found.tobytes() == direct.tobytes()
    assert 0 < (~np.isfinite(direct)).sum() < direct.size


def test_a_weight_that_is_not_finite_goes_to_the_reference_engine() -> None:
    w = np.ones((16, 16, 4), np.float32)
    w[3, 4, 2] = np.inf
    plan = upconv.plan((1, 16, 40), w, stride=2, algorithm="winograd")
    assert plan.engine == "reference"


def test_infinite_bias_and_residual_are_results() -> None:
    made = layer(16, 8, bias=True, epilogue=Epilogue(residual=True))
    given = testing.operands(made)
    given.bias[3], given.residual[0, 5, 2, 2] = np.inf, np.nan
    variant = winograd_layers.variants(made, 1)[0]
    found = winograd_layers.computed(made, variant, 1, given)
    direct = winograd_layers.computed(made, "", 1, given)
    assert np.array_equal(np.isfinite(found), np.isfinite(direct))


def test_what_is_refused() -> None:
    x, w = np.ones((1, 4, 6), np.float32), np.ones((4, 4, 2), np.float32)
    with pytest.raises(upconv.EngineRefusal, match=r"by Winograd.*taps.*auto"):
        upconv.conv_transpose(x, w, stride=2, algorithm="winograd")
    with pytest.raises(upconv.EngineRefusal, match="reference: it computes directly"):
        upconv.plan(x.shape, w, engine="reference", algorithm="winograd")
    with pytest.raises(upconv.ArgumentError, match=r"algorithm.*'fast'.*'auto', 'direct'"):
        upconv.conv(x, w, algorithm="fast")
    for changed, word in (
        (layer().replace(direction=Direction.WEIGHT_GRAD), "input gradients"),
        (layer().replace(axes=(Axis(99, 99),)), "taps"),
        (layer().replace(axes=(Axis(9, 2, 2),)), "taps"),
        (layer().replace(axes=(Axis(0, 4, 2),)), "nothing to multiply"),
    ):
        assert word in winograd_layers.refusal(changed)


def chosen(
    problem: Problem, algorithm: Algorithm, engine: str | None = None, *, once: bool = False
) -> Selection:
    return by_model(problem, engine, 2, algorithm, once)


def test_auto_and_direct(zen4: Cpu) -> None:
    made = layer()
    assert chosen(made, Algorithm.DIRECT).variant == ""
    assert chosen(made, Algorithm.AUTO, "reference").variant == ""
    small = layer(4, 5)
    assert chosen(small, Algorithm.AUTO).variant == ""
    assert chosen(small, Algorithm.WINOGRAD).variant.startswith("winograd ")
    # A weight that is packed for one call takes longer than its products save.
    few = layer(256, 16)
    assert chosen(few, Algorithm.AUTO).variant.startswith("winograd ")
    assert chosen(few, Algorithm.AUTO, once=True).variant == ""


def test_operands_read_with_a_stride_where_caches_are_far(zen4: Cpu) -> None:
    """There the model prefers direct sums: an input gradient of 21 channels, k16 s8, took 2.3 times
    as long by Winograd's algorithm."""
    axes = (Axis(64, 16, 8, 1, 4, 4),) * 2
    forward = Problem(Direction.FORWARD, axes, 1, 64, 21)
    strided = Problem(Direction.INPUT_GRAD, axes, 1, 21, 21)
    far = replace(zen4, mesh=True)
    taken = [
        [any(candidate.winograd for candidate in table(problem, 2, cpu, every=False))
         for problem in (forward, strided)]
        for cpu in (zen4, far)
    ]  # fmt: skip
    assert taken == [[True, True], [True, False]]


def test_variants_of_an_algorithm() -> None:
    engine, made = load("jit"), layer()
    direct, auto, all_tiles = (
        variants_of(engine, made, 2, algorithm)
        for algorithm in (Algorithm.DIRECT, Algorithm.AUTO, Algorithm.WINOGRAD)
    )
    assert not any(name.startswith("winograd") for name in direct)
    assert auto[: len(direct)] == direct
    assert len(auto) > len(direct)
    assert not any("4" in name for name in auto[len(direct) :]), "larger tiles only when asked"
    assert all(name.startswith("winograd") for name in all_tiles)
    assert any("F(4,2)" in name for name in all_tiles)


def test_calls_plans_and_explanations(fresh_cache) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((1, 64, 16, 16), np.float32), rng.standard_normal((64, 64, 4, 4))
    w = w.astype(np.float32)
    how = {"stride": 2, "padding": 1}
    direct = upconv.conv_transpose(x, w, algorithm="direct", **how)
    by_call = upconv.conv_transpose(x, w, algorithm="winograd", **how)
    with upconv.plan(x.shape, w, algorithm="winograd", **how) as plan:
        assert np.array_equal(plan(x), by_call)
        assert np.array_equal(pickle.loads(pickle.dumps(plan))(x), by_call)
    assert fresh_cache.info().entries == 2
    assert not np.array_equal(direct, by_call)
    np.testing.assert_allclose(direct, by_call, atol=1e-3)
    told = upconv.explain(x.shape, w, algorithm="winograd", **how)
    assert told.variant in told.schedule.replace(": ", " ")
    assert "products for" in told.schedule
    assert "errors about" in told.schedule
    assert upconv.explain(x.shape, w, algorithm="direct", **how).variant == ""
    y = upconv.conv(x, w[:, :, :3, :3], padding=1, algorithm="winograd")
    with upconv.conv_plan(x.shape, w[:, :, :3, :3], padding=1, algorithm="winograd") as plan:
        assert np.array_equal(plan(x), y)


def test_tuning_keeps_algorithms_apart(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("UPCONV_TUNING_FILE", str(tmp_path / "tuning.sqlite"))
    upconv.tuning_clear()
    w = np.ones((16, 16, 4), np.float32)
    for algorithm in ("direct", "winograd"):
        upconv.plan((1, 16, 64), w, stride=2, padding=1, algorithm=algorithm, tune=True)
    assert upconv.tuning_info().winners == 2
    told = upconv.explain((1, 16, 64), w, stride=2, padding=1, algorithm="winograd", tune=True)
    assert told.variant.startswith("winograd F(")


def test_a_huge_image_needs_no_tables() -> None:
    """A row for each row of each block once took all memory for 100,000 x 100,000."""
    primitive = load("jit").build(layer(size=100_000), 1, "winograd F(3,2)xF(3,2)")
    assert primitive.resident_bytes < 1 << 20
    primitive.close()


def tables_of(problem: Problem, cpu: Cpu) -> Tables:
    correlation = Correlation.of(problem)
    return Tables(correlation, schedules(correlation, 2, cpu)[0])


@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("size", [33, 100_000])
def test_tables_do_not_grow_with_blocks(layout: DataLayout, size: int) -> None:
    problem = layer(size=size, layout=layout).replace(batch=7)
    tables = tables_of(problem, replace(host(), l2=512 << 10))  # a larger L2 makes few blocks
    assert tables.nbytes < 32 << 10
    assert tables.blocks > 10


def test_tables_of_many_kinds_are_bounded() -> None:
    """Three axes, with many phases and with windows that reach over several blocks."""
    volume = Problem(Direction.FORWARD, (Axis(60, 16, 8, 1, 4, 4),) * 3, 1, 64, 64)
    wide = Problem(Direction.INPUT_GRAD, (Axis(200, 7, 1, 8, 24, 24),) * 2, 1, 64, 64)
    for problem in (volume, wide):
        assert tables_of(problem, host()).nbytes < 64 << 10
