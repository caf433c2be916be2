"""The memory available to this process, and refusals before allocations that would not fit.

Sources: `MemAvailable` in /proc/meminfo, the limits of the control group (v2 and v1), and the
resource limit of the address space; on other systems the amount of physical memory.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from .errors import MemoryLimitError

ALWAYS_FINE = 64 << 20
"""Requests up to this many bytes are not checked: a check takes 50 microseconds."""


def require(nbytes: int, purpose: str) -> None:
    """Raise `MemoryLimitError` unless `nbytes` bytes for `purpose` are available."""
    if nbytes <= ALWAYS_FINE:
        return
    available = available_bytes()
    if nbytes > available:
        message = f"{purpose} needs {readable(nbytes)}; this process may use {readable(available)}."
        remedy = "Check stride, kernel and sizes, or work on smaller pieces of the input."
        raise MemoryLimitError(f"{message} {remedy}")


def refused(purpose: str, error: Exception) -> MemoryLimitError:
    """Return the error to raise if an allocation fails in spite of the check."""
    if isinstance(error, MemoryLimitError):
        return error
    message = f"{purpose} does not fit: {error}. Work on smaller pieces of the input."
    return MemoryLimitError(message)


P = ParamSpec("P")
R = TypeVar("R")


def bounded(purpose: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function raise `MemoryLimitError` when it runs out of memory.

    >>> @bounded("this list")
    ... def listed():
    ...     raise MemoryError("too long")
    >>> listed()
    Traceback (most recent call last):
    upconv.errors.MemoryLimitError: this list does not fit: too long. Work on smaller pieces of ...
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> R:
            try:
                return function(*arguments, **keywords)
            except MemoryError as error:
                raise refused(purpose, error) from None

        return call

    return decorated


def readable(nbytes: int) -> str:
    """Return `nbytes` with a binary unit, such as "1.5 GiB"."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    power = min(max(nbytes.bit_length() - 1, 0) // 10, len(units) - 1)
    if nbytes >> (10 * power) >= 10**6:
        return f"over a million {units[power]}"
    return f"{nbytes / 1024**power:.3g} {units[power]}"


def available_bytes() -> int:
    """Return the bytes that this process may still use: the smallest of all readable limits."""
    return max(0, min(_limits(), default=sys.maxsize))


def _limits() -> Iterator[int]:
    yield from (kib * 1024 for kib in _entries("/proc/meminfo", "MemAvailable:"))
    yield from _control_group()
    yield from _address_space()
    if sys.platform == "win32":
        yield _windows_available()
    elif not sys.platform.startswith("linux"):
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _entries(path: str, *names: str) -> Iterator[int]:
    """Yield the numbers in the lines of a file that begin with one of the names."""
    for line in _read(path).splitlines():
        if line.startswith(names):
            yield int(line.split()[1])


def _control_group() -> Iterator[int]:
    """Yield the control group's limit minus its use. The page cache does not count as used, since
    the kernel reclaims it under pressure."""
    for folder, limit_name, used_name in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit, used = (_read(f"{folder}/{name}").strip() for name in (limit_name, used_name))
        if limit.isdigit() and used.isdigit():
            cached = _entries(f"{folder}/memory.stat", "inactive_file ", "total_inactive_file ")
            yield int(limit) - int(used) + next(cached, 0)


def _address_space() -> Iterator[int]:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        pages = _read("/proc/self/statm").split()
        used = int(pages[0]) * os.sysconf("SC_PAGE_SIZE") if pages else 0
        yield soft - used


def _windows_available() -> int:
    class Status(ctypes.Structure):
        _fields_ = [
            ("length", ctypes.c_uint32),
            ("load", ctypes.c_uint32),
            ("total_physical", ctypes.c_uint64),
            ("available_physical", ctypes.c_uint64),
            ("rest", ctypes.c_uint64 * 5),
        ]

    status = Status(length=ctypes.sizeof(Status))
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined]
    return int(status.available_physical)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # this system has no such file; other sources are used
        return ""


def release() -> None:
    """Return memory to the system: garbage in reference cycles, and the C library's free lists."""
    gc.collect()
    with suppress(OSError, AttributeError, TypeError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
