"""The ceilings of the machine: plausible, bounded in time and memory, and a floor that follows."""

import threading
import time
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.tracing import traced
from upconv import memory
from upconv.engines.jit import roofline as limits
from upconv.engines.jit.compile import Code, assembly
from upconv.engines.jit.cpu import host
from upconv.engines.jit.roofline import Limits
from upconv.problem import DType

LIMITS = Limits(threads=2, flops=100.0, bandwidth=10.0)


@pytest.mark.parametrize(
    ("multiply_adds", "nbytes", "dtype", "seconds"),
    [
        (1000, 10, DType.FLOAT32, 20.0),
        (1000, 500, DType.FLOAT32, 50.0),
        (1000, 10, DType.FLOAT64, 40.0),
        (1000, 10, DType.BFLOAT16, 20.0),
        (0, 0, DType.FLOAT32, 0.0),
    ],
)
def test_the_roofline_time(multiply_adds: int, nbytes: int, dtype: DType, seconds: float) -> None:
    assert LIMITS.seconds(multiply_adds, nbytes, dtype) == seconds


def test_the_roofline_time_of_the_absurd_is_a_number() -> None:
    assert 1e200 < LIMITS.seconds(10**1000, 10**1000, DType.FLOAT32) < float("inf")


def test_the_clock_is_two_vectors_a_cycle() -> None:
    lanes = host().lanes(4)
    assert Limits(2, 3e9 * 4 * lanes * 2, 1.0).clock == pytest.approx(3e9)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_ceilings_of_this_machine(threads: int) -> None:
    start = time.process_time()
    found = limits.measure(threads)
    assert time.process_time() - start < 1.5 * threads
    assert found.threads == threads
    assert 1e8 < found.clock < 1e10


def test_a_copy_by_numpy_comes_near_the_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the processor's time: whoever else computes would disturb one of the two."""
    clock = SimpleNamespace(perf_counter=time.process_time)
    monkeypatch.setattr(limits, "time", clock)
    source, target = (np.ones(32 << 20, np.uint8) for _ in range(2))
    times = []
    for _ in range(5):
        start = time.process_time()
        np.copyto(target, source)
        times.append(time.process_time() - start)
    assert 0.1 < 2 * source.nbytes / min(times) / limits.measure(1).bandwidth < 3


@pytest.mark.parametrize("fused", [True, False])
def test_the_loop_adds_up_what_it_says(fused: bool) -> None:
    """Turn after turn acc += x * y, in every lane of every accumulator."""
    cpu = replace(host(), fused=fused)
    lanes, accumulators = cpu.lanes(4), 3
    code = Code(limits._spinning(lanes, accumulators, cpu), ("spin",), cpu)
    numbers = np.arange((accumulators + 2) * lanes, dtype=np.float32)
    rows = numbers.reshape(-1, lanes).copy()
    limits._SPIN(code.addresses["spin"])(7, numbers.ctypes.data)
    expected = rows[:accumulators] + 7 * rows[-2] * rows[-1]
    np.testing.assert_array_equal(numbers.reshape(-1, lanes)[:accumulators], expected)


def test_the_loop_stays_in_registers() -> None:
    """A ceiling measured through memory would be one of the load units."""
    cpu = host()
    if not cpu.triple.startswith("x86_64") or not cpu.fused:
        pytest.skip("reads the assembly of x86 with FMA")
    accumulators = cpu.registers * 3 // 4
    text = assembly(limits._spinning(cpu.lanes(4), accumulators, cpu), cpu)
    adds = [line for line in text.splitlines() if "vfmadd" in line]
    assert len(adds) >= accumulators
    assert not any("(" in line for line in adds)


def test_memory_is_bounded_however_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_SECONDS", 0.0)
    monkeypatch.setattr(limits.os, "cpu_count", lambda: 64)
    with traced():
        limits._bandwidth(64)
        assert tracemalloc.get_traced_memory()[1] < 520 << 20


def test_little_memory_makes_small_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_SECONDS", 0.0)
    monkeypatch.setattr(memory, "available_bytes", lambda: 8 << 20)
    with traced():
        assert limits._bandwidth(1) > 0
        assert tracemalloc.get_traced_memory()[1] < 3 << 20


def test_workers_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3)
    assert 0 <= limits._fastest(lambda worker: meeting.wait(60), 3, 0.0) < 60


def test_an_error_of_a_worker_arrives() -> None:
    with pytest.raises(ZeroDivisionError):
        limits._fastest(lambda worker: 1 // worker, 3, 0.0)
