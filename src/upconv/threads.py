"""The number of threads that an engine may use, the work that makes one useful, and their owner.

The number comes from the first of these that is set: the argument of a call, `set_num_threads`,
`UPCONV_NUM_THREADS`, `OMP_NUM_THREADS`, and the processors available to this process (affinity and
control-group quota).
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from .argument_checks import integer, integer_variable

_MOST = 4096
_GROUP = Path("/sys/fs/cgroup")
WORTH_A_THREAD = 200_000
"""Multiply-adds that take about as long as waking a thread. The number is the same for all
processors, because the number of threads decides how a layer is split into jobs."""
_chosen: int | None = None
_default: int | None = None
_pool: ThreadPool | None = None


def set_num_threads(n: int | None) -> None:
    """Set the number of threads per call for the whole process; None restores the default.

    The reference engine ignores it. That engine uses the threads of NumPy's BLAS, which are set by
    that library's own variables, such as `OMP_NUM_THREADS`.

    Raises `ArgumentError` unless n is None or an integer from 1 to 4096.

    >>> set_num_threads(2)
    >>> get_num_threads()
    2
    >>> set_num_threads(None)
    """
    global _chosen
    _chosen = None if n is None else checked(n, "n")


def get_num_threads() -> int:
    """Return the number of threads that engines use by default.

    >>> get_num_threads() >= 1
    True
    """
    global _default
    if _chosen is not None:
        return _chosen
    if _default is None:
        _default = _from_environment() or processors()
    return _default


def useful_threads(multiply_adds: int, threads: int) -> int:
    """Return the number of threads, at most `threads`, that an amount of work is worth."""
    return max(1, min(threads, multiply_adds // WORTH_A_THREAD))


def asked_for() -> int | None:
    """Return the number set by `set_num_threads` or `UPCONV_NUM_THREADS`, or None."""
    return _own() if _chosen is None else _chosen


def checked(n: int, argument: str = "threads") -> int:
    """Return `n` if it is a valid number of threads; raise `ArgumentError` otherwise."""
    return integer(argument, n, 1, _MOST, "Omit it to use all processors of this process.")


def resolved(n: int | None) -> int:
    """Return the number of threads of one call: `n`, or `get_num_threads()` for None."""
    return get_num_threads() if n is None else checked(n)


@lru_cache(maxsize=1)
def _own() -> int | None:
    """Return the value of `UPCONV_NUM_THREADS`, read once."""
    return integer_variable("UPCONV_NUM_THREADS", 1, _MOST)


def _from_environment() -> int | None:
    available = _own()
    if available is not None:
        return available
    # OpenMP allows a list, one number per nesting level. Values that OpenMP rejects are ignored.
    outer = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not outer.isdecimal() or len(outer) > 9 or int(outer) < 1:
        return None
    return min(int(outer), _MOST)


def processors() -> int:
    """Return the number of processors by affinity, at most the control group's quota rounded up."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        count = os.cpu_count() or 1
    return max(1, math.ceil(min(count, _quota())))


def _quota() -> float:
    """Return how many processors the control group permits, by version 2 or 1 of its files."""
    for names in ("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"):
        try:
            quota, period = " ".join((_GROUP / name).read_text() for name in names).split()
        except (OSError, ValueError):  # no control group of this version
            continue
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:  # else no limit
            return int(quota) / int(period)
    return math.inf


class ThreadPool(Protocol):
    """The thread pool of another library."""

    def awake(self) -> bool:
        """Return whether the threads are running or spinning; sleeping threads are not used."""
        ...

    def run(self, work: int, argument: int, threads: int) -> None:
        """Call the function at address `work` on `threads` threads, including the calling one."""
        ...


def borrow(pool: ThreadPool | None) -> None:
    """Let another library's threads do the engines' work while they are awake; None: never.

    This is for libraries whose threads spin after their work, since upconv's own threads would
    compete with them for processors.
    """
    global _pool
    _pool = pool


def borrowed() -> ThreadPool | None:
    """Return the pool that does the engines' work instead of upconv's own threads, or None."""
    return _lent.pool or _pool


class _Lent(threading.local):
    """The pool that is lent to the calling thread."""

    pool: ThreadPool | None = None


_lent = _Lent()


@contextmanager
def lend(pool: ThreadPool) -> Iterator[None]:
    """Let another library's threads do all engine work that this thread starts in the block.

    This is for libraries that call upconv from within their own work.
    """
    before, _lent.pool = _lent.pool, pool
    try:
        yield
    finally:
        _lent.pool = before


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=lambda: borrow(None))  # a child has no OpenMP threads
