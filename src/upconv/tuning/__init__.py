"""Tuning: measure which engine, and which variant of its schedule, is the fastest here.

Engines choose by a cost model. With `tune=True`, or `UPCONV_TUNE=1`, their *candidates* are timed
on random data instead: every engine that computes the problem, in each of its variants. The store
keeps the winner for this process and for later ones:

1. Every candidate is built and runs once or twice. A candidate that takes 5 times as long as the
   best drops out. After 2 seconds no further one begins.
2. The others are timed in interleaved rounds for half a second in all. The best time of each
   counts, since disturbances only make a run longer. One 25% behind after a round drops out.
3. The winner is the first, in the order of preference, of those within 2% of the best: noise
   between equals would choose differently in the next process.

The key of a winner is the exact problem, not a class of problems. How cache blocks fit and whether
threads pay depends on every extent, so a time for one length says little about another. The key
also holds the processor, upconv's version, the fingerprints of all candidates and the number of
threads. Only calls that ask for tuning read the store: no result depends on a file by accident.
"""

from __future__ import annotations

import os
import platform
import threading
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import NamedTuple

from .._version import __version__
from ..engine_choice import Algorithm, Selection, able, by_model, variants
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
# here again while it is measured, hence an RLock.
measuring = threading.RLock()


def _after_fork() -> None:
    """Renew the lock: a child has only the forking thread, which measures nothing."""
    global measuring
    measuring = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True, slots=True)
class TuningInfo:
    """The store's file, its numbers of records, and the number of problems measured here."""

    file: str
    winners: int
    ceilings: int
    measured: int


class _Question(NamedTuple):
    """The key of a winner: a problem, and the engines that compete."""

    problem: Problem
    threads: int
    engines: tuple[Engine, ...]
    algorithm: Algorithm

    @classmethod
    def of(
        cls, problem: Problem, threads: int, engine: str | Engine | None, algorithm: Algorithm
    ) -> _Question:
        """With the engines that do the problem by the algorithm; `EngineRefusal` for none."""
        engines = tuple(able(problem, engine))
        tiles = (variants(member, problem, threads, Algorithm.WINOGRAD) for member in engines)
        if algorithm is Algorithm.AUTO and not any(tiles):
            algorithm = Algorithm.DIRECT  # no engine knows another: one winner serves both
        if algorithm is Algorithm.WINOGRAD:
            engines = (by_model(problem, engine, threads, algorithm, False).engine,)
        return cls(problem, threads, engines, algorithm)

    @property
    def key(self) -> str:
        """Everything that the winner depends on."""
        candidates = (f"{engine.name} {engine.fingerprint()}" for engine in self.engines)
        words = (processor_model(), f"upconv {__version__}", *candidates, str(self.problem))
        return " | ".join((*words, self.algorithm.value, f"threads {self.threads}"))

    def found(self, store: TuningStore) -> Selection | None:
        """The stored winner, if it is one of the candidates."""
        record = store.find(_WINNERS, self.key)
        if record is None:
            return None
        name, variant, seconds = (record.get(part) for part in ("engine", "variant", "seconds"))
        for engine in self.engines:
            known = variants(engine, self.problem, self.threads, self.algorithm)
            if engine.name != name or variant not in known:
                continue
            if isinstance(seconds, float) and seconds > 0:
                return Selection(engine, str(variant), seconds)
        store.warn("names an engine or a variant that there is none of; it is measured anew")
        return None

    def measured(self, store: TuningStore) -> Selection | None:
        """The winner by an autotune; None where the problem is too large for it."""
        with importing:
            from .autotune import autotune  # loaded only for tuning

        try:
            best = autotune(*self)
        except MemoryLimitError as error:
            store.warn(f"learns nothing of {self.problem}, which is not measured: {error}")
            return None
        store.measured += 1
        name, variant, seconds = best.engine.name, best.variant, best.seconds
        record: Record = {"engine": name, "variant": variant, "seconds": seconds}
        store.remember(_WINNERS, self.key, record)
        return best


@lru_cache(maxsize=1)
def processor_model() -> str:
    """The processor's name by the operating system."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    # `processor` runs a program, and before Python 3.12 under a lock that a fork may cut.
    return next(named, "") or platform.processor() or platform.machine() or "unknown"


_stores: dict[Path, TuningStore] = {}


def shared_store() -> TuningStore:
    """The store of the file that the environment names now; one for each file."""
    file = tuning_file()
    return _stores.get(file) or _stores.setdefault(file, TuningStore(file))


def selected(
    problem: Problem,
    engine: str | Engine | None,
    threads: int,
    *,
    tune: bool,
    algorithm: Algorithm = Algorithm.DIRECT,
    once: bool = False,
) -> Selection:
    """The engine and variant by models, or tuned; `once`: the weight is packed for one call.

    The setting `tunes` of an engine, if it has one, overrides `tune`.
    """
    asked = getattr(engine, "tunes", None)
    if not (tune if asked is None else asked):
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
    question, store = _Question.of(problem, threads, engine, algorithm), shared_store()
    model = by_model(problem, engine, threads, question.algorithm, False)
    if not (problem.multiply_adds and prod(problem.result_shape)):
        return model
    with measuring:
        return question.found(store) or question.measured(store) or model


def remembered(
    problem: Problem,
    threads: int,
    engine: str | Engine | None,
    algorithm: Algorithm = Algorithm.DIRECT,
) -> Selection | None:
    """The winner if there is one already; `EngineRefusal` when no engine does the problem."""
    return _Question.of(problem, threads, engine, algorithm).found(shared_store())


def tuning_info() -> TuningInfo:
    """Return the file of measurements, and their number.

    >>> tuning_info().measured >= 0
    True
    """
    store = shared_store()
    counts = store.count(_WINNERS), store.count(ROOFLINES)
    return TuningInfo(str(store.path), *counts, store.measured)


def tuning_clear() -> None:
    """Forget everything that was measured, in this process and on disk.

    Plans and cached primitives stay as they are.
    """
    shared_store().clear()
    shared_cache().calls.clear()
