"""Compiled work for the tests of the pool, which records the threads that did it."""

import ctypes
import time

import numpy as np

from upconv.engines.jit import pool
from upconv.engines.jit.compile import Code
from upconv.engines.jit.cpu import host
from upconv.engines.jit.emit import Module
from upconv.engines.jit.values import I64, PTR

PATIENCE = 200_000_000  # iterations of `meet`: seconds, which only a failure takes
TAKEN, COUNT, TURNS, CALLS, FLAG, MET = 0, 8, 16, 128, 256, 384
STACKS, MAX_CALLS = 512, 64
RESULTS = STACKS + 8 * MAX_CALLS


def _enter(f):
    """Emit code that counts the call and stores a stack address, which identifies the thread."""
    call = f.take(f["work"] + CALLS)
    with f.when(call < MAX_CALLS):
        stack = f.convert("ptrtoint", f.scratch(8), I64)
        f.store(stack, f.at(f["work"] + STACKS, call, I64))


def _emit_jobs(module):
    """Emit results[j] += 3 * j + 7 for every job j, after some iterations of a loop."""
    with module.function("jobs", {"work": PTR}) as f:
        _enter(f)
        x = f.scratch(8)
        with f.forever() as done:
            job = f.take(f["work"] + TAKEN)
            f.leave(done, job >= f.word(f["work"] + COUNT))
            with f.loop(0, f.word(f["work"] + TURNS)) as loop:
                f.publish(loop.index, x)
            result = f.at(f["work"] + RESULTS, job, I64)
            f.store(f.load(I64, result) + (job * 3 + 7), result)


def _emit_meet(module):
    """Emit a wait for COUNT calls or the flag, for at most TURNS iterations; count successes."""
    with module.function("meet", {"work": PTR}) as f:
        _enter(f)
        left = f.scratch(8)
        f.store(f.word(f["work"] + TURNS), left)
        with f.forever() as done:
            f.store(f.load(I64, left) - 1, left)
            f.leave(done, f.load(I64, left) <= 0)
            calls = f.observe(f["work"] + CALLS)
            f.leave(done, calls >= f.word(f["work"] + COUNT))
            f.leave(done, f.compare("ne", f.observe(f["work"] + FLAG), 0))
            f.relax(host().triple)
        with f.when(f.load(I64, left) > 0):
            f.take(f["work"] + MET)


def _compiled():
    module = Module(host())
    _emit_jobs(module)
    _emit_meet(module)
    return Code(module, ("jobs", "meet"), host())


CODE = _compiled()  # compiled once: it must not be freed while a thread runs it


class Work:
    """Memory of one piece of work, and its outcome."""

    def __init__(self, jobs: int = 0) -> None:
        self.words = np.zeros(RESULTS // 8 + jobs, np.int64)
        self.view = memoryview(self.words)
        self.address = self.words.ctypes.data
        self.expected = 3 * np.arange(jobs) + 7
        self.jobs = jobs

    def start(self, threads: int, turns: int = 0) -> None:
        """Do all jobs."""
        self.words[:] = 0
        self.view[COUNT // 8], self.view[TURNS // 8] = self.jobs, turns
        pool.run(CODE.addresses["jobs"], self.address, threads)

    def meet(self, threads: int, calls: int, turns: int) -> None:
        """Let `calls` calls wait for one another, or for the flag."""
        self.words[:] = 0
        self.view[COUNT // 8], self.view[TURNS // 8] = calls, turns
        pool.run(CODE.addresses["meet"], self.address, threads)

    def all_meet(self, threads: int) -> None:
        """Let `threads` threads meet: at once if sleep is native, else in one of several tries."""
        native = pool._pool is not None and pool._pool.tokens is None
        tries = 1 if native or threads == 1 else 50
        for _ in range(tries):
            self.meet(threads, threads, PATIENCE // tries)
            assert self.calls <= threads
            if self.met == threads:
                return
        raise AssertionError(f"{self.met} of {threads} met")

    def check(self, threads: int) -> None:
        """Assert that every job was done once, by at most `threads` threads, each called once."""
        results = self.words[RESULTS // 8 :]
        assert np.array_equal(results, self.expected), np.flatnonzero(results != self.expected)
        assert 1 <= self.calls <= threads
        stacks = np.sort(self.words[STACKS // 8 :][: min(self.calls, MAX_CALLS)])
        assert (np.diff(stacks) > 1 << 14).all(), "one thread was called twice"

    def raise_flag(self) -> None:
        """Raise the flag that `meet` waits for."""
        self.view[FLAG // 8] = 1

    @property
    def calls(self) -> int:
        """The number of threads that were called."""
        return self.view[CALLS // 8]

    @property
    def met(self) -> int:
        """The number of threads that did not wait in vain."""
        return self.view[MET // 8]


def counts() -> tuple[int, int, int]:
    """Return the numbers of helpers awake, asleep, and called but not yet awake."""
    from upconv.engines.jit.protocol import ASLEEP, AWAKE, SLEEP

    sleep = ctypes.c_uint64.from_address(pool._pool.control + SLEEP).value
    return sleep // AWAKE, sleep // ASLEEP % (AWAKE // ASLEEP), sleep % ASLEEP


def asleep(helpers):
    """Return a condition: this many helpers sleep, and there are no others."""
    return lambda: counts() == (0, helpers, 0)


def until(condition, seconds=100.0):
    """Wait for a condition; the time is only a bound for hangs."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition was never met"
        time.sleep(0.001)
