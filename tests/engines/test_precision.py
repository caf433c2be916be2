"""float32 arrays multiplied in bfloat16, and arrays of bfloat16: every kernel, every direction.

Results are held to float64 sums of the rounded operands. 2,000 layers of real sizes, for ten
minutes:

    python -m pytest tests/engines/test_precision.py -m long
"""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import upconv
from tests.support.held_kernels import Held
from upconv import testing
from upconv.engines import load
from upconv.engines.base import Primitive
from upconv.engines.jit import rows
from upconv.engines.jit.rounded_operands import cast_code
from upconv.errors import ArgumentError, EngineRefusal
from upconv.network import Network
from upconv.problem import DataLayout, Direction, DType, Problem

RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 12, 7, 9), np.float32)
W = RNG.standard_normal((12, 20, 4, 3), np.float32) / 12
HOW: dict[str, Any] = {"stride": 2, "padding": 1}


def halved(array: np.ndarray) -> np.ndarray:
    """The nearest numbers with eight bits, as float64, ties to even."""
    mantissa, exponent = np.frexp(array.astype(np.float64))
    return np.ldexp(np.rint(mantissa * 256), exponent - 8)


def near(result: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether float32 sums are these, whose operands were rounded alike."""
    assert result.dtype == np.float32
    return bool(np.abs(result - wanted).max() < 3e-6 * np.abs(wanted).max())


def variant(number: int) -> Held:
    """The JIT engine held to one of its variants."""

    def make(problem: Problem, threads: int) -> Primitive:
        names = load("jit").variants(problem, threads)
        return load("jit").build(problem, threads, names[number % len(names)])

    return Held("jit", make)


def layers(seeds: range) -> Iterator[tuple[int, Problem]]:
    """Layers of real sizes in bfloat16: the arrays' own type, or that of rounded operands."""
    for seed in seeds:
        direction = tuple(Direction)[seed % 3]
        problem = testing.layer(seed, direction)
        for layout in DataLayout:
            laid = problem.replace(layout=layout, dtype=DType.BFLOAT16)
            rounds = (seed // 3 + (layout is DataLayout.NXC)) % 2
            yield seed, laid.replace(dtype=DType.FLOAT32, rounded=True) if rounds else laid


def check(seeds: range) -> int:
    count = 0
    for seed, problem in layers(seeds):
        if load("jit").refuses(problem) is None:
            testing.check(variant(seed // 6), problem, seed, threads=1 + seed % 2)
            count += 1
    return count


def test_layers_of_real_sizes() -> None:
    pytest.importorskip("ml_dtypes")
    assert check(range(600, 612)) > 12


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_many_layers(part: int) -> None:
    assert check(range(2000 + 50 * part, 2050 + 50 * part)) > 60


@pytest.mark.parametrize("engine", [None, "jit", "reference"])
def test_all_directions_of_both_layers(engine: str | None) -> None:
    how = HOW | {"engine": engine}
    x, w = halved(X), halved(W)
    bias = RNG.standard_normal(20).astype(np.float32)
    wanted = upconv.conv_transpose(x, w, bias.astype("f8"), **HOW)
    result = upconv.conv_transpose(X, W, bias, precision="bfloat16", **how)
    assert near(result, wanted), "the bias is not rounded"
    residual = RNG.standard_normal(result.shape).astype(np.float32)
    plan = upconv.plan(X.shape, W, bias, activation="relu", precision="bfloat16", **how)
    assert near(plan(X, residual), np.maximum(wanted + residual, 0)), "nor is the residual"
    grad = RNG.standard_normal(result.shape).astype(np.float32)
    found = upconv.conv_transpose_backward(grad, X, W, precision="bfloat16", **how)
    exact = upconv.conv_transpose_backward(halved(grad), x, w, **HOW)
    assert found.x is not None
    assert found.weight is not None
    assert near(found.x, exact.x)
    assert near(found.weight, exact.weight)
    assert np.array_equal(found.bias, upconv.conv_transpose_backward(grad, X, W, **how).bias), (
        "a sum of what is not multiplied"
    )
    weight = W.swapaxes(0, 1)
    wanted = upconv.conv(x, halved(weight), **HOW)
    for made in (
        upconv.conv(X, weight, precision="bfloat16", **how),
        upconv.conv_plan(X.shape, weight, precision="bfloat16", **how)(X),
    ):
        assert near(made, wanted)
    back = RNG.standard_normal(wanted.shape).astype(np.float32)
    found = upconv.conv_backward(back, X, weight, precision="bfloat16", **how)
    exact = upconv.conv_backward(halved(back), x, halved(weight), **HOW)
    assert near(found.x, exact.x)
    assert near(found.weight, exact.weight)


def test_only_when_asked() -> None:
    exact = upconv.conv_transpose(X.astype("f8"), W.astype("f8"), **HOW)
    single = upconv.conv_transpose(X, W, **HOW)
    assert near(single, exact)
    assert single.tobytes() == upconv.conv_transpose(X, W, precision="float32", **HOW).tobytes()
    low = upconv.conv_transpose(X, W, precision="bfloat16", **HOW)
    assert not near(low, exact)
    plan = upconv.plan(X.shape, W, precision="bfloat16", **HOW)
    bound = testing.error_bound(plan.problem)
    assert (np.abs(low - exact) <= bound * upconv.conv_transpose(abs(X), abs(W), **HOW)).all()
    assert bound > 50 * testing.error_bound(plan.problem.replace(rounded=False))
    once_more = pickle.loads(pickle.dumps(plan)), plan.resized(X.shape)
    for again in (plan, *once_more):
        assert near(again(X), upconv.conv_transpose(halved(X), halved(W), **HOW))


def test_arrays_of_bfloat16_are_that_already() -> None:
    dtype = pytest.importorskip("ml_dtypes").bfloat16
    x, w = X.astype(dtype), W.astype(dtype)
    plain, asked = (
        upconv.conv_transpose(x, w, precision=precision, **HOW) for precision in (None, "bfloat16")
    )
    assert plain.tobytes() == asked.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_arrays_are_refused(dtype: str) -> None:
    with pytest.raises(ArgumentError, match=f"expected None or '{dtype}', the arrays' own type"):
        upconv.conv_transpose(X.astype(dtype), W.astype(dtype), precision="bfloat16")


@pytest.mark.parametrize("precision", ["bf16", "float16", 16, True, ["bfloat16"]])
def test_unknown_precisions_are_refused(precision: Any) -> None:
    network = Network({"x": (1, 3, 8)})
    network.output(network.conv(network.inputs["x"], W[:4, :3, 0], padding=1))
    calls: list[Callable[..., object]] = [
        lambda **how: upconv.conv_transpose(X, W, **how),
        lambda **how: upconv.plan(X.shape, W, **how),
        lambda **how: upconv.explain(X.shape, W, **how),
        lambda **how: network.compile(**how),
    ]
    for call in calls:
        with pytest.raises((ArgumentError, upconv.UpconvError), match="precision"):
            call(precision=precision)


def test_libdnnl_says_no() -> None:
    if not {status.name: status for status in upconv.engines()}["onednn"].available:
        pytest.skip("it is not here")
    with pytest.raises(EngineRefusal, match="not round operands"):
        upconv.conv_transpose(X, W, precision="bfloat16", engine="onednn")


def test_explain_says_what_it_costs() -> None:
    told = upconv.explain(X.shape, W, precision="bfloat16", **HOW)
    assert "precision            bfloat16: a product errs by up to 0.0078 of it" in str(told)
    assert "not round operands" in str(told)
    assert "bfloat16" not in str(upconv.explain(X.shape, W, **HOW))


@pytest.mark.parametrize("layout", DataLayout)
def test_what_is_not_finite_or_becomes_infinite(layout: DataLayout) -> None:
    """The largest float32 is infinite in bfloat16; NaN stays NaN, whatever its bits are."""
    how = HOW | {"layout": layout.value, "precision": "bfloat16"}
    x = X if layout is DataLayout.NCX else np.ascontiguousarray(np.moveaxis(X, 1, -1))
    for number in (np.nan, np.inf, np.finfo(np.float32).max, np.uint32(0x7F800001).view("f4")):
        for taken in (0, 1):
            operands = [x.copy(), W.copy()]
            operands[taken].reshape(-1)[100] = number
            jit, defined = (
                upconv.conv_transpose(*operands, engine=engine, **how)
                for engine in ("jit", "reference")
            )
            assert not np.isfinite(defined).all()
            assert np.array_equal(np.isnan(jit), np.isnan(defined))
            assert np.array_equal(np.isinf(jit), np.isinf(defined))


@pytest.mark.parametrize("layout", DataLayout)
def test_rounding_towards_zero_is_caught(
    layout: DataLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def truncated(f: Any, value: Any, kind: str) -> Any:
        bits = f.convert("bitcast", value, rows._bits(value.type, "i32")) >> 16
        short = f.convert("trunc", bits, rows._bits(value.type, "i16"))
        return f.convert("bitcast", short, kind)

    def forget() -> None:
        for code in (cast_code, rows.gather_code, transpose.transpose_code):
            code.cache_clear()

    from upconv.engines.jit import transpose

    case = next(c for c in testing.cases() if c.rounded and c.layout is layout)
    for number in (0, 1, 2):
        testing.check(variant(number), case)
    monkeypatch.setattr(rows, "_narrowed", truncated)
    forget()
    try:
        for number in (0, 1, 2):
            with pytest.raises(AssertionError, match="are wrong"):
                testing.check(variant(number), case)
    finally:
        forget()
