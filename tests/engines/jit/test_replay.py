"""Calls on arrays without gaps, which repeat the first one with other addresses."""

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.engines.jit.test_steps import JIT, variants
from tests.support.random_problems import case
from upconv import testing
from upconv.activations import Activation
from upconv.engines.base import Array
from upconv.engines.jit.operands import Kernel
from upconv.engines.jit.replay import Replay
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Problem


def moved(array: Array, offset: int) -> Array:
    """A copy that begins `offset` elements behind a line of the cache."""
    memory = np.empty(array.size + 64 + offset, array.dtype)
    view = memory.view(f"u{array.itemsize}")
    first = -view.ctypes.data % 64 // array.itemsize + offset
    copy = memory[first : first + array.size].reshape(array.shape)
    copy[...] = array
    return copy


def repeated(problem: Problem, threads: int, variant: str, repeats: bool) -> list[bytes]:
    """The results of some calls of one primitive, each on arrays of its own, which stay as they
    are when later calls run."""
    primitive = JIT.build(problem, threads, variant)
    results: list[tuple[Array, bytes]] = []
    for seed, offset in enumerate((0, 3, 0, 1, 3)):
        given = testing.operands(problem, seed)
        out = moved(given.before, offset)
        a, ends = moved(given.a, offset), (given.bias, None, given.slopes)
        primitive.run(out, a, primitive.pack(given.b), *ends)
        results.append((out, out.tobytes()))
        again = moved(given.before, offset)
        primitive.run_once(again, a, given.b, *ends)
        assert again.tobytes() == out.tobytes(), "packing in the call gives other bits"
        results.append((again, again.tobytes()))
    assert all(out.tobytes() == kept for out, kept in results), "a call wrote another's result"
    kernel = getattr(primitive, "_inner", primitive)
    if repeats and isinstance(kernel, Kernel) and not variant.startswith("winograd"):
        assert kernel._replays, "no call on arrays without gaps was kept"
        assert all(kernel._replays.values()), "a pointer into no array"
    return [kept for _, kept in results]


@pytest.fixture
def bound_anew(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have each call bind its launches."""

    def never() -> None:
        monkeypatch.setattr(Replay, "of", lambda *_: None)

    return never


@pytest.mark.parametrize("seed", range(30))
def test_random_problems(seed: int, bound_anew: Callable[[], None]) -> None:
    one = case(seed)
    plain = {"residual": False, "second": Activation.NONE, "second_slope": 0.0}
    epilogue = replace(one.problem.epilogue, **plain)
    problem = replace(one.problem, epilogue=epilogue)
    if JIT.refuses(problem) is not None:
        return
    listed = list(variants(problem, one.threads))
    found = [repeated(problem, one.threads, variant, True) for variant in listed]
    bound_anew()
    for variant, results in zip(listed, found, strict=True):
        assert repeated(problem, one.threads, variant, False) == results, variant


LAYER = Problem(Direction.INPUT_GRAD, (Axis(20, 4, 2, 1, 1, 1),) * 2, 2, 32, 48)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
@pytest.mark.parametrize("layout", DataLayout)
def test_a_planted_fault_is_caught(
    layout: DataLayout, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: pointers into the result keep the address of the first call."""
    init = Replay.__init__

    def planted(self: Replay, launches: list) -> None:
        pointers = launches[-1][2]
        pointers[:] = [pointer for pointer in pointers if pointer[1] != 0]
        init(self, launches)

    problem = replace(LAYER, layout=layout, dtype=dtype)
    for variant in variants(problem, 1):
        if variant.startswith("winograd"):
            continue
        expected = repeated(problem, 1, variant, True)
        with monkeypatch.context() as patch:
            patch.setattr(Replay, "__init__", planted)
            try:
                results = repeated(problem, 1, variant, True)
            except AssertionError:
                continue
            assert results != expected, variant


def test_merged_axes_repeat_too() -> None:
    """A layer of one tap has its axes merged, and so fewer than its arrays."""
    pointwise = replace(LAYER, axes=(Axis(9, 1),) * 2)
    assert all(repeated(pointwise, 1, variant, True) for variant in variants(pointwise, 1))


def test_threads_repeat_one_call() -> None:
    primitive = JIT.build(LAYER, 2)
    given = [testing.operands(LAYER, seed) for seed in range(8)]
    expected = [one.before.copy() for one in given]
    for one, out in zip(given, expected, strict=True):
        JIT.build(LAYER, 2).run(out, one.a, primitive.pack(one.b))
    wrong = []

    def call(number: int) -> None:
        one = given[number]
        weight, out = primitive.pack(one.b), one.before.copy()
        for _ in range(200):
            out.fill(np.nan)
            primitive.run(out, one.a, weight)
            if out.tobytes() != expected[number].tobytes():
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
