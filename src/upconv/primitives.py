"""Choosing an engine for a problem, and the cache of built primitives.

The key of the cache is what the field calls an operator's signature: (problem, engine,
fingerprint), the fingerprint holding the engine's versions and the number of threads. Whatever
changes a primitive is in the key; nothing else is.

The cache is the one owner of primitives. It builds each once however many threads ask (single
flight), counts what it does, holds at most `max_entries` primitives of at most `max_bytes` resident
bytes, drops the least recently used and closes a dropped one when its last user is done. A build
error is raised to everyone who waited for it and is not remembered.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType

from .engines import ENGINES, load
from .engines.base import Engine, Primitive
from .errors import ArgumentError, DTypeError, EngineMissing, EngineRefusal, brief
from .problem import Problem

_DEFAULT_BYTES = 256 << 20
_DEFAULT_ENTRIES = 1024


@dataclass(frozen=True, slots=True)
class Refusal:
    """One engine's sentence on why it does not do a problem.

    >>> str(Refusal("jit", "float16 needs AVX512-FP16"))
    'jit: float16 needs AVX512-FP16'
    """

    engine: str
    reason: str

    def __str__(self) -> str:
        return f"{self.engine}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine that will do a problem, and what the ones before it said.

    `engine` is None when every engine refused.
    """

    engine: Engine | None
    refusals: tuple[Refusal, ...]


@lru_cache(maxsize=4096)
def choose(problem: Problem) -> Choice:
    """Walk the engines in order of preference; the first that does not refuse is chosen.

    >>> from upconv.geometry import Axis
    >>> from upconv.problem import Direction, Problem
    >>> choose(Problem(Direction.FORWARD, (Axis(4, 2, 2),), 1, 3, 5)).engine.name
    'reference'
    """
    refusals = []
    for name in ENGINES:
        try:
            engine = load(name)
        except EngineMissing as missing:
            refusals.append(Refusal(name, str(missing)))
            continue
        reason = engine.refuses(problem)
        if reason is None:
            return Choice(engine, tuple(refusals))
        refusals.append(Refusal(name, reason))
    return Choice(None, tuple(refusals))


def select(problem: Problem, engine: str | Engine | None) -> Engine:
    """The engine asked for, by name or as an object; the one `choose` finds when it is None.

    `UPCONV_ENGINE`, read once, stands in for None.

    Raises `EngineRefusal` when the engine asked for, or every engine, refuses the problem.
    """
    if engine is None or isinstance(engine, str):
        return _select_named(problem, engine)
    if isinstance(engine, type) or not (hasattr(engine, "refuses") and hasattr(engine, "build")):
        expected = "None, a name, or an object with `refuses` and `build`"
        raise DTypeError("engine", f"{brief(engine)}, a {type(engine).__name__}", expected)
    return _unless_refused(problem, engine)


@lru_cache(maxsize=4096)
def _select_named(problem: Problem, name: str | None) -> Engine:
    wanted = name or os.environ.get("UPCONV_ENGINE")
    if not wanted:
        choice = choose(problem)
        if choice.engine is None:
            reasons = "; ".join(map(str, choice.refusals))
            raise EngineRefusal(f"No engine does {problem}. {reasons}")
        return choice.engine
    return _unless_refused(problem, load(wanted))


def _unless_refused(problem: Problem, engine: Engine) -> Engine:
    reason = engine.refuses(problem)
    if reason is not None:
        raise EngineRefusal(
            f"Engine {engine.name!r} cannot do {problem}: {reason}."
            " Use engine=None to let upconv choose."
        )
    return engine


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What a cache has done and holds; `seconds` is the time spent building, all builds added up.

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


@dataclass(frozen=True, slots=True)
class _Key:
    """`engine` is the id of the engine object, which the entry keeps alive: names may clash."""

    problem: Problem
    engine: int
    fingerprint: str


@dataclass(slots=True, eq=False)
class _Entry:
    """A cached primitive; `users` counts leases, `dropped` that the cache no longer lists it."""

    engine: Engine
    primitive: Primitive
    nbytes: int
    users: int = 0
    dropped: bool = False


@dataclass(slots=True)
class _Totals:
    hits: int = 0
    misses: int = 0
    builds: int = 0
    evictions: int = 0
    seconds: float = 0.0
    bytes: int = field(default=0)


class _Abandoned(Exception):
    """A build ended by Ctrl-C or exit in another thread."""


class Lease:
    """The right to run a primitive: it is not closed before the lease is released.

    A context manager; `release` may be called more than once.
    """

    __slots__ = ("_cache", "_entry", "primitive")

    def __init__(self, cache: PrimitiveCache, entry: _Entry) -> None:
        self._cache: PrimitiveCache | None = cache
        self._entry = entry
        self.primitive = entry.primitive

    def release(self) -> None:
        """Give the right back."""
        cache, self._cache = self._cache, None
        if cache is not None:
            cache._release(self._entry)

    def __enter__(self) -> Primitive:
        return self.primitive

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class PrimitiveCache:
    """Built primitives by signature; see the module's docstring. Safe to use from any thread.

    Bounds left None come from `UPCONV_CACHE_ENTRIES` (1024) and `UPCONV_CACHE_BYTES` (256 MiB).

    >>> PrimitiveCache(max_entries=2, max_bytes=1 << 20).info().entries
    0
    """

    def __init__(self, max_entries: int | None = None, max_bytes: int | None = None) -> None:
        self._max_entries = (
            _bound("UPCONV_CACHE_ENTRIES", _DEFAULT_ENTRIES) if max_entries is None else max_entries
        )
        self._max_bytes = (
            _bound("UPCONV_CACHE_BYTES", _DEFAULT_BYTES) if max_bytes is None else max_bytes
        )
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()
        self._building: dict[_Key, Future[_Entry]] = {}
        self._totals = _Totals()
        self._lock = threading.Lock()
        _caches.add(self)

    def lease(self, problem: Problem, engine: Engine, threads: int) -> Lease:
        """The primitive for `problem`, built if need be, held until the lease is released."""
        key = _Key(problem, id(engine), f"{engine.fingerprint()} threads {threads}")
        while True:
            with self._lock:
                entry = self._entries.get(key)
                if entry is not None:
                    self._entries.move_to_end(key)
                    self._totals.hits += 1
                    entry.users += 1
                    return Lease(self, entry)
                building = self._building.get(key)
                if building is None:
                    flight: Future[_Entry] = Future()
                    self._building[key] = flight
                    self._totals.misses += 1
            if building is None:
                return self._build(key, problem, engine, threads, flight)
            try:
                entry = building.result()
            except _Abandoned:  # the builder was interrupted, not the build found wrong: try here
                continue
            with self._lock:
                if not entry.dropped:
                    self._totals.hits += 1
                    entry.users += 1
                    return Lease(self, entry)

    def info(self) -> CacheInfo:
        """Counts and contents now."""
        with self._lock:
            totals = self._totals
            return CacheInfo(
                totals.hits,
                totals.misses,
                totals.builds,
                totals.evictions,
                totals.seconds,
                len(self._entries),
                totals.bytes,
                self._max_entries,
                self._max_bytes,
            )

    def clear(self) -> None:
        """Drop every primitive and set the counts to zero; those in use close when released."""
        with self._lock:
            closing = [self._drop(key) for key in list(self._entries)]
            self._totals = _Totals()
        _close(closing)

    def _build(
        self, key: _Key, problem: Problem, engine: Engine, threads: int, flight: Future[_Entry]
    ) -> Lease:
        start = time.perf_counter()
        try:
            primitive = engine.build(problem, threads)
            entry = _Entry(engine, primitive, primitive.resident_bytes, users=1)
        except BaseException as error:  # told to those who wait for it, then raised here
            with self._lock:
                self._building.pop(key, None)
            flight.set_exception(error if isinstance(error, Exception) else _Abandoned())
            raise
        with self._lock:
            self._building.pop(key, None)
            self._totals.builds += 1
            self._totals.seconds += time.perf_counter() - start
            self._totals.bytes += entry.nbytes
            self._entries[key] = entry
            closing = self._shrink()
        flight.set_result(entry)
        _close(closing)
        return Lease(self, entry)

    def _shrink(self) -> list[_Entry | None]:
        """Drop the least recently used until both bounds hold."""
        closing = []
        while len(self._entries) > self._max_entries or self._totals.bytes > self._max_bytes:
            closing.append(self._drop(next(iter(self._entries))))
            self._totals.evictions += 1
        return closing

    def _drop(self, key: _Key) -> _Entry | None:
        """Take an entry off the list; returned if nobody uses it, so that it can be closed."""
        entry = self._entries.pop(key)
        entry.dropped = True
        self._totals.bytes -= entry.nbytes
        return entry if entry.users == 0 else None

    def _release(self, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1
            last = entry.dropped and entry.users == 0
        if last:
            entry.primitive.close()

    def _after_fork(self) -> None:
        """A child has only the thread that forked: no lock is held and no build goes on."""
        self._lock = threading.Lock()
        self._building = {}


_caches: weakref.WeakSet[PrimitiveCache] = weakref.WeakSet()


def _after_fork() -> None:
    for cache in list(_caches):
        cache._after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)


def _close(entries: list[_Entry | None]) -> None:
    """Outside the lock: closing may take its time."""
    for entry in entries:
        if entry is not None:
            entry.primitive.close()


def _bound(variable: str, default: int) -> int:
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    if not text.isdecimal():
        raise ArgumentError(
            variable, brief(text), "an integer >= 0", "It is an environment variable."
        )
    return int(text)


@lru_cache(maxsize=1)
def shared_cache() -> PrimitiveCache:
    """The process's own cache, which all public functions use."""
    return PrimitiveCache()


def cache_info() -> CacheInfo:
    """What the cache of primitives has done and holds.

    >>> cache_info().entries >= 0
    True
    """
    return shared_cache().info()


def cache_clear() -> None:
    """Drop every cached primitive, forget the choices of engines, and set the counts to zero."""
    choose.cache_clear()
    _select_named.cache_clear()
    shared_cache().clear()
