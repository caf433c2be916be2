"""PyTorch's own threads, on which upconv's work runs too while they are awake.

PyTorch's threads spin for milliseconds after each operator. Threads of ours would share the
processors with them just when a model's next layer is ours: a pose head of two fused layers took
12.6 ms so, and 10.7 on PyTorch's threads. Once those are asleep ours are better: a run need not
wait for threads that wake late. So a look is taken whether one of them is running.

The work is handed over by the function that compilers call for a parallel region:

    void GOMP_parallel(void (*work)(void *), void *argument, unsigned threads, unsigned flags)

LLVM's and Intel's OpenMP have it as well. Each thread of a program has threads of its own there.

What lives here: that function, and the look. What never does: work.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import torch

from ..threads import borrow

_WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def borrow_team() -> None:
    """From now on the JIT engine's work may run on PyTorch's threads, if they can be had.

    They cannot where PyTorch was built without OpenMP, in the child of a fork, which OpenMP's
    threads do not come along into, and outside Linux, which alone tells whether a thread runs.
    """
    # Processes that are spawned have another main module than theirs that started them.
    spawned = getattr(sys.modules.get("__main__"), "__name__", "") == "__mp_main__"
    forked = multiprocessing.parent_process() is not None and not spawned
    if forked or sys.platform != "linux":
        return
    try:
        # Looked for in what PyTorch's module was linked with: others may have loaded an OpenMP too.
        parallel = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except (OSError, AttributeError):
        return
    parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel.restype = None
    borrow(_Team(parallel))


class _Team:
    """The threads that PyTorch's operators use when the calling thread calls them."""

    def __init__(self, parallel: ctypes._NamedFuncPointer) -> None:
        self._parallel = parallel
        self._of_thread = threading.local()

    def run(self, work: int, argument: int, threads: int) -> None:
        """Call the function at an address on so many threads, the calling one included."""
        self._parallel(work, argument, threads, 0)

    def awake(self) -> bool:
        """Whether one of them runs now, be it that it spins."""
        if torch.get_num_threads() < 2:
            return False
        worker = getattr(self._of_thread, "worker", None)
        if worker is None or worker.gone:
            worker = self._of_thread.worker = _Worker(self._another())
        return worker.runs()

    def _another(self) -> int | None:
        """The number of a thread besides the calling one; None if there is none."""
        numbers: list[int] = []
        work = _WORK(lambda _: numbers.append(threading.get_native_id()))
        address = ctypes.cast(work, ctypes.c_void_p).value or 0
        self.run(address, 0, torch.get_num_threads())
        others = set(numbers) - {threading.get_native_id()}
        return min(others, default=None)


class _Worker:
    """A thread of this process, seen from outside; `gone` when there is no such thread any more."""

    def __init__(self, number: int | None) -> None:
        self.gone = False
        self._file = -1
        if number is not None:
            with suppress(OSError):  # it has just ended, or there is no /proc
                self._file = os.open(f"/proc/self/task/{number}/stat", os.O_RDONLY | os.O_CLOEXEC)

    def runs(self) -> bool:
        """Whether it is on a processor, or waits for one."""
        if self._file < 0:
            return False
        try:
            text = os.pread(self._file, 256, 0)
        except OSError:
            self.gone = True
            return False
        return text[text.rindex(b")") + 2 :].startswith(b"R")  # proc(5): number (name) state

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._file >= 0:  # `os` may be gone at the end of the process
            close(self._file)
