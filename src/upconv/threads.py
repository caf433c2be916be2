"""The number of threads that an engine may use, and their owner.

How many, in this order: the argument of a call, `set_num_threads`, `UPCONV_NUM_THREADS`,
`OMP_NUM_THREADS`, the processors this process may run on (affinity and control-group quota).
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

from .checks import integer, integer_variable

_MOST = 4096
_chosen: int | None = None
_default: int | None = None
_pool: ThreadPool | None = None


def set_num_threads(n: int | None) -> None:
    """Let engines use `n` threads from now on, in every thread; None goes back to the default.

    The reference engine is the exception: its threads are those of NumPy's BLAS, which belong to
    the whole process and are set where that library reads them (`OMP_NUM_THREADS`).

    Raises `ArgumentError` unless n is None or an integer from 1 to 4096.

    >>> set_num_threads(2)
    >>> get_num_threads()
    2
    >>> set_num_threads(None)
    """
    global _chosen
    _chosen = None if n is None else checked(n, "n")


def get_num_threads() -> int:
    """Number of threads that engines use when a call does not say.

    >>> get_num_threads() >= 1
    True
    """
    global _default
    if _chosen is not None:
        return _chosen
    if _default is None:
        _default = _from_environment() or processors()
    return _default


def asked_for() -> int | None:
    """The number that `set_num_threads` or `UPCONV_NUM_THREADS` says; None where neither does."""
    return _own() if _chosen is None else _chosen


def checked(n: int, argument: str = "threads") -> int:
    """`n` if it is a possible number of threads, else `ArgumentError`."""
    return integer(argument, n, 1, _MOST, "Leave it out for as many as this process may use.")


def resolved(n: int | None) -> int:
    """The number of threads of one call: the one it asks for, else `get_num_threads()`."""
    return get_num_threads() if n is None else checked(n)


@lru_cache(maxsize=1)
def _own() -> int | None:
    """The variable of ours, read once."""
    return integer_variable("UPCONV_NUM_THREADS", 1, _MOST)


def _from_environment() -> int | None:
    available = _own()
    if available is not None:
        return available
    # OpenMP allows a list, one number per nesting level; a value it would reject is not ours to
    # judge.
    outer = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not outer.isdecimal() or len(outer) > 9 or int(outer) < 1:
        return None
    return min(int(outer), _MOST)


def processors() -> int:
    """Processors by affinity, at most the control group's quota rounded up."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no affinity to ask for
        count = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):  # no control group, or one without a processor limit
        return count
    if quota.isdecimal() and int(period) > 0:
        count = min(count, math.ceil(int(quota) / int(period)))
    return max(1, count)


class ThreadPool(Protocol):
    """Threads of another library."""

    def awake(self) -> bool:
        """Whether they run or spin now; asleep they are left alone."""
        ...

    def run(self, work: int, argument: int, threads: int) -> None:
        """Call the function at address `work` on so many threads, the calling one included."""
        ...


def borrow(pool: ThreadPool | None) -> None:
    """Let another library's threads do the engines' work while they are awake; None: only ours.

    For a library whose threads spin after their work: ours beside them would share the processors.
    """
    global _pool
    _pool = pool


def borrowed() -> ThreadPool | None:
    """The threads that do the engines' work in place of upconv's own, or None."""
    return _lent.pool or _pool


class _Lent(threading.local):
    """The pool that is lent to the calling thread."""

    pool: ThreadPool | None = None


_lent = _Lent()


@contextmanager
def lend(pool: ThreadPool) -> Iterator[None]:
    """Let another library's threads do the work that this thread asks for in the block.

    For a library that calls upconv from within its own work.
    """
    before, _lent.pool = _lent.pool, pool
    try:
        yield
    finally:
        _lent.pool = before


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=lambda: borrow(None))  # OpenMP's threads do not come along
