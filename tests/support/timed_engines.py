"""Engines with given run times, on a clock that they advance, and a new store for each test."""

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import upconv
from tests.support.made_up_clock import MadeUpClock
from upconv import engine_choice, timing, tuning
from upconv.problem import Problem
from upconv.tuning import autotune

X, W = np.ones((1, 1, 4), np.float32), np.ones((1, 1, 3), np.float32)


class Timed:
    """An engine with a given run time in seconds for each variant, "" first."""

    wait = staticmethod(time.sleep)

    def __init__(self, name: str, refusal: str | None = None, **seconds: float) -> None:
        self.name, self.refusal = name, refusal
        self.seconds = {variant.replace("own", ""): s for variant, s in seconds.items()}
        self.version = "1"
        self.built: list[str] = []
        self.runs: list[str] = []
        self.closed: list[str] = []

    def fingerprint(self) -> str:
        return self.version

    def refuses(self, problem: Problem) -> str | None:
        return self.refusal

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        return tuple(self.seconds)

    def build(self, problem: Problem, threads: int, variant: str = ""):
        self.built.append(variant)
        return TimedPrimitive(self, variant)


class TimedPrimitive:
    workspace_bytes = resident_bytes = 0
    description, predicted_cycles = "it sleeps", 4000.0

    def __init__(self, engine: Timed, variant: str) -> None:
        self.engine, self.variant = engine, variant

    def pack(self, weight):
        return weight

    def run(self, out, a, b, bias=None, residual=None) -> None:
        self.engine.runs.append(self.variant)
        self.engine.wait(self.engine.seconds[self.variant])
        out[...] = 1

    def close(self) -> None:
        self.engine.closed.append(self.variant)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MadeUpClock:
    """Let time pass only by engines, so that load does not affect the outcome."""
    clock = MadeUpClock(monkeypatch, autotune)
    monkeypatch.setattr(Timed, "wait", staticmethod(lambda seconds: clock.advance(seconds + 1e-7)))
    return clock


@pytest.fixture(autouse=True)
def file(tmp_path: Path, clock: MadeUpClock, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a new store, and a cache without other tests' primitives."""
    path = tmp_path / "tuning.sqlite"
    monkeypatch.setenv("UPCONV_TUNING_FILE", str(path))
    monkeypatch.delenv("UPCONV_TUNE", raising=False)
    monkeypatch.delenv("UPCONV_ENGINE", raising=False)
    upconv.cache_clear()
    yield path
    upconv.cache_clear()


@pytest.fixture
def real_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines really sleep, for tests of concurrent events."""
    for module in (autotune, timing):
        monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr(Timed, "wait", staticmethod(time.sleep))


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch):
    """Put engines into the table, in place of all others."""

    def put(*known: Timed) -> None:
        monkeypatch.setattr(engine_choice, "ENGINES", {e.name: e.name for e in known})
        by_name = {e.name: e for e in known}
        monkeypatch.setattr(engine_choice, "load", lambda name, argument="engine": by_name[name])
        upconv.cache_clear()

    return put


def records(file: Path) -> list[dict]:
    with closing(sqlite3.connect(file)) as database:
        found = database.execute("SELECT record FROM records WHERE section = 'winners'")
        return [json.loads(text) for (text,) in found]


def forget_in_memory() -> None:
    """Forget stores, as if the process had just started."""
    tuning._stores.clear()
