"""Helper threads for compiled work, and `run`, which starts work on them.

Work functions divide the work with an atomic counter, so any number of helpers may take part, even
none. `protocol` opens, joins and closes a run.

1.  Helpers are daemon threads that stay in native code without the interpreter's lock. On systems
    with a futex they sleep there and never return, not even at exit, so neither their code nor the
    control block is ever freed. Elsewhere they wait in Python for one of the tokens that `run`
    hands out first. An extra token costs one check; a missing token, one helper in one run.
2.  There are as many helpers as the largest run so far needed, or as the system could start. They
    poll for a tenth of a millisecond after their last work: a longer time would take processor time
    from other libraries' threads, a shorter one would put them to sleep between two layers.
3.  One thread leads at a time. Another thread that calls `run` meanwhile works alone: the helpers
    are busy anyway, and more threads than processors would slow everything down.
4.  Ctrl-C takes effect before or after native code, never in it, so a run is never left half done.
5.  If another library's threads are awake (`threads.borrow`), they do the work instead, because
    both pools would share the processors. A forked child process never borrows them.
6.  A forked child process has no helpers: the control block is reset, and helpers start with the
    child's first run. The lock is held during the fork, so the child never sees a half-built pool.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import lru_cache

from ... import forks
from ...threads import ThreadPool, borrowed
from .affinity import Affinity
from .compile import Code, provided
from .cpu import Cpu, host
from .emit import Module
from .protocol import ASLEEP, AWAKE, FIRST, MOST, NBYTES, SLEEP, Futex, System, emit

_POLL_SECONDS = 100e-6
_leading = threading.Lock()
_FUTEX = {"x86_64": 202, "aarch64": 98}  # asm/unistd.h

_LEAD = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_SERVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_ITERATION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_ALONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def run(work: int, argument: int, threads: int) -> None:
    """Call the function at address `work` on this thread and on up to `threads` - 1 others.

    Each calls it at most once, with `argument`, in native code and without the interpreter's lock.
    `run` returns when all have returned. If another thread is in `run`, this one works alone.
    """
    if threads <= 1:
        _alone(work)(argument)
        return
    other = borrowed()
    if other is not None and other.awake():
        _run_on(other, work, argument, threads)
        return
    pool, limit = _pool or _create(), min(threads - 1, MOST)
    if pool.helpers < limit:
        pool.start(limit)
    if pool.tokens is not None:
        pool.hand_out_tokens(limit)
    pool.lead(pool.control, work, argument, limit)


def _run_on(other: ThreadPool, work: int, argument: int, threads: int) -> None:
    """Run on another library's threads, or alone if another thread is using them."""
    if not _leading.acquire(blocking=False):
        _alone(work)(argument)
        return
    try:
        other.run(work, argument, threads)
    finally:
        _leading.release()


@lru_cache(maxsize=256)
def _alone(work: int) -> Callable[[int], None]:
    return _ALONE(work)


class _Pool:
    """This process's native code, control block and helpers."""

    def __init__(self, cpu: Cpu, system: System) -> None:
        module = Module(cpu)
        emit(module, system)
        code = Code(module, ("lead", "serve", "iteration"), cpu, opt=0)
        # After the block: the last generation each helper has heard, kept between calls of `serve`.
        block = ctypes.create_string_buffer(NBYTES + 8 * MOST + 128)
        for kept in (code, block):  # case 1
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        self.control = -(-ctypes.addressof(block) // 128) * 128
        self.lead = _LEAD(code.addresses["lead"])
        self._serve = _SERVE(code.addresses["serve"])
        self._native = system.futex is not None
        self.begin()
        self._iterations = self._measured(_ITERATION(code.addresses["iteration"]))

    def begin(self) -> None:
        """Reset the control block; there are no helper threads."""
        ctypes.memset(self.control, 0, NBYTES + 8 * MOST)
        for offset, number in FIRST.items():
            ctypes.c_int64.from_address(self.control + offset).value = number
        self.helpers = 0
        self.tokens = None if self._native else threading.Semaphore(0)

    def _measured(self, iteration: Callable[[int, int], None]) -> int:
        """Return the number of polls in `_POLL_SECONDS`; one takes 10 to 150 cycles."""
        count, shortest = 1000, float("inf")
        for _ in range(5):  # the shortest, since another thread may interrupt a measurement
            start = time.perf_counter()
            iteration(self.control, count)
            shortest = min(shortest, time.perf_counter() - start)
        return max(1, int(_POLL_SECONDS / max(shortest, 1e-9) * count))

    def start(self, helpers: int) -> None:
        """Start helpers until there are `helpers`, or until the system has no more threads."""
        with _lock:
            for index in range(self.helpers, helpers):
                self.helpers = index + 1  # first: Ctrl-C may arrive when the thread has started
                name = f"upconv-{index + 1}"
                helper = threading.Thread(target=self._help, args=(index,), name=name, daemon=True)
                try:
                    helper.start()
                except RuntimeError:
                    # The system has no more threads, or the interpreter is exiting. Fewer helpers
                    # suffice, and later runs must not spend time on another attempt.
                    self.helpers = helpers
                    return

    def _help(self, index: int) -> None:
        memory = self.control + NBYTES + 8 * index
        while True:
            self._serve(self.control, memory, self._iterations)
            if self.tokens is not None:
                self.tokens.acquire()

    def hand_out_tokens(self, limit: int) -> None:
        """Wake a helper for each slot that no awake helper can take."""
        sleep = ctypes.c_uint64.from_address(self.control + SLEEP).value
        count = min(limit - sleep // AWAKE, sleep // ASLEEP % (AWAKE // ASLEEP))
        if count > 0 and self.tokens is not None:
            self.tokens.release(count)


_lock = threading.RLock()
_pool: _Pool | None = None


def _create() -> _Pool:
    """Return this process's pool, created at its first run."""
    global _pool
    with _lock:
        if _pool is None:
            cpu = host()
            _pool = _Pool(cpu, _system(cpu.triple))
        return _pool


def switch() -> str:
    """Return the name of the system function that yields the processor to another thread."""
    if sys.platform == "win32":
        return _provided(ctypes.windll.kernel32, "SwitchToThread")
    return _provided(ctypes.CDLL(None), "sched_yield")


def _system(triple: str) -> System:
    number = _FUTEX.get(os.uname().machine) if sys.platform == "linux" else None
    if number is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return System(triple, switch(), None, None)
    c = ctypes.CDLL(None)
    return System(triple, switch(), Futex(_provided(c, "syscall"), number), _affinity(c))


def _affinity(c: ctypes.CDLL) -> Affinity | None:
    names = ("sched_getcpu", "sched_getaffinity", "sched_setaffinity")
    if not all(hasattr(c, name) for name in names):  # then helpers stay on their processors
        return None
    return Affinity(*(_provided(c, name) for name in names))


def _provided(library: ctypes.CDLL, name: str) -> str:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    return provided(name, address or 0)


def _begin_in_child() -> None:
    if _pool is not None:
        _pool.begin()


forks.hold(_lock)  # case 6
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
