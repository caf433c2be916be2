"""Running the library's work on a chosen number of threads, from any thread, even after a fork.

1.  The library divides its work with OpenMP. The calling thread sets the size of its team before
    each run and restores it afterwards, since other libraries share OpenMP.
2.  Every calling Python thread has a separate team. A run waits until enough teams have finished,
    so that no more threads run than there are processors. A run on one thread never waits.
3.  In a forked child process, the forking thread's team has no threads left, and OpenMP would wait
    for them forever. So another thread, which has a new team, does the runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from ... import interrupts
from ...threads import processors
from .library import Runtime

_gates: dict[int, list[threading.Lock]] = {}
_forked = 0


def run(runtime: Runtime, threads: int, work: Callable[[], None]) -> None:
    """Call `work` with the library's OpenMP set to `threads` threads."""
    if threads == 1:
        _run_here(runtime, threads, work)
        return
    with _gate(threads):
        if _forked and _forked == threading.get_ident():
            interrupts.call(_run_here, runtime, threads, work)
        else:
            _run_here(runtime, threads, work)


def _run_here(runtime: Runtime, threads: int, work: Callable[[], None]) -> None:
    before = runtime.get_threads()
    if before == threads:
        work()
        return
    runtime.set_threads(threads)
    try:
        work()
    finally:
        runtime.set_threads(before)


def _gate(threads: int) -> threading.Lock:
    """Return a lock for a team of `threads` threads, a free one if possible. There are as many as
    teams that fit on the processors. Ctrl-C could leave a semaphore's inner lock held."""
    gates = _gates.get(threads)
    if gates is None:
        locks = [threading.Lock() for _ in range(max(1, processors() // threads))]
        gates = _gates.setdefault(threads, locks)
    return next((gate for gate in gates if not gate.locked()), gates[0])


def _after_fork() -> None:
    """Discard the gates, which the parent process's threads may hold."""
    global _forked
    _gates.clear()
    _forked = threading.get_ident()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)
