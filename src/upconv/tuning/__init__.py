"""Choosing by measurement: which engine, and which variant of its schedule, is the fastest here.

Engines choose by a model of the machine. With `tune=True`, or `UPCONV_TUNE=1`, their *candidates*
(every engine that does the problem, in every variant it names) are timed on random data instead,
and the winner is remembered in the store, for this process and for later ones:

1. Every candidate is built and runs once or twice. One that takes 5 times as long as the best drops
   out. After 2 seconds no further one begins.
2. The others take turns, in rounds, for half a second in all; the best time of each counts, since
   what disturbs a run only ever makes it longer. Who is 25% behind after a round drops out.
3. The winner is the first, in the order of preference, of those within 2% of the best: a coin toss
   between equals would fall otherwise in the next process.

A winner is remembered by the exact problem, not by a class of problems: how windows fit the caches
and whether threads pay depends on every extent, so a time measured for one length says little of
another's. Processor, upconv's version, the fingerprints of all candidates and the number of threads
are in the key too. What is remembered is looked at only by who asks for tuning: no result depends
on a file by accident.

What lives here: candidates, the contest, winners, and the two ceilings of the machine that the
store remembers likewise. What never does: the file (`store`), and how ceilings are measured.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .._version import __version__
from ..choices import Algorithm, able, by_model
from ..engines.base import Engine
from ..errors import MemoryLimitError
from ..forks import importing
from ..primitives import variants_of
from ..problem import Problem
from .store import Record, TuningStore, tuning_file

if TYPE_CHECKING:
    from ..engines.jit.limits import Limits

_MOST_KNOWN = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Winner:
    """The fastest way to do a problem, and its seconds per call; 0.0 where nothing was measured."""

    engine: Engine
    variant: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.engine.name} {self.variant}".rstrip()


class Selection(NamedTuple):
    """The engine that will do a problem, and in which variant ("" for its own choice)."""

    engine: Engine
    variant: str


@dataclass(frozen=True, slots=True)
class TuningInfo:
    """The store's file, how many records it has, and how many problems this process measured."""

    file: str
    winners: int
    ceilings: int
    measured: int


class _Known(NamedTuple):
    """A winner in memory; `engines` keeps the candidates alive, whose ids are in the key."""

    engines: tuple[Engine, ...]
    winner: Winner
    fingerprint: str


class Tuner:
    """Winners by problem, in memory over a store. Safe to use from any thread."""

    def __init__(self, store: TuningStore) -> None:
        self.store = store
        self.measured = 0
        self._known: dict[tuple[Problem, int, Algorithm, tuple[int, ...]], _Known] = {}

    def winner(
        self, problem: Problem, threads: int, engine: str | Engine | None, algorithm: Algorithm
    ) -> Winner:
        """The winner that is remembered, else the one that is measured now."""
        engines = _contestants(problem, threads, engine, algorithm)
        place = (problem, threads, algorithm, tuple(map(id, engines)))
        known = self._known.get(place)
        if known is not None and known.winner.engine.fingerprint() == known.fingerprint:
            return known.winner
        if not (problem.multiply_adds and prod(problem.result_shape)):
            return Winner(*by_model(problem, engine, threads, algorithm), 0.0)
        with _alone():  # contests at the same time would disturb each other
            found = self._found(problem, threads, engines, algorithm)
            winner = found or self._measured(problem, threads, engines, algorithm)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[place] = _Known(engines, winner, winner.engine.fingerprint())
        return winner

    def remembered(
        self, problem: Problem, threads: int, engine: str | Engine | None, algorithm: Algorithm
    ) -> Winner | None:
        """The winner, if a process that could write the store, or this one, measured it."""
        engines = _contestants(problem, threads, engine, algorithm)
        return self._found(problem, threads, engines, algorithm)

    def clear(self) -> None:
        """Forget all winners and ceilings, on disk too."""
        self._known.clear()
        self.measured = 0
        self.store.clear()

    def _found(
        self, problem: Problem, threads: int, engines: tuple[Engine, ...], algorithm: Algorithm
    ) -> Winner | None:
        record = self.store.find("winners", _key(problem, threads, engines, algorithm))
        if record is None:
            return None
        name, variant = str(record["engine"]), str(record["variant"])
        for engine in engines:
            if engine.name == name and variant in variants_of(engine, problem, threads, algorithm):
                return Winner(engine, variant, float(record["seconds"]))
        self.store.warn("names an engine or a variant that there is none of; it is measured anew")
        return None

    def _measured(
        self, problem: Problem, threads: int, engines: tuple[Engine, ...], algorithm: Algorithm
    ) -> Winner:
        with importing:
            from .contests import contest  # who never tunes never loads it

        try:
            best = contest(problem, threads, engines, algorithm)
        except MemoryLimitError as error:
            self.store.warn(f"learns nothing of {problem}, which is not measured: {error}")
            return Winner(*by_model(problem, None, threads, algorithm), 0.0)
        self.measured += 1
        record: Record = {
            "engine": best.engine.name,
            "variant": best.variant,
            "seconds": best.seconds,
        }
        self.store.remember("winners", _key(problem, threads, engines, algorithm), record)
        return Winner(best.engine, best.variant, best.seconds)


def _contestants(
    problem: Problem, threads: int, engine: str | Engine | None, algorithm: Algorithm
) -> tuple[Engine, ...]:
    """The engines that can do a problem by an algorithm; `EngineRefusal` where there is none."""
    if algorithm is not Algorithm.WINOGRAD:
        return able(problem, engine)
    capable, _ = by_model(problem, engine, threads, algorithm)
    return (capable,)


def _key(problem: Problem, threads: int, engines: tuple[Engine, ...], algorithm: Algorithm) -> str:
    """Whatever the winner depends on."""
    candidates = (f"{engine.name} {engine.fingerprint()}" for engine in engines)
    words = (processor_model(), f"upconv {__version__}", *candidates, str(problem))
    return " | ".join((*words, algorithm.value, f"threads {threads}"))


@lru_cache(maxsize=1)
def processor_model() -> str:
    """The processor's name as the operating system has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    # `processor` runs a program, and before Python 3.12 under a lock that a fork may cut.
    return next(named, "") or platform.processor() or platform.machine() or "unknown"


# One measurement at a time ------------------------------------------------------------------------

# An engine that uses upconv itself may come here again while it is measured: hence the R.
_lock = threading.RLock()


@contextmanager
def _alone() -> Iterator[None]:
    with _lock:
        yield


def _after_fork() -> None:
    """A child has only the thread that forked, and nothing is being measured in it."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)


# The process's tuner ------------------------------------------------------------------------------


def shared_tuner() -> Tuner:
    """The tuner over the file that the environment names now."""
    environment = os.environ.get
    return _tuner(environment("UPCONV_TUNING_FILE", ""), environment("UPCONV_CACHE_DIR", ""))


@lru_cache(maxsize=8)
def _tuner(file: str, directory: str) -> Tuner:
    return Tuner(TuningStore(tuning_file()))


def selected(
    problem: Problem,
    engine: str | Engine | None,
    threads: int,
    *,
    tune: bool,
    algorithm: Algorithm = Algorithm.DIRECT,
    once: bool = False,
) -> Selection:
    """The engine and variant for a problem: by its own choice, or tuned.

    `once` says that the weight is packed for one call only. Raises `EngineRefusal` when there is
    none.
    """
    if not tune:
        return Selection(*by_model(problem, engine, threads, algorithm, once=once))
    if once and algorithm is Algorithm.AUTO:
        algorithm = Algorithm.DIRECT  # a contest does not count packing
    winner = tuned(problem, threads, engine, algorithm)
    return Selection(winner.engine, winner.variant)


def tuned(
    problem: Problem,
    threads: int,
    engine: str | Engine | None = None,
    algorithm: Algorithm = Algorithm.DIRECT,
) -> Winner:
    """The fastest engine and variant for a problem, remembered or measured now.

    engine: only variants of this one. Measuring takes about half a second, and more where single
    calls are long. A problem with nothing to compute, or too large to be held in memory together
    with random data, is not measured (`seconds` is 0.0) and goes to the preferred engine.

    Raises `EngineRefusal` when no engine does the problem, and whatever an engine raises.
    """
    return shared_tuner().winner(problem, threads, engine, algorithm)


def remembered(
    problem: Problem,
    threads: int,
    engine: str | Engine | None,
    algorithm: Algorithm = Algorithm.DIRECT,
) -> Winner | None:
    """The winner if there is one already; nothing is measured.

    Raises `EngineRefusal` when no engine does the problem.
    """
    return shared_tuner().remembered(problem, threads, engine, algorithm)


def ceilings(threads: int, *, measure: bool) -> Limits | None:
    """The ceilings of this machine that are remembered; else measured now if `measure`, or None.

    None too where llvmlite, by which they are measured, is not installed.
    """
    if not measure and not shared_tuner().store.counts()["ceilings"]:
        return None  # and no compiler is loaded to find that out
    known = _known_ceilings(threads)
    return fresh_ceilings(threads) if known is None and measure else known


def fresh_ceilings(threads: int) -> Limits | None:
    """The ceilings of this machine, measured now; remembered ones that are higher stand.

    A busy machine shows lower ones, and no machine shows more than it can do. None without
    llvmlite.
    """
    try:
        with importing:
            from ..engines.jit import limits
    except ImportError:
        return None
    with _alone():
        found = limits.measure(threads)
    known = _known_ceilings(threads) or found
    flops, bandwidth = max(found.flops, known.flops), max(found.bandwidth, known.bandwidth)
    record: Record = {"flops": flops, "bandwidth": bandwidth}
    shared_tuner().store.remember("ceilings", _ceiling_key(limits.key(), threads), record)
    return limits.Limits(threads, flops, bandwidth)


def _known_ceilings(threads: int) -> Limits | None:
    try:
        with importing:
            from ..engines.jit import limits
    except ImportError:
        return None
    record = shared_tuner().store.find("ceilings", _ceiling_key(limits.key(), threads))
    if record is None:
        return None
    return limits.Limits(threads, float(record["flops"]), float(record["bandwidth"]))


def _ceiling_key(target: str, threads: int) -> str:
    return f"{processor_model()} | {target} | threads {threads}"


def tuning_info() -> TuningInfo:
    """Where measurements are kept, and how many there are.

    >>> tuning_info().measured >= 0
    True
    """
    tuner = shared_tuner()
    counts = tuner.store.counts()
    return TuningInfo(str(tuner.store.path), counts["winners"], counts["ceilings"], tuner.measured)


def tuning_clear() -> None:
    """Forget everything that was measured, in this process and on disk.

    Plans and cached primitives stay as they are.
    """
    shared_tuner().clear()
