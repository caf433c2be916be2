"""Fixtures of all tests: the engines that are here, a fresh cache for tests that count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

import upconv
from upconv import primitives
from upconv.engines import load
from upconv.engines.jit import compile as compiling

settings.register_profile("quick", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("quick")

compiling.VERIFYING = True

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
