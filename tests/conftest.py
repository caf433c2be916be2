"""Fixtures of all tests: the engines that are here, a fresh cache for tests that count."""

import os
import signal
import sys
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import upconv
from tests.support import repeating
from upconv import primitives, threads
from upconv.engines import ON_DEVICES, load
from upconv.engines.jit import compile as compiling
from upconv.engines.jit import cpu as cpus
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Print below a failure the one line that repeats it."""
    report = yield
    if report.failed and call.excinfo is not None:
        long = item.get_closest_marker("long") is not None
        line = repeating.line(item.nodeid, str(call.excinfo.value), long=long)
        report.sections.append(("repeat it", line))
    if call.when == "teardown":
        repeating.forget()
    return report


def remembered(function):
    """The function, called once for a small problem that several engines or faults compute."""
    kept = lru_cache(400)(function)
    return lambda problem, *by: (kept if problem.nbytes < 1 << 20 else function)(problem, *by)


# The definition takes longer than most engines.
checks.operands = remembered(checks.operands)
checks.expected = remembered(checks.expected)

VARIABLES = ("UPCONV_", "ONEDNN_", "OMP_")
SIGNALS = ("SIGINT", "SIGTERM", "SIGALRM")
AVAILABLE = [
    status.name for status in upconv.engines() if status.available and status.name != ON_DEVICES
]


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
def zen4(monkeypatch: pytest.MonkeyPatch) -> cpus.Cpu:
    """Choose for a Zen 4 with 1 MiB of L2 on any machine. For choices: its code might not run."""
    known = cpus.target("x86_64-unknown-linux-gnu", "znver4", "", cpus._KNOWN["znver4"])
    cpu = replace(known, l1=32 << 10, l2=1 << 20)
    monkeypatch.setattr(cpus, "_host", lambda forced: cpu)
    return cpu


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """Take the number of threads back that a test, or a command it runs here, has set, and fail
    where it leaves the process changed in another way: tests after it would find that."""
    torch = sys.modules.get("torch")
    chosen, before = threads._chosen, _settings(torch)
    yield
    threads.set_num_threads(chosen)
    assert _settings(torch) == before


def _settings(torch: Any) -> dict[str, object]:
    """What tests could leave changed in this process; of PyTorch where it was imported before."""
    settings: dict[str, object] = {
        name: value for name, value in os.environ.items() if name.startswith(VARIABLES)
    }
    for name in SIGNALS:
        settings[name] = signal.getsignal(getattr(signal, name)) if hasattr(signal, name) else None
    settings["folder"], settings["errors"] = Path.cwd(), np.geterr()
    settings["PyTorch's threads"] = torch and torch.get_num_threads()
    return settings


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """PyTorch's threads wait for each other on a busy machine."""
    torch = pytest.importorskip("torch")

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def upconv_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trial says: PyTorch takes 2 ms and upconv 1, in parts and layers alike."""
    from upconv.measuring import Ratio
    from upconv.torch import forwards, selection, trials

    verdict = trials.Verdict(0.002, 0.001, "")
    monkeypatch.setattr(trials, "measured_part", lambda *_: verdict)
    monkeypatch.setattr(forwards, "_LONG_CAPTURE", float("inf"))  # the machine may be busy
    monkeypatch.setattr(selection, "choose", told_choice)
    monkeypatch.setattr(trials, "is_faster", lambda *_: True)
    monkeypatch.setattr(trials.Samples, "ratio", Ratio(2.0, 2.0, 2.0))


@pytest.fixture
def layers_are_faster(upconv_is_faster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `upconv_is_faster`, and no graph is captured."""
    from upconv.torch.forwards import Forward
    from upconv.torch.snapshots import Unwatchable

    def refused(*_):
        raise Unwatchable("a test says so")

    monkeypatch.setattr(Forward, "capture", refused)


def told_choice(ways, *, arrays, **_):
    """`measuring.choose` with a made-up clock: the first way whose results are right wins."""
    from upconv.measuring import Choice, Outcome, Ratio, disagreement

    def result(way):
        way.prepare()
        return list(arrays(way.run()))

    expected = result(ways[0])
    wrong = {way.name: disagreement(result(way), expected) for way in ways[1:]}
    right = [name for name, why in wrong.items() if not why]
    outcomes = [Outcome(ways[0].name, 0.002, None, "upconv is faster" if right else "")]
    for name, why in wrong.items():
        outcomes.append(Outcome(name, 0.001, Ratio(2.0, 2.0, 2.0), why))
    return Choice(right[0] if right else ways[0].name, tuple(outcomes), len(ways))


@pytest.fixture
def two_torch_threads() -> Iterator[Any]:
    """PyTorch, with two threads, which are borrowed."""
    torch = pytest.importorskip("torch")
    from upconv.torch import thread_pool

    before, borrowed = torch.get_num_threads(), threads.borrowed()
    torch.set_num_threads(2)
    thread_pool.borrow_pool()
    yield torch
    torch.set_num_threads(before)
    threads.borrow(borrowed)


@pytest.fixture
def own_threads() -> Iterator[None]:
    """No other library's threads are borrowed, whatever was imported before."""
    before = threads.borrowed()
    threads.borrow(None)
    yield
    threads.borrow(before)
