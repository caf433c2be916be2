"""The im2col kernel: results of a weight that is read in place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import upconv
from tests.support.held_kernels import Held, packed_before_and_in_call
from upconv import testing
from upconv.engine_choice import Algorithm, choose
from upconv.engines import load
from upconv.engines.base import Eligible
from upconv.engines.jit import cpu
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import host, target
from upconv.engines.jit.im2col import candidates, code
from upconv.engines.jit.im2col.candidates import IM2COL, plan_of
from upconv.engines.jit.im2col.limits import refusal
from upconv.engines.jit.im2col.primitive import Im2col
from upconv.engines.jit.kernel_choice import interior_of, table
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem, WeightLayout

NXC, OIX = DataLayout.NXC, WeightLayout.OIX
AVX2 = target("x86_64", "haswell", "", {"avx", "avx2", "fma", "f16c"})
SQUARE = (Axis(3, 4, 2, 1, 1, 1),) * 2
LAYERS: dict[str, tuple[Direction, tuple[Axis, ...], int, int, int, int, dict[str, Any]]] = {
    "images in one panel": (Direction.INPUT_GRAD, SQUARE, 3, 29, 5, 1, {}),
    "full panels": (Direction.INPUT_GRAD, (Axis(64, 8, 4, 1, 2, 2),), 1, 70, 12, 1, {}),
    "channels last": (Direction.INPUT_GRAD, SQUARE, 2, 40, 37, 1, {"layout": NXC}),
    "groups": (Direction.INPUT_GRAD, SQUARE, 1, 50, 6, 2, {}),
    "groups of channels last": (Direction.INPUT_GRAD, SQUARE, 1, 50, 6, 2, {"layout": NXC}),
    "a volume": (Direction.INPUT_GRAD, (Axis(2, 3, 2, 2, 1, 0),) * 3, 1, 13, 3, 1, {}),
    "a long kernel": (Direction.INPUT_GRAD, (Axis(5, 301, 7, 1, 100, 90),), 1, 12, 2, 1, {}),
    "pointwise": (Direction.INPUT_GRAD, (Axis(6, 1), Axis(2, 1)), 1, 31, 9, 1, {}),
    "forward": (Direction.FORWARD, (Axis(4, 3),) * 2, 1, 8, 37, 1, {"weight_layout": OIX}),
}
BOTH_TYPES = pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])


def layer(name: str, dtype: DType = DType.FLOAT32) -> Problem:
    direction, axes, batch, in_channels, out_channels, groups, more = LAYERS[name]
    channels = in_channels, out_channels, groups
    bias = direction is Direction.FORWARD
    return Problem(direction, axes, batch, *channels, dtype=dtype, bias=bias, **more)


def built(problem: Problem, threads: int = 1) -> Im2col:
    correlation = Correlation.of(problem)
    assert refusal(correlation) is None, refusal(correlation)
    return Im2col(correlation, threads, host())


@BOTH_TYPES
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("threads", [1, 3])
def test_values(name: str, dtype: DType, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small caches cut rows into chunks, and work is worth a thread at once."""
    monkeypatch.setattr(candidates, "useful_threads", lambda work, most: most)
    monkeypatch.setattr(candidates, "_L1_PANEL", 1 / 64)
    testing.check(Held("im2col", built), layer(name, dtype), threads=threads)


@BOTH_TYPES
@pytest.mark.parametrize("name", LAYERS)
def test_a_copied_weight_and_one_in_place_give_the_same_bits(name: str, dtype: DType) -> None:
    problem = layer(name, dtype)
    before, after = packed_before_and_in_call(built(problem), problem)
    assert before.tobytes() == after.tobytes()


@pytest.mark.parametrize("name", ["full panels", "channels last", "groups"])
def test_neither_threads_nor_caches_nor_sizes_change_a_bit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "useful_threads", lambda work, most: most)
    problem = layer(name)
    given = testing.operands(problem)
    alone = testing.compute(Held("im2col", built), problem, given)
    for share, threads in ((1 / 2, 4), (1 / 512, 1), (1 / 64, 2)):
        monkeypatch.setattr(candidates, "_L1_PANEL", share)
        again = testing.compute(Held("im2col", lambda p, _, n=threads: built(p, n)), problem, given)
        assert alone.tobytes() == again.tobytes()
    first = problem.replace(batch=1)
    part = replace(given, a=given.a[:1], before=given.before[:1])
    assert testing.compute(Held("im2col", built), first, part).tobytes() == alone[:1].tobytes()


def test_a_caller_may_change_a_planned_weight() -> None:
    problem = layer("channels last")
    given, kernel = testing.operands(problem), built(problem)
    packed, expected, got = kernel.pack(given.b), given.before.copy(), given.before.copy()
    kernel.run(expected, given.a, packed)
    given.b[...] = 7
    kernel.run(got, given.a, packed)
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["images in one panel", "channels last", "full panels"])
def test_numbers_that_are_not_finite_change_only_what_reads_them(name: str, special: float) -> None:
    """The last tap reads zeros around some positions, whose results stay finite."""
    problem = layer(name)
    for of_weight in (True, False):
        given = testing.operands(problem)
        if of_weight:
            given.b[(0, 0, *[-1] * problem.rank)] = special
        else:
            given.a[(0, 0, *[1] * problem.rank)] = special
        wanted, got = (
            testing.compute(each, problem, given) for each in (load("reference"), Variant())
        )
        assert np.array_equal(np.isfinite(got), np.isfinite(wanted))
        assert np.isfinite(got).any()
        assert not np.isfinite(got).all()


class Variant:
    """The JIT engine held to this kernel; each call is given its weight."""

    name = "im2col"

    def build(self, problem: Problem, threads: int, variant: str = "") -> Any:
        primitive = load("jit").build(problem, threads, IM2COL)
        assert primitive.description.startswith("im2col"), primitive.description
        return CallsOnce(primitive)


class CallsOnce:
    """A primitive that packs nothing before a call."""

    def __init__(self, primitive: Any) -> None:
        self._primitive = primitive
        self.close = primitive.close

    def pack(self, weight: np.ndarray) -> np.ndarray:
        return weight

    def run(self, out: np.ndarray, a: np.ndarray, b: np.ndarray, *ends: Any) -> None:
        self._primitive.run_once(out, a, b, *ends)


def test_results_with_gaps_and_weights_out_of_order_are_right() -> None:
    """Arrays that the kernel cannot read or write in place are copied."""
    rng = np.random.default_rng(1)
    grad = rng.standard_normal((1, 12, 256)).astype("f")
    weight = rng.standard_normal((8, 12, 70)).astype("f").transpose(2, 1, 0)
    x = rng.standard_normal((1, 70, 64)).astype("f")
    out = np.zeros((1, 70, 128), "f")[..., ::2]
    how = {"stride": 4, "padding": 2, "needs": ("x",)}
    got = upconv.conv_transpose_backward(grad, x, weight, out=upconv.Gradients(x=out), **how).x
    assert got is out
    wanted = upconv.conv_transpose_backward(grad, x, weight, engine="reference", **how).x
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


# The choice -------------------------------------------------------------------------------------


def deep(size: int, **more: Any) -> Problem:
    """The input gradient of the first layers of a decoder, with many channels."""
    axes = (Axis(size, 4, 2, 1, 1, 1),) * 2
    return Problem(Direction.INPUT_GRAD, axes, 1, 1024, 512, **more)


def taken(problem: Problem, *, once: bool, algorithm: Algorithm = Algorithm.DIRECT) -> str:
    return choose(problem, "jit", 2, algorithm, once=once).variant


@pytest.fixture(params=[(1 << 15, 1 << 19), (48 << 10, 2 << 20)], ids=["Zen 3", "Xeon"])
def forced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """AVX2 beside caches of these sizes, whatever the host has."""
    monkeypatch.setenv("UPCONV_JIT_CPU", "haswell")
    monkeypatch.setattr(cpu, "_caches", lambda: (*request.param, 32 << 20))
    _forget()
    yield
    _forget()


def _forget() -> None:
    cpu._host.cache_clear()
    upconv.cache_clear()


@pytest.mark.usefixtures("forced")
def test_it_is_taken_for_one_call_with_a_large_weight() -> None:
    assert taken(deep(4), once=True) == IM2COL
    assert taken(deep(4), once=True, algorithm=Algorithm.AUTO) == IM2COL
    assert taken(deep(4), once=False) == ""
    assert taken(deep(40), once=True) == ""


def test_the_table_says_that_it_is_for_one_call() -> None:
    (candidate,) = (c for c in table(deep(4), 2, AVX2, every=True) if c.variant == IM2COL)
    assert candidate.eligible is Eligible.ONCE
    assert candidate.packing == 0
    assert candidate.sums == IM2COL


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (deep(4, dtype=DType.FLOAT16), "it reads float32 or float64 weights in place"),
        (deep(4, rounded=True), "it reads float32 or float64 weights in place"),
        (deep(4, accumulate=True), "it applies no epilogue"),
        (deep(4, epilogue=Epilogue(residual=True)), "it applies no epilogue"),
        (deep(4, weight_layout=WeightLayout.XIO), "the weights of a result channel are"),
        (deep(33), "the copied inputs of all positions would be larger than the weight"),
        (replace(deep(1), in_channels=5), "it needs at least 6 result channels per group"),
        (
            Problem(Direction.INPUT_GRAD, (Axis(500, 1000, 9),), 1, 600, 1),
            "it handles at most 262144 reads per image, not 500000",
        ),
        (replace(deep(4), direction=Direction.FORWARD), "it needs result stride 1"),
    ],
)
def test_what_it_refuses(problem: Problem, reason: str) -> None:
    inner = interior_of(problem, margins=True).problem
    assert inner is not None
    assert (refusal(Correlation.of(inner)) or "").startswith(reason)


def test_the_plan_of_a_layer() -> None:
    """A panel of 16 positions takes half of 32 KiB, and 6 rows of the same inputs little of L2."""
    plan = plan_of(Correlation.of(deep(8)), 2, replace(AVX2, l1=1 << 15, l2=1 << 19))
    assert plan.tile == code.Tile("float", 8, 6, 2)
    assert plan.chunk == 256
    assert plan.tiles == 10
    assert plan_of(Correlation.of(deep(2)), 2, AVX2).tile.vectors == 1  # 4 positions
