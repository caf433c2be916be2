"""Running the library's work on a given number of threads, from any thread, also after a fork.

1.  The library divides its work by OpenMP, whose team of threads is as large as the calling thread
    last said. It is said before each run and unsaid after it: other libraries share OpenMP.
2.  Every Python thread that calls has a team of its own. So that there are not more of them at work
    than there are processors, a run waits until enough teams are done. One of one thread never
    waits.
3.  In the child of a fork, the thread that forked still believes in the threads of its team, and
    would wait for them for ever. Its runs are made by a new thread, which has a new team.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ...threads import processors
from .library import Runtime

_gates: dict[int, threading.Lock | threading.Semaphore] = {}
_forked = 0
_stand_in: ThreadPoolExecutor | None = None


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
        with _gates.get(self._threads) or _gate(self._threads):
            if _forked and _forked == threading.get_ident():
                _stand_in_pool().submit(self._run_here, work).result()
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


def _gate(threads: int) -> threading.Lock | threading.Semaphore:
    """Lets as many teams of so many threads through as there are processors for; at least one."""
    teams = processors() // threads
    gate = threading.Semaphore(teams) if teams > 1 else threading.Lock()
    return _gates.setdefault(threads, gate)


def _stand_in_pool() -> ThreadPoolExecutor:
    global _stand_in
    if _stand_in is None:
        _stand_in = ThreadPoolExecutor(1, "upconv-onednn")
    return _stand_in


def _after_fork() -> None:
    """The gates may be held, and the stand-in was a thread, of the parent."""
    global _forked, _stand_in
    _gates.clear()
    _forked, _stand_in = threading.get_ident(), None


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)
