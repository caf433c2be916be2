"""The way of a repeated call: few frames to native code, few modules, one look-up, no checks."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import upconv
from upconv import shape_checks
from upconv.engines.reference import ReferenceEngine

PACKAGE = Path(upconv.__file__).parent
X, W = np.ones((1, 4, 8, 8), np.float32), np.ones((4, 4, 4, 4), np.float32)
HOW = {"stride": 2, "padding": 1}
Y = upconv.conv_transpose(X, W, **HOW)

CALLS = {
    "conv_transpose": lambda: upconv.conv_transpose(X, W, **HOW, engine="jit"),
    "conv": lambda: upconv.conv(Y, W, **HOW, engine="jit"),
    "plan": upconv.plan(X.shape, W, **HOW, engine="jit").__call__,
}


def stacks(call: Callable[[], object]) -> list[list[str]]:
    """The stack of upconv's frames, as "module.function", whenever one of them begins.

    Python tells of the calls of functions written in it: the last one before native code is seen.
    """
    call()
    own = {str(path): path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")}
    seen: list[list[str]] = []

    def profile(frame, event, _argument) -> None:
        if event != "call" or frame.f_code.co_filename not in own:
            return
        stack = []
        while frame is not None:
            file = frame.f_code.co_filename
            if file in own:
                stack.append(f"{own[file]}.{frame.f_code.co_name}")
            frame = frame.f_back
        seen.append(stack[::-1])

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.parametrize(("name", "limit"), [("conv_transpose", 6), ("plan", 6), ("conv", 7)])
def test_at_most_six_frames_lead_to_native_code(name: str, limit: int) -> None:
    """Here `conv` takes the channels kernel, which runs its blocks one by one."""
    call = (lambda: CALLS[name](X)) if name == "plan" else CALLS[name]
    native = [stack for stack in stacks(call) if stack[-1].startswith("engines/jit/pool.")]
    assert native, "the pool is what calls compiled code"
    for stack in native:
        if not any(frame.endswith(".pack") for frame in stack):
            assert len(stack) <= limit, " > ".join(stack)


class Null(ReferenceEngine):
    """Computes nothing: what is left of a call is the way to a primitive and back."""

    name = "null"

    def build(self, problem, threads, variant=""):
        primitive = super().build(problem, threads, variant)
        primitive.pack = lambda weight: weight
        primitive.run = lambda *operands: None
        return primitive


@pytest.mark.parametrize("name", ["conv_transpose", "conv_transpose_backward"])
def test_few_modules_take_part(name: str) -> None:
    engine, operands = Null(), (X, W) if name == "conv_transpose" else (Y, X, W)
    seen = stacks(lambda: getattr(upconv, name)(*operands, **HOW, engine=engine))
    modules = {stack[-1].rpartition(".")[0] for stack in seen}
    assert len(modules) <= 10, modules
    assert modules.isdisjoint({"engine_choice", "tuning/__init__"}), (
        "a repeated call chooses nothing"
    )
    if name == "conv_transpose":
        assert len(seen) <= 24, [stack[-1] for stack in seen]


def test_a_repeated_call_is_not_checked_again(monkeypatch, fresh_cache) -> None:
    checked = []
    shape_checks._forward.cache_clear()
    original = shape_checks._problem
    monkeypatch.setattr(
        shape_checks, "_problem", lambda *a, **k: (checked.append(1), original(*a, **k))[1]
    )
    for _ in range(3):
        upconv.conv_transpose(X, W, **HOW)
        upconv.conv_transpose_backward(Y, X, W, **HOW)
    assert len(checked) == 2
    for changed in (
        {"x": X[..., 1:]},
        {"x": X.astype(np.float64), "weight": W.astype(np.float64)},
        {"bias": W[0, :, 0, 0]},
        {"residual": Y},
        {"stride": (2, 1)},
        {"activation": "relu"},
        {"engine": "reference"},
    ):
        upconv.conv_transpose(**{"x": X, "weight": W, **HOW, **changed})
    assert len(checked) == 8, "another engine is another call, of the same signature"


def test_a_dropped_primitive_is_built_anew(monkeypatch) -> None:
    cache = upconv.primitives.PrimitiveCache(max_entries=1)
    monkeypatch.setitem(upconv.primitives._shared, "", cache)
    for _ in range(3):
        np.testing.assert_array_equal(upconv.conv_transpose(X, W, **HOW), Y)
        upconv.conv_transpose(X, W, stride=1)
    assert (cache.info().entries, cache.info().builds) == (1, 6)


def test_threads_are_part_of_the_call(fresh_cache) -> None:
    upconv.conv_transpose(X, W, **HOW)
    builds = upconv.cache_info().builds
    upconv.set_num_threads(upconv.get_num_threads() + 1)
    upconv.conv_transpose(X, W, **HOW)
    assert upconv.cache_info().builds == builds + 1
