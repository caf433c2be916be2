"""Running the library's work on a given number of threads, from any thread, also after a fork.

1.  The library divides its work by OpenMP. The calling thread sets the size of OpenMP's team before
    each run and restores it afterwards, since other libraries share OpenMP.
2.  Every calling Python thread has its own team. A run waits until enough teams are done, so that
    no more threads run than there are processors. A run on one thread never waits.
3.  In the child of a fork, the forking thread's team has no threads left, and OpenMP would wait for
    them for ever. Another thread, which has a new team, makes the runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from ... import workers
from ...threads import processors
from .library import Runtime

_gates: dict[int, list[threading.Lock]] = {}
_forked = 0


class OpenMP:
    """`threads` threads of the library's OpenMP."""

    __slots__ = ("_get", "_set", "_threads")

    def __init__(self, runtime: Runtime, threads: int) -> None:
        self._get, self._set, self._threads = runtime.get_threads, runtime.set_threads, threads

    def run(self, work: Callable[[], None]) -> None:
        """Call `work` where the library may use so many threads."""
        if self._threads == 1:
            self._run_here(work)
            return
        with _gate(self._threads):
            if _forked and _forked == threading.get_ident():
                workers.call(self._run_here, work)
            else:
                self._run_here(work)

    def _run_here(self, work: Callable[[], None]) -> None:
        before = self._get()
        if before == self._threads:
            work()
            return
        self._set(self._threads)
        try:
            work()
        finally:
            self._set(before)


def _gate(threads: int) -> threading.Lock:
    """A lock for a team of `threads` threads, a free one if any; there are as many locks as teams
    that fit on the processors. Ctrl-C could leave the inner lock of a semaphore taken."""
    gates = _gates.get(threads)
    if gates is None:
        locks = [threading.Lock() for _ in range(max(1, processors() // threads))]
        gates = _gates.setdefault(threads, locks)
    return next((gate for gate in gates if not gate.locked()), gates[0])


def _after_fork() -> None:
    """The gates may be held by threads of the parent."""
    global _forked
    _gates.clear()
    _forked = threading.get_ident()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)
