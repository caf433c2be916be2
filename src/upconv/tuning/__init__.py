"""Tuning: measure which engine, and which variant of its schedule, is fastest on this machine.

Engines choose by a cost model. With `tune=True`, or `UPCONV_TUNE=1`, their *candidates* are timed
on random data instead: every engine that supports the problem, in each of its variants. The store
keeps the winner for this and later processes:

1. Every candidate is built and runs once or twice. A candidate that takes more than 5 times as long
   as the best drops out. After 2 seconds no further candidate starts.
2. The others are timed in interleaved rounds for half a second in total. The best time of each
   counts, since disturbances only make runs longer. After a round, candidates whose best time is
   over 25% above the overall best drop out.
3. The winner is the most preferred candidate within 2% of the best. Otherwise noise between equals
   would decide, differently in every process.

The key of a winner is the exact problem, not a class of problems. Whether cache blocks fit and
threads pay off depends on every extent, so a time for one length says little about another. The key
also holds the processor, upconv's version, the fingerprints of all candidates and the thread count.
Only calls that request tuning read the store: no result depends on a file by accident.
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
"""The sections of the store for the two kinds of records that `tuning_info` counts."""

# Only one measurement runs at a time. It is an RLock, since an engine under measurement may itself
# use upconv.
measuring = threading.RLock()


def _after_fork() -> None:
    """Replace the lock: a child has only the forking thread, which is not measuring."""
    global measuring
    measuring = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True, slots=True)
class TuningInfo:
    """The store's file and record counts, and the number of problems measured in this process."""

    file: str
    winners: int
    ceilings: int
    measured: int


class _Question(NamedTuple):
    """The key of a winner: a problem and its competing engines."""

    problem: Problem
    threads: int
    engines: tuple[Engine, ...]
    algorithm: Algorithm

    @classmethod
    def of(
        cls, problem: Problem, threads: int, engine: str | Engine | None, algorithm: Algorithm
    ) -> _Question:
        """Ask all engines that support the problem; raise `EngineRefusal` if there is none."""
        engines = tuple(able(problem, engine))
        tiles = (variants(member, problem, threads, Algorithm.WINOGRAD) for member in engines)
        if algorithm is Algorithm.AUTO and not any(tiles):
            algorithm = Algorithm.DIRECT  # no engine has Winograd: one winner serves both
        if algorithm is Algorithm.WINOGRAD:
            engines = (by_model(problem, engine, threads, algorithm, False).engine,)
        return cls(problem, threads, engines, algorithm)

    @property
    def key(self) -> str:
        """Everything that the winner depends on."""
        candidates = (f"{engine.name} {engine.fingerprint()}" for engine in self.engines)
        words = (processor_model(), f"upconv {__version__}", *candidates, str(self.problem))
        return " | ".join((*words, self.algorithm.value, f"threads {self.threads}"))

    def recall(self, store: TuningStore) -> Selection | None:
        """Return the stored winner, if it is one of the candidates."""
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
        store.warn("names an unknown engine or variant; the problem is measured again")
        return None

    def measure(self, store: TuningStore) -> Selection | None:
        """Autotune and store the winner; return None if the problem is too large to measure."""
        with importing:
            from .autotune import autotune  # loaded only for tuning

        try:
            best = autotune(*self)
        except MemoryLimitError as error:
            store.warn(f"has no record of {self.problem}, which cannot be measured: {error}")
            return None
        store.measured += 1
        name, variant, seconds = best.engine.name, best.variant, best.seconds
        record: Record = {"engine": name, "variant": variant, "seconds": seconds}
        store.remember(_WINNERS, self.key, record)
        return best


@lru_cache(maxsize=1)
def processor_model() -> str:
    """Return the name of the processor according to the operating system."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    # `processor` runs a program; before Python 3.12 it holds a lock that a fork could leave locked.
    return next(named, "") or platform.processor() or platform.machine() or "unknown"


_stores: dict[Path, TuningStore] = {}


def shared_store() -> TuningStore:
    """Return the store of the file that the environment currently names; one store per file."""
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
    """Return the choice by cost models or by tuning; `once`: the weight is packed for one call.

    If an engine has the attribute `tunes`, it overrides `tune`.
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
    """Return the fastest engine and variant for a problem, from the store or measured now.

    engine: only variants of this engine compete. A measurement takes about half a second, or more
    if single calls are long. A problem is not measured if it has nothing to compute, or if random
    data for it does not fit in memory. The cost models then decide, and `seconds` is 0.0.

    Raises `EngineRefusal` if no engine supports the problem; errors of engines propagate.
    """
    question, store = _Question.of(problem, threads, engine, algorithm), shared_store()
    model = by_model(problem, engine, threads, question.algorithm, False)
    if not (problem.multiply_adds and prod(problem.result_shape)):
        return model
    with measuring:
        return question.recall(store) or question.measure(store) or model


def remembered(
    problem: Problem,
    threads: int,
    engine: str | Engine | None,
    algorithm: Algorithm = Algorithm.DIRECT,
) -> Selection | None:
    """Return the stored winner, or None; `EngineRefusal` if no engine supports the problem."""
    return _Question.of(problem, threads, engine, algorithm).recall(shared_store())


def tuning_info() -> TuningInfo:
    """Return the tuning file and its record counts.

    >>> tuning_info().measured >= 0
    True
    """
    store = shared_store()
    counts = store.count(_WINNERS), store.count(ROOFLINES)
    return TuningInfo(str(store.path), *counts, store.measured)


def tuning_clear() -> None:
    """Delete all measurements, in this process and on disk.

    Plans and cached primitives are kept.
    """
    shared_store().clear()
    shared_cache().calls.clear()
