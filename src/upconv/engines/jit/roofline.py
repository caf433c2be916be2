"""The roofline of this machine: its peak FLOP/s and its memory bandwidth.

Both are the best of several measured runs. A roofline is the machine's limit, not its average
speed, and a single undisturbed run shows it.

1. Peak FLOP/s: all threads run a loop over independent accumulators in registers. The widest
   vectors are not always the fastest, so narrower vectors are tried too.
2. Bandwidth: each thread copies an array far larger than the caches. Both the bytes read and the
   bytes written count, as in a problem's bytes.

Together they give a problem's *roofline time*. No direct algorithm that reads its data from memory
can beat it; an algorithm whose data is already in the caches may.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import memory
from ...problem import DType
from .compile import Code
from .cpu import Cpu, host
from .emit import Module
from .values import BYTES, FLOAT, I64, PTR, vector

_SECONDS = 0.2  # per measurement, without compilation and first touches of memory
_FEWEST_RUNS = 4
_SPIN_SECONDS = 4e-3
_NARROWEST = 4  # lanes: SSE and NEON
_MAX_BYTES = 512 << 20
_LARGEST_ARRAY = 64 << 20
_MOST = 10**300
_FLOP_PER_LANE = 4  # two multiply-adds per cycle, the maximum of all supported processors

Numbers = np.ndarray[Any, np.dtype[np.float32]]
Spin = Callable[[int, int], None]
_SPIN = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class Limits:
    """The combined roofline of `threads` threads.

    `flops` counts float32, two operations per multiply-add; `bandwidth` is in bytes per second.

    >>> Limits(threads=1, flops=2e11, bandwidth=2e10).seconds(10**9, 10**6, DType.FLOAT32)
    0.01
    """

    threads: int
    flops: float
    bandwidth: float

    def seconds(self, multiply_adds: int, nbytes: int, dtype: DType) -> float:
        """Return the time to compute at peak FLOP/s, or to move every byte once if that is longer.

        float64 multiplies at half the rate; 16-bit types are multiplied as float32.
        """
        rate = self.flops / 2 if dtype is DType.FLOAT64 else self.flops
        # An absurdly large problem has more multiply-adds than a float can count.
        return max(2 * min(multiply_adds, _MOST) / rate, min(nbytes, _MOST) / self.bandwidth)

    @property
    def clock(self) -> float:
        """One thread's cycles per second, if the peak is two vectors per cycle."""
        return self.flops / (self.threads * _FLOP_PER_LANE * host().lanes(BYTES[FLOAT]))


def measure(threads: int) -> Limits:
    """Measure the roofline of this machine on `threads` threads, in under 1.5 seconds.

    Raises `MemoryLimitError` if even small arrays would not fit.
    """
    # More threads than processors add neither execution units nor bandwidth.
    workers = min(threads, os.cpu_count() or threads)
    return Limits(threads, _flops(workers, host()), _bandwidth(workers))


def key() -> str:
    """Return a cached roofline's key, except for the number of threads."""
    cpu = host()
    return f"{cpu.name} {8 * cpu.vector_bytes} bit"


# Multiply-adds ------------------------------------------------------------------------------------


def _flops(workers: int, cpu: Cpu) -> float:
    """Return the best rate of all vector widths, each measured for an equal time."""
    accumulators = cpu.registers * 3 // 4
    widest = cpu.lanes(BYTES[FLOAT])
    widths = [widest >> i for i in range(widest.bit_length()) if widest >> i >= _NARROWEST]
    return max(_rate(lanes, accumulators, workers, cpu, _SECONDS / len(widths)) for lanes in widths)


def _rate(lanes: int, accumulators: int, workers: int, cpu: Cpu, seconds: float) -> float:
    """Return the operations per second for one vector width."""
    code = Code(_spinning(lanes, accumulators, cpu), ("spin",), cpu)
    spin: Spin = _SPIN(code.addresses["spin"])
    buffers = [np.full((accumulators + 2) * lanes, 1e-3, np.float32) for _ in range(workers)]
    iterations = _iterations(spin, buffers[0])

    def work(worker: int) -> None:
        spin(iterations, buffers[worker].ctypes.data)

    return 2.0 * lanes * accumulators * iterations * workers / _fastest(work, workers, seconds)


def _spinning(lanes: int, accumulators: int, cpu: Cpu) -> Module:
    """Emit `spin(iterations, p)`: each iteration computes acc[i] += x * y, where p points to the
    accumulators, x and y."""
    module, kind = Module(cpu), vector(FLOAT, lanes)
    step = lanes * BYTES[FLOAT]
    with module.function("spin", {"iterations": I64, "p": PTR}) as f:
        *start, x, y = [f.load(kind, f["p"] + i * step) for i in range(accumulators + 2)]
        with f.loop(0, f["iterations"], carried=start) as loop:
            loop.next([f.multiply_add(x, y, acc) for acc in loop.carried])
        for i, acc in enumerate(loop.results):
            f.store(acc, f["p"] + i * step)
    return module


def _iterations(spin: Spin, buffer: Numbers) -> int:
    """Return how many iterations take about `_SPIN_SECONDS`."""
    iterations, seconds = 250, 0.0
    while seconds < _SPIN_SECONDS / 4:
        iterations *= 4
        start = time.perf_counter()
        spin(iterations, buffer.ctypes.data)
        seconds = time.perf_counter() - start
    return max(1, int(iterations * _SPIN_SECONDS / seconds))


# Bandwidth ----------------------------------------------------------------------------------------


def _bandwidth(workers: int) -> float:
    allowed = min(_MAX_BYTES, memory.available_bytes() // 4)
    size = max(64, min(_LARGEST_ARRAY, allowed // (2 * workers)) // 64 * 64)
    memory.require(size * 2 * workers, "measuring the bandwidth of memory")
    pairs = [(np.ones(size, np.uint8), np.ones(size, np.uint8)) for _ in range(workers)]
    fastest = _fastest(lambda worker: np.copyto(*pairs[worker]), workers, _SECONDS)
    return 2.0 * size * workers / fastest


# Timing -------------------------------------------------------------------------------------------


def _fastest(work: Callable[[int], object], workers: int, seconds: float) -> float:
    """Return the shortest time of the runs that fit into `seconds`, at least `_FEWEST_RUNS`. A run
    calls `work` with each worker's number, all at the same time."""
    deadline, times = time.perf_counter() + seconds, list[float]()
    with ThreadPoolExecutor(workers) as pool:
        while len(times) < _FEWEST_RUNS or time.perf_counter() < deadline:
            start = time.perf_counter()
            list(pool.map(work, range(workers)))
            times.append(time.perf_counter() - start)
    return min(times)
