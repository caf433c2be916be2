"""Fixtures of all tests: the engines that are here, a fresh cache for tests that count."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest
from hypothesis import HealthCheck, settings

import upconv
from upconv import primitives, threads
from upconv.engines import load
from upconv.engines.jit import compile as compiling
from upconv.testing import checks

# No verdict depends on the clock: a machine that stands still for 30 s is no slow strategy.
settings.register_profile(
    "quick",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("quick")

compiling.VERIFYING = True


def remembered(function):
    """The function, called once for a small problem that several engines or faults compute."""
    kept = lru_cache(400)(function)
    return lambda problem, *by: (kept if problem.nbytes < 1 << 20 else function)(problem, *by)


# The definition takes longer than most engines.
checks.operands = remembered(checks.operands)
checks.expected = remembered(checks.expected)

AVAILABLE = [status.name for status in upconv.engines() if status.available]


@pytest.fixture(params=AVAILABLE)
def engine(request: pytest.FixtureRequest):
    """Every engine that can be used here, one after the other."""
    return load(request.param)


@pytest.fixture
def fresh_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[primitives.PrimitiveCache]:
    """The shared cache, empty and with its counts at zero, before and after."""
    upconv.cache_clear()
    yield primitives.shared_cache()
    upconv.cache_clear()


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """PyTorch's threads wait for each other on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def upconv_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trial says: the original takes 2 ms, upconv 1."""
    from upconv.torch import trials

    def clock(ways, *_):
        return [(way(), told)[1] for way, told in zip(ways, (2.0, 1.0), strict=True)]

    monkeypatch.setattr(trials, "best_of", clock)
    monkeypatch.setattr(trials, "GAIN", float("inf"))
    monkeypatch.setattr(trials, "_ROUNDS", (1, 1))


@pytest.fixture
def own_threads() -> Iterator[None]:
    """No other library's threads are borrowed, whatever was imported before."""
    before = threads.borrowed()
    threads.borrow(None)
    yield
    threads.borrow(before)
