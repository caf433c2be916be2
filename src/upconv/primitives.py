"""The cache of built primitives.

The key is the signature of an operator: (problem, engine, variant, fingerprint, threads). The
fingerprint holds the engine's versions. Whatever changes a primitive is in the key; nothing else
is.

The cache builds each primitive once, even if many threads request it at the same time (single
flight). It holds at most `max_entries` primitives with at most `max_bytes` resident bytes, and
evicts the least recently used. It counts hits, misses, builds and evictions. A running call holds a
reference to its entry; an evicted entry is closed with its last reference. A build error is raised
but not cached: a thread that waited for that build tries again.

`PrimitiveCache.calls` holds the prepared calls of `execution`. A prepared call has a weak reference
to its entry; `used` tells whether the cache still holds that entry.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .argument_checks import integer_variable
from .engine_choice import forget_choices
from .engines import nonfinite
from .engines.base import Engine, Primitive
from .problem import Problem

_DEFAULT_BYTES = 256 << 20
_DEFAULT_ENTRIES = 1024
_TOTALS = ("hits", "misses", "builds", "evictions", "seconds", "bytes")


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Statistics of a cache; `seconds` is the total build time.

    `fallbacks` counts the non-finite weights and weight gradients in the whole process for which
    the reference engine replaced the chosen engine.

    >>> CacheInfo(hits=3, misses=1).hits
    3
    """

    hits: int = 0
    misses: int = 0
    builds: int = 0
    evictions: int = 0
    seconds: float = 0.0
    entries: int = 0
    bytes: int = 0
    max_entries: int = 0
    max_bytes: int = 0
    fallbacks: int = 0


class _Key(NamedTuple):
    """`engine` is the id of an engine object that the entry keeps alive, since names may clash."""

    problem: Problem
    engine: int
    variant: str
    fingerprint: str
    threads: int


@dataclass(slots=True, eq=False, weakref_slot=True)
class Entry:
    """A cached primitive, which is closed with the last reference to the entry."""

    key: _Key
    engine: Engine
    primitive: Primitive
    nbytes: int

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ending():  # at exit an engine may be finalized before its primitives
            self.primitive.close()


class PrimitiveCache:
    """Built primitives by signature; see the module's docstring. It is thread-safe.

    For None, the bounds come from `UPCONV_CACHE_ENTRIES` (1024) and `UPCONV_CACHE_BYTES` (256 MiB).
    """

    def __init__(self, max_entries: int | None = None, max_bytes: int | None = None) -> None:
        self._max_entries = _bound("UPCONV_CACHE_ENTRIES", max_entries, _DEFAULT_ENTRIES)
        self._max_bytes = _bound("UPCONV_CACHE_BYTES", max_bytes, _DEFAULT_BYTES)
        self.calls: dict[Hashable, Any] = {}
        self._entries: OrderedDict[_Key, Entry] = OrderedDict()
        # One lock per key being built: one thread builds, others wait. The last user frees it.
        self._builds: weakref.WeakValueDictionary[_Key, Any] = weakref.WeakValueDictionary()
        self._totals: dict[str, Any] = dict.fromkeys(_TOTALS, 0)
        self._lock = threading.Lock()
        _caches.add(self)

    def entry(self, problem: Problem, engine: Engine, threads: int, variant: str = "") -> Entry:
        """Return the entry of a problem's primitive, built if necessary."""
        key = _Key(problem, id(engine), variant, engine.fingerprint(), threads)
        entry = self._entries.get(key)
        if entry is not None and self.used(entry):
            return entry
        new_lock = threading.Lock()
        with self._lock:
            building = self._builds.setdefault(key, new_lock)
        with building:  # waiting threads find the entry afterwards, or build it themselves
            entry = self._entries.get(key)
            if entry is None or not self.used(entry):
                entry = self._build(key, engine)
        return entry

    def used(self, entry: Entry) -> bool:
        """Record another use of an entry; return False if the cache no longer holds it."""
        with self._lock:
            if self._entries.get(entry.key) is not entry:
                return False
            self._entries.move_to_end(entry.key)
            self._totals["hits"] += 1
        return True

    def info(self) -> CacheInfo:
        """Return the current statistics."""
        return CacheInfo(
            **self._totals,
            entries=len(self._entries),
            max_entries=self._max_entries,
            max_bytes=self._max_bytes,
            fallbacks=nonfinite.count(),
        )

    def clear(self) -> None:
        """Drop every primitive and reset the statistics."""
        self.calls.clear()
        with self._lock:
            dropped, self._entries = self._entries, OrderedDict()
            self._totals = dict.fromkeys(_TOTALS, 0)
        nonfinite.set_count(0)
        dropped.clear()  # outside the lock, since closing may be slow

    def _build(self, key: _Key, engine: Engine) -> Entry:
        """Build a primitive outside the lock, add it, and evict others to make room."""
        with self._lock:
            self._totals["misses"] += 1
        start = time.perf_counter()
        primitive = engine.build(key.problem, key.threads, key.variant)
        seconds = time.perf_counter() - start
        entry, dropped = Entry(key, engine, primitive, primitive.resident_bytes), []
        with self._lock:
            totals = self._totals
            totals["builds"] += 1
            totals["seconds"] += seconds
            totals["bytes"] += entry.nbytes
            self._entries[key] = entry
            while len(self._entries) > self._max_entries or totals["bytes"] > self._max_bytes:
                _, oldest = self._entries.popitem(last=False)
                totals["bytes"] -= oldest.nbytes
                totals["evictions"] += 1
                dropped.append(oldest)  # closed outside the lock, since closing may be slow
        return entry

    def _after_fork(self) -> None:
        """Reset the locks: a child has only the forking thread, so no build is under way."""
        self._lock = threading.Lock()
        self._builds = weakref.WeakValueDictionary()


_caches: weakref.WeakSet[PrimitiveCache] = weakref.WeakSet()


def _after_fork() -> None:
    for cache in list(_caches):
        cache._after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)


def _bound(variable: str, limit: int | None, default: int) -> int:
    if limit is not None:
        return limit
    from_variable = integer_variable(variable, 0, 10**18)
    return default if from_variable is None else from_variable


_shared: dict[str, PrimitiveCache] = {}


def shared_cache() -> PrimitiveCache:
    """Return the process's cache, which all public functions use; the first call creates it."""
    # If two threads create it at once, one cache is discarded. Later calls need no lock.
    return _shared.get("") or _shared.setdefault("", PrimitiveCache())


def cache_info() -> CacheInfo:
    """Return the statistics of the primitive cache.

    >>> cache_info().entries >= 0
    True
    """
    return shared_cache().info()


def cache_clear() -> None:
    """Drop every cached primitive and engine choice, and reset the statistics.

    >>> cache_clear()
    >>> cache_info().entries
    0
    """
    forget_choices()
    shared_cache().clear()
