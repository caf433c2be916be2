"""The cache of built primitives.

The key of the cache is what the field calls an operator's signature: (problem, engine, variant,
fingerprint, threads), the fingerprint holding the engine's versions. Whatever changes a primitive
is in the key; nothing else is.

The cache is the one owner of primitives. It builds each once however many threads ask (single
flight), counts what it does, holds at most `max_entries` primitives of at most `max_bytes` resident
bytes, drops the least recently used and closes a dropped one when its last user is done. A build
error is raised and not remembered: a thread that waited for that build tries it again.

`PrimitiveCache.calls` remembers what `execution` prepared of whole calls. A prepared call names an
entry of the cache without keeping it: `hold` says whether the entry is still there.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from .arguments import integer_variable
from .choices import forget_choices
from .engines import nonfinite
from .engines.base import Engine, Primitive
from .problem import Problem

_DEFAULT_BYTES = 256 << 20
_DEFAULT_ENTRIES = 1024


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What a cache has done and holds; `seconds` is the time spent building, all builds added up.

    `fallbacks` counts, for the whole process, the weights and weight gradients that were not finite
    and that the reference engine computed with in place of the engine chosen.

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


@dataclass(frozen=True, slots=True)
class _Key:
    """`engine` is the id of the engine object, which the entry keeps alive: names may clash."""

    problem: Problem
    engine: int
    variant: str
    fingerprint: str
    threads: int


@dataclass(slots=True, eq=False)
class Entry:
    """A cached primitive; `users` counts leases, `dropped` that the cache no longer lists it."""

    key: _Key
    engine: Engine
    primitive: Primitive
    nbytes: int
    users: int = 0
    dropped: bool = False

    def close(self) -> None:
        """Close the primitive and let go of it: prepared calls may still name the entry."""
        primitive = self.primitive
        del self.primitive
        primitive.close()


@dataclass(slots=True)
class _Totals:
    hits: int = 0
    misses: int = 0
    builds: int = 0
    evictions: int = 0
    seconds: float = 0.0
    bytes: int = 0


class Lease:
    """The right to run a primitive: it is not closed before the lease is released or forgotten.

    A context manager; `release` may be called more than once.
    """

    __slots__ = ("_cache", "_entry", "primitive")

    def __init__(self, cache: PrimitiveCache, entry: Entry) -> None:
        self._cache = cache
        self._entry: Entry | None = entry
        self.primitive = entry.primitive

    def release(self) -> None:
        """Give the right back."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._cache.release(entry)

    def __enter__(self) -> Primitive:
        return self.primitive

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        # The garbage collector may call this anywhere, in the middle of the cache's own work too:
        # no lock is taken here; the cache looks at what was forgotten when it is next asked.
        if self._entry is not None:
            self._cache._forgotten.append(self._entry)


class PrimitiveCache:
    """Built primitives by signature; see the module's docstring. Safe to use from any thread.

    Bounds left None come from `UPCONV_CACHE_ENTRIES` (1024) and `UPCONV_CACHE_BYTES` (256 MiB).
    """

    def __init__(self, max_entries: int | None = None, max_bytes: int | None = None) -> None:
        bounds = {
            "UPCONV_CACHE_ENTRIES": (max_entries, _DEFAULT_ENTRIES),
            "UPCONV_CACHE_BYTES": (max_bytes, _DEFAULT_BYTES),
        }
        self._max_entries, self._max_bytes = (
            _bound(variable, *values) for variable, values in bounds.items()
        )
        self.calls: dict[Hashable, Any] = {}
        self._entries: OrderedDict[_Key, Entry] = OrderedDict()
        # Locks by which one thread builds a key while others wait; each goes with its last user.
        self._builds: weakref.WeakValueDictionary[_Key, Any] = weakref.WeakValueDictionary()
        self._forgotten: deque[Entry] = deque()
        self._totals = _Totals()
        self._lock = threading.Lock()
        _caches.add(self)

    def lease(self, problem: Problem, engine: Engine, threads: int, variant: str = "") -> Lease:
        """The primitive for `problem`, built if need be, held until the lease is released."""
        return Lease(self, self.held(problem, engine, threads, variant))

    def held(self, problem: Problem, engine: Engine, threads: int, variant: str = "") -> Entry:
        """`lease` without its object: the caller releases the entry."""
        key = _Key(problem, id(engine), variant, engine.fingerprint(), threads)
        self._settle()
        entry = self._entries.get(key)
        if entry is not None and self.hold(entry):
            return entry
        own = threading.Lock()
        with self._lock:
            building = self._builds.setdefault(key, own)
        with building:  # one thread builds; those who waited find it done, or try themselves
            entry = self._entries.get(key)
            if entry is None or not self.hold(entry):
                entry = self._build(key, engine)
        return entry

    def hold(self, entry: Entry) -> bool:
        """Hold an entry again until it is released; False if the cache no longer lists it."""
        with self._lock:
            if entry.dropped:
                return False
            self._entries.move_to_end(entry.key)
            self._totals.hits += 1
            entry.users += 1
        return True

    def release(self, entry: Entry) -> None:
        """Give an entry back that was held."""
        with self._lock:
            entry.users -= 1
            last = entry.dropped and entry.users == 0
        if last:
            entry.close()

    def info(self) -> CacheInfo:
        """Counts and contents now."""
        self._settle()
        return CacheInfo(
            **asdict(self._totals),
            entries=len(self._entries),
            max_entries=self._max_entries,
            max_bytes=self._max_bytes,
            fallbacks=nonfinite.count(),
        )

    def clear(self) -> None:
        """Drop every primitive and set the counts to zero; those in use close when released."""
        self._settle()
        self.calls.clear()
        with self._lock:
            closing = [entry for key in list(self._entries) for entry in self._drop(key)]
            self._totals = _Totals()
        nonfinite.set_count(0)
        for entry in closing:
            entry.close()

    def _build(self, key: _Key, engine: Engine) -> Entry:
        """Build outside the lock, list the result, held, and make room for it."""
        with self._lock:
            self._totals.misses += 1
        bound: Any = getattr(engine, "bound", None)
        if bound is not None:  # its library has a cache of its own, which follows this one's bound
            bound(self._max_entries)
        start = time.perf_counter()
        primitive = engine.build(key.problem, key.threads, key.variant)
        seconds = time.perf_counter() - start
        entry = Entry(key, engine, primitive, primitive.resident_bytes, users=1)
        with self._lock:
            self._totals.builds += 1
            self._totals.seconds += seconds
            self._totals.bytes += entry.nbytes
            self._entries[key] = entry
            closing = self._shrink()
        for dropped in closing:  # outside the lock: closing may take its time
            dropped.close()
        return entry

    def _shrink(self) -> list[Entry]:
        """Drop the least recently used until both bounds hold; those to close are returned."""
        closing: list[Entry] = []
        while len(self._entries) > self._max_entries or self._totals.bytes > self._max_bytes:
            closing += self._drop(next(iter(self._entries)))
            self._totals.evictions += 1
        return closing

    def _drop(self, key: _Key) -> list[Entry]:
        """Take an entry off the list; returned if nobody uses it, so that it can be closed."""
        entry = self._entries.pop(key)
        entry.dropped = True
        self._totals.bytes -= entry.nbytes
        return [] if entry.users else [entry]

    def _settle(self) -> None:
        """Release what leases that were forgotten held."""
        while self._forgotten:
            try:
                entry = self._forgotten.popleft()
            except IndexError:  # another thread was quicker
                return
            self.release(entry)

    def _after_fork(self) -> None:
        """A child has only the thread that forked: no lock is held and no build goes on."""
        self._lock = threading.Lock()
        self._builds = weakref.WeakValueDictionary()


_caches: weakref.WeakSet[PrimitiveCache] = weakref.WeakSet()


def _after_fork() -> None:
    for cache in list(_caches):
        cache._after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)


def _bound(variable: str, given: int | None, default: int) -> int:
    if given is not None:
        return given
    found = integer_variable(variable, 0, 10**18)
    return default if found is None else found


_shared: dict[str, PrimitiveCache] = {}


def shared_cache() -> PrimitiveCache:
    """The process's own cache, which all public functions use; the first call makes it."""
    # Of two threads that come first together one makes a cache in vain: no later call takes a lock.
    return _shared.get("") or _shared.setdefault("", PrimitiveCache())


def cache_info() -> CacheInfo:
    """What the cache of primitives has done and holds.

    >>> cache_info().entries >= 0
    True
    """
    return shared_cache().info()


def cache_clear() -> None:
    """Drop every cached primitive, forget the choices of engines, and set the counts to zero.

    >>> cache_clear()
    >>> cache_info().entries
    0
    """
    forget_choices()
    shared_cache().clear()
