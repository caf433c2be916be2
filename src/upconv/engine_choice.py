"""The choice of an engine and its variant for a problem.

Engines are tried in the order of their table; the engine in `UPCONV_ENGINE` comes first. The first
engine that does not refuse ranks its candidates by expected time. The fastest candidate may be
another engine, which is used if it is installed and does not refuse. The choice records the
refusals of the engines tried before. An engine named by an argument is never replaced.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from .argument_checks import boolean, frozen, one_of
from .devices import Library
from .engines import ENGINES, ON_DEVICES, load
from .engines.base import Candidate, Eligible, Engine, ranked
from .errors import ArgumentError, DTypeError, EngineMissing, EngineRefusal, brief
from .problem import Problem
from .threads import get_num_threads

_ENGINE_PARTS = ("name", "fingerprint", "refuses", "variants", "build")


class Algorithm(Enum):
    """Direct sums, Winograd's algorithm with fewer products, or the faster of the two."""

    AUTO = "auto"
    DIRECT = "direct"
    WINOGRAD = "winograd"

    @classmethod
    def of(cls, value: object) -> Algorithm:
        """Return the algorithm that an argument names; `ArgumentError` for another value."""
        return one_of("algorithm", frozen("algorithm", value), cls, _ALGORITHMS)


_ALGORITHMS = '"auto" uses Winograd where it should be faster and about as accurate as direct sums.'


def engine_on(engine: str | Engine | None, library: Library, device: int) -> Engine:
    """Return the requested engine, bound to a device; None selects cuDNN, the only one for devices.

    Raises `EngineRefusal` for an engine that computes in main memory.
    """
    asked: Any = load(ON_DEVICES) if engine is None else engine
    if isinstance(asked, str):
        asked = load(asked)
    if getattr(asked, "library", None) is library and asked.device == device:
        already_bound: Engine = asked
        return already_bound
    if not hasattr(asked, "bound"):
        raise EngineRefusal(
            f"Engine {getattr(asked, 'name', asked)!r} computes in main memory, but the arrays are"
            f" on cuda:{device}. Omit engine, or copy the arrays to the CPU."
        )
    bound: Engine = asked.bound(library, device)
    return bound


class Selection(NamedTuple):
    """An engine, its variant ("" for its default), and seconds per call (0.0 if not measured)."""

    engine: Engine
    variant: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.engine.name} {self.variant}".rstrip()


@dataclass(frozen=True, slots=True)
class Refusal:
    """An engine's reason for refusing a problem."""

    engine: str
    reason: str

    def __str__(self) -> str:
        return f"{self.engine}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine and variant for a problem, and the refusals of the engines tried before.

    The engine is None if all engines refused.
    """

    engine: Engine | None
    refusals: tuple[Refusal, ...]
    variant: str = ""


def tuning_asked(tune: object = None) -> bool:
    """Return whether to choose by measurement: `tune`, or `UPCONV_TUNE` if that is None."""
    return _tuning_variable() if tune is None else boolean("tune", tune)


@lru_cache(maxsize=1)
def _tuning_variable() -> bool:
    text = os.environ.get("UPCONV_TUNE", "").strip()
    if text not in ("", "0", "1"):
        remedy = "It is an environment variable; 1 measures engines, as plan(..., tune=True) does."
        raise ArgumentError("UPCONV_TUNE", brief(text), "1, 0 or nothing", remedy)
    return text == "1"


def choose(
    problem: Problem,
    engine: str | Engine | None = None,
    threads: int | None = None,
    algorithm: Algorithm = Algorithm.DIRECT,
    *,
    once: bool = False,
) -> Choice:
    """Choose an engine: the requested one, or the fastest that does not refuse (see the module).

    engine: a name, an `Engine` object, or None. For None, `UPCONV_ENGINE` names the engine to try
    first; it is read when a problem is first seen. once: the weight is packed for one call only.

    Raises `ArgumentError` for an unknown name and `DTypeError` for an object that is not an engine.

    >>> from upconv.geometry import Axis
    >>> from upconv.problem import Direction, Problem
    >>> choose(Problem(Direction.FORWARD, (Axis(4, 2, 2),), 1, 3, 5), "reference").engine.name
    'reference'
    """
    question = _Question(problem, threads or get_num_threads(), algorithm, once)
    if engine is None or isinstance(engine, str):
        return _choose_named(question, engine)
    if isinstance(engine, type) or not all(hasattr(engine, part) for part in _ENGINE_PARTS):
        expected = f"None, a name, or an object with {', '.join(_ENGINE_PARTS)}"
        remedy = "upconv.engines() lists the names."
        raise DTypeError("engine", f"{brief(engine)} ({type(engine).__name__})", expected, remedy)
    return _choose_requested(question, engine)


class _Question(NamedTuple):
    """A query to the engines: which of them computes a problem, and how."""

    problem: Problem
    threads: int
    algorithm: Algorithm
    once: bool

    def ranked(self, engine: Engine) -> list[Candidate]:
        """Return an engine's candidates, fastest first; [] if it lists none."""
        every = self.algorithm is Algorithm.WINOGRAD
        rated = candidates(engine, self.problem, self.threads, every=every)
        if every:  # on explicit request, margins are ignored and all calls get the same tiles
            tiles = (candidate for candidate in rated if candidate.winograd and candidate.possible)
            return sorted(tiles, key=lambda candidate: candidate.cycles)
        auto = self.algorithm is Algorithm.AUTO
        return ranked(
            (candidate for candidate in rated if auto or not candidate.winograd), once=self.once
        )


@lru_cache(maxsize=4096)
def _choose_named(question: _Question, name: str | None) -> Choice:
    return _choose_first_able(question) if name is None else _choose_requested(question, load(name))


def _choose_requested(question: _Question, engine: Engine) -> Choice:
    """Return the choice for a requested engine, which no other engine replaces."""
    reason = engine.refuses(question.problem)
    if reason is not None:
        return Choice(None, (Refusal(engine.name, reason),))
    return _choose_variant(question, engine, (), rivals=False)


def _choose_first_able(question: _Question) -> Choice:
    """Return the choice of the first engine that does not refuse, starting with `UPCONV_ENGINE`.

    Warns if that variable's engine refuses; raises `ArgumentError` if there is no such engine.
    """
    wanted = _requested_variable()
    refusals: list[Refusal] = []
    for name in dict.fromkeys((wanted, *ENGINES) if wanted else ENGINES):
        engine, reason = _load_usable(name, question.problem)
        if engine is None:
            refusals.append(Refusal(name, reason))
            continue
        if wanted and name != wanted:
            message = f"using engine {name!r}, though UPCONV_ENGINE asks for {refusals[0]}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        return _choose_variant(question, engine, tuple(refusals), rivals=name != wanted)
    return Choice(None, tuple(refusals))


def _choose_variant(
    question: _Question, engine: Engine, refusals: tuple[Refusal, ...], *, rivals: bool
) -> Choice:
    """Return the variant that an engine ranks fastest, or a faster rival engine that it lists.

    For direct sums the variant is "", the engine's default, so that plans and calls agree bit for
    bit. The exception is a candidate for single calls.
    """
    for candidate in question.ranked(engine):
        if candidate.engine == engine.name:
            named = candidate.winograd or candidate.eligible is Eligible.ONCE
            return Choice(engine, refusals, candidate.variant if named else "")
        if rivals and candidate.engine in ENGINES:
            rival, _ = _load_usable(candidate.engine, question.problem)
            if rival is not None:
                passed_over = Refusal(engine.name, candidate.reason)
                return Choice(rival, (*refusals, passed_over), candidate.variant)
    return Choice(engine, refusals)


def _load_usable(name: str, problem: Problem) -> tuple[Engine | None, str]:
    """Return an installed engine that does not refuse the problem, or None and the reason."""
    try:
        engine = load(name, "UPCONV_ENGINE")
    except (EngineMissing, EngineRefusal) as error:
        return None, str(error)
    reason = engine.refuses(problem)
    return (engine, "") if reason is None else (None, reason)


def select(problem: Problem, engine: str | Engine | None) -> Engine:
    """Return the engine that `choose` finds; `EngineRefusal` with every reason if there is none."""
    return by_model(problem, engine, get_num_threads(), Algorithm.DIRECT, once=False).engine


def able(problem: Problem, engine: str | Engine | None) -> Iterator[Engine]:
    """Yield the engines that do not refuse, in order of preference; only `engine` if given."""
    first = select(problem, engine)
    if engine is not None or first.name == _requested_variable():
        yield first
        return
    yield from _in_order(problem)


def _in_order(problem: Problem) -> Iterator[Engine]:
    """Yield the installed engines that do not refuse the problem, in the order of the table."""
    for name in ENGINES:
        engine, _ = _load_usable(name, problem)  # `choose` reports the reasons
        if engine is not None:
            yield engine


def by_model(
    problem: Problem, engine: str | Engine | None, threads: int, algorithm: Algorithm, once: bool
) -> Selection:
    """Return the choice by cost models; `once`: the weight is packed for one call only."""
    choice = choose(problem, engine, threads, algorithm, once=once)
    if choice.engine is None:
        if engine is None:
            reasons = "; ".join(map(str, choice.refusals))
            raise EngineRefusal(f"No engine supports {problem}. {reasons}.")
        (refusal,) = choice.refusals
        message = f"Engine {refusal.engine!r} cannot do {problem}: {refusal.reason}."
        raise EngineRefusal(f"{message} Use engine=None to let upconv choose.")
    if algorithm is Algorithm.WINOGRAD and not choice.variant:
        raise EngineRefusal(_no_winograd(problem, engine, threads))
    return Selection(choice.engine, choice.variant)


def candidates(
    engine: Engine, problem: Problem, threads: int, *, every: bool = False
) -> tuple[Candidate, ...]:
    """Return an engine's candidates for a problem it accepts; () if it has no cost model."""
    rated = getattr(engine, "candidates", None)
    listed: tuple[Candidate, ...] = rated(problem, threads, every=every) if rated else ()
    return listed


def rating_engine(problem: Problem, engine: Engine) -> Engine | None:
    """Return the engine whose model rates a problem: the chosen one, or the first with a model."""
    if getattr(engine, "candidates", None):
        return engine
    rating = (usable for usable in _in_order(problem) if getattr(usable, "candidates", None))
    return next(rating, None)


def variants(
    engine: Engine, problem: Problem, threads: int, algorithm: Algorithm = Algorithm.DIRECT
) -> tuple[str, ...]:
    """Return the variants of an engine that compute a problem with an algorithm."""
    direct = tuple(engine.variants(problem, threads))
    if algorithm is Algorithm.DIRECT:
        return direct
    auto = algorithm is Algorithm.AUTO
    rated = candidates(engine, problem, threads, every=True)
    tiles = (c for c in rated if c.winograd and c.possible and (c.exact or not auto))
    names = tuple(c.variant for c in sorted(tiles, key=lambda c: c.cycles)[:_MAX_TILES])
    return (*direct, *names) if auto else names


_MAX_TILES = 6  # three axes have about sixty choices; the cost model rules out most of them


def _no_winograd(problem: Problem, engine: str | Engine | None, threads: int) -> str:
    reasons = []
    for usable in able(problem, engine):
        rated = candidates(usable, problem, threads, every=True)
        refused = (c.reason for c in rated if c.winograd and not c.possible)
        reasons.append(f"{usable.name}: {next(refused, 'it computes directly')}")
    message = "; ".join(reasons)
    return f'No engine does {problem} by Winograd: {message}. Use algorithm="auto" or "direct".'


def _requested_variable() -> str:
    return os.environ.get("UPCONV_ENGINE", "").strip()


def forget_choices() -> None:
    """Forget the engines' cached answers and the cached environment variables."""
    _choose_named.cache_clear()
    _tuning_variable.cache_clear()
