"""Choosing by measurement: which engine, and which variant of its schedule, is the fastest here.

Engines choose by a model of the machine. With `tune=True`, or `UPCONV_TUNE=1`, their *candidates*
(every engine that does the problem, in every variant it names) are timed on random data instead,
and the winner is remembered in the store, for this process and for later ones:

1. Every candidate is built and runs once or twice. One that takes 5 times as long as the best drops
   out. After 2 seconds no further one begins.
2. The others are timed in interleaved rounds for half a second in all; the best time of each
   counts, since what disturbs a run only makes it longer. One 25% behind after a round drops out.
3. The winner is the first, in the order of preference, of those within 2% of the best: a coin toss
   between equals would fall otherwise in the next process.

A winner is remembered by the exact problem, not by a class of problems: how windows fit the caches
and whether threads pay depends on every extent, so a time measured for one length says little of
another's. Processor, upconv's version, the fingerprints of all candidates and the number of threads
are in the key too. What is remembered is looked at only by who asks for tuning: no result depends
on a file by accident.

"""

from __future__ import annotations

import os
import platform
import threading
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path

from .._version import __version__
from ..choices import Algorithm, Selection, able, by_model, variants, winograd_engine
from ..engines.base import Engine
from ..errors import MemoryLimitError
from ..forks import importing
from ..primitives import shared_cache
from ..problem import Problem
from .store import Record, TuningStore, tuning_file

_WINNERS = "winners"
ROOFLINES = "ceilings"
"""The sections of the store for the two kinds of measurement that `tuning_info` counts."""

# One measurement at a time: others would disturb it. An engine that uses upconv itself may come
# here again while it is measured, hence the R.
measuring = threading.RLock()


def _after_fork() -> None:
    """A child has only the thread that forked, and nothing is being measured in it."""
    global measuring
    measuring = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True, slots=True)
class TuningInfo:
    """The store's file, how many records it has, and how many problems this process measured."""

    file: str
    winners: int
    ceilings: int
    measured: int


@dataclass(slots=True)
class Tuner:
    """A store, and how many problems were measured for it. Safe to use from any thread."""

    store: TuningStore
    measured: int = 0


def _found(
    tuner: Tuner, problem: Problem, threads: int, engines: tuple[Engine, ...], algorithm: Algorithm
) -> Selection | None:
    """The winner that is remembered, if it is one of the candidates."""
    record = tuner.store.find(_WINNERS, _key(problem, threads, engines, algorithm))
    if record is None:
        return None
    name, variant, seconds = (record.get(part) for part in ("engine", "variant", "seconds"))
    for engine in engines:
        known = engine.name == name and variant in variants(engine, problem, threads, algorithm)
        if known and isinstance(seconds, float) and seconds > 0:
            return Selection(engine, str(variant), seconds)
    tuner.store.warn("names an engine or a variant that there is none of; it is measured anew")
    return None


def _measured(
    tuner: Tuner, problem: Problem, threads: int, engines: tuple[Engine, ...], algorithm: Algorithm
) -> Selection | None:
    """The winner by an autotune; None where the problem is too large for it."""
    with importing:
        from .autotune import autotune  # who never tunes never loads it

    try:
        best = autotune(problem, threads, engines, algorithm)
    except MemoryLimitError as error:
        tuner.store.warn(f"learns nothing of {problem}, which is not measured: {error}")
        return None
    tuner.measured += 1
    name, variant, seconds = best.engine.name, best.variant, best.seconds
    record: Record = {"engine": name, "variant": variant, "seconds": seconds}
    tuner.store.remember(_WINNERS, _key(problem, threads, engines, algorithm), record)
    return best


def _effective(problem: Problem, engine: str | Engine | None, algorithm: Algorithm) -> Algorithm:
    """DIRECT in place of AUTO where no engine knows another algorithm: one winner serves both."""
    auto = algorithm is Algorithm.AUTO
    return Algorithm.DIRECT if auto and winograd_engine(problem, engine) is None else algorithm


def _candidates(
    problem: Problem, threads: int, engine: str | Engine | None, algorithm: Algorithm
) -> tuple[Engine, ...]:
    """The engines that can do a problem by an algorithm; `EngineRefusal` where there is none."""
    if algorithm is Algorithm.WINOGRAD:
        return (by_model(problem, engine, threads, algorithm, False).engine,)
    return tuple(able(problem, engine))


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


_tuners: dict[Path, Tuner] = {}


def shared_tuner() -> Tuner:
    """The tuner over the file that the environment names now; one for each file."""
    file = tuning_file()
    return _tuners.get(file) or _tuners.setdefault(file, Tuner(TuningStore(file)))


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
        return by_model(problem, engine, threads, algorithm, once)
    if once and algorithm is Algorithm.AUTO:
        algorithm = Algorithm.DIRECT  # autotuning does not count packing
    return tuned(problem, threads, engine, algorithm)


def tuned(
    problem: Problem,
    threads: int,
    engine: str | Engine | None = None,
    algorithm: Algorithm = Algorithm.DIRECT,
) -> Selection:
    """The fastest engine and variant for a problem, remembered or measured now.

    engine: only variants of this one. Measuring takes about half a second, and more where single
    calls are long. A problem with nothing to compute, or too large to be held in memory together
    with random data, is not measured (`seconds` is 0.0) and goes to the preferred engine.

    Raises `EngineRefusal` when no engine does the problem, and whatever an engine raises.
    """
    algorithm = _effective(problem, engine, algorithm)
    engines = _candidates(problem, threads, engine, algorithm)
    model = by_model(problem, engine, threads, algorithm, False)
    if not (problem.multiply_adds and prod(problem.result_shape)):
        return model
    what = shared_tuner(), problem, threads, engines, algorithm
    with measuring:
        return _found(*what) or _measured(*what) or model


def remembered(
    problem: Problem,
    threads: int,
    engine: str | Engine | None,
    algorithm: Algorithm = Algorithm.DIRECT,
) -> Selection | None:
    """The winner if there is one already; nothing is measured.

    Raises `EngineRefusal` when no engine does the problem.
    """
    algorithm = _effective(problem, engine, algorithm)
    engines = _candidates(problem, threads, engine, algorithm)
    return _found(shared_tuner(), problem, threads, engines, algorithm)


def tuning_info() -> TuningInfo:
    """Where measurements are kept, and how many there are.

    >>> tuning_info().measured >= 0
    True
    """
    tuner = shared_tuner()
    store = tuner.store
    counts = store.count(_WINNERS), store.count(ROOFLINES)
    return TuningInfo(str(store.path), *counts, tuner.measured)


def tuning_clear() -> None:
    """Forget everything that was measured, in this process and on disk.

    Plans and cached primitives stay as they are.
    """
    tuner = shared_tuner()
    tuner.measured = 0
    tuner.store.clear()
    shared_cache().calls.clear()
