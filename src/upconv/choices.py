"""Choosing an engine for a problem.

Engines are asked in the order of their table, that of `UPCONV_ENGINE` before all others; the first
that does not refuse is taken, and what the others said is kept. One that an argument asks for is
never replaced by another.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from .checks import boolean, frozen, one_of
from .engines import ENGINES, load
from .engines.base import Engine, WinogradEngine
from .errors import ArgumentError, DTypeError, EngineMissing, EngineRefusal, brief
from .problem import Problem

_ENGINE_PARTS = ("name", "fingerprint", "refuses", "variants", "build")


class Algorithm(Enum):
    """Direct sums, Winograd's algorithm with fewer products, or the quicker of the two."""

    AUTO = "auto"
    DIRECT = "direct"
    WINOGRAD = "winograd"

    @classmethod
    def of(cls, value: object) -> Algorithm:
        """The algorithm that an argument names; `ArgumentError` for another value."""
        return one_of("algorithm", frozen("algorithm", value), cls, _ALGORITHMS)


_ALGORITHMS = '"auto" takes Winograd where it is expected to be faster and as exact as direct sums.'


class Selection(NamedTuple):
    """An engine, its variant ("": its own choice), and seconds of a call (0.0: not measured)."""

    engine: Engine
    variant: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.engine.name} {self.variant}".rstrip()


@dataclass(frozen=True, slots=True)
class Refusal:
    """One engine's sentence on why it does not do a problem."""

    engine: str
    reason: str

    def __str__(self) -> str:
        return f"{self.engine}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine that will do a problem, None where every one refused, and the refusals before."""

    engine: Engine | None
    refusals: tuple[Refusal, ...]


def tuning_asked(tune: object = None) -> bool:
    """Whether to choose by measurement: `tune` if it is a bool; None leaves it to `UPCONV_TUNE`."""
    return _tuning_variable() if tune is None else boolean("tune", tune)


@lru_cache(maxsize=1)
def _tuning_variable() -> bool:
    text = os.environ.get("UPCONV_TUNE", "").strip()
    if text not in ("", "0", "1"):
        remedy = "It is an environment variable; 1 measures engines, as plan(..., tune=True) does."
        raise ArgumentError("UPCONV_TUNE", brief(text), "1, 0 or nothing", remedy)
    return text == "1"


def choose(problem: Problem, engine: str | Engine | None = None) -> Choice:
    """The engine asked for, or the first in order of preference that does not refuse.

    `engine` is a name, an `Engine` object, or None; for None `UPCONV_ENGINE` says which is asked
    first, and is read when a problem is first seen.

    Raises `ArgumentError` for an unknown name, `DTypeError` for what is no engine.

    >>> from upconv.geometry import Axis
    >>> from upconv.problem import Direction, Problem
    >>> choose(Problem(Direction.FORWARD, (Axis(4, 2, 2),), 1, 3, 5), "reference").engine.name
    'reference'
    """
    if engine is None or isinstance(engine, str):
        return _choose_named(problem, engine)
    if isinstance(engine, type) or not all(hasattr(engine, part) for part in _ENGINE_PARTS):
        expected = f"None, a name, or an object with {', '.join(_ENGINE_PARTS)}"
        remedy = "upconv.engines() lists the names."
        raise DTypeError("engine", f"{brief(engine)} ({type(engine).__name__})", expected, remedy)
    return _asked(problem, engine)


@lru_cache(maxsize=4096)
def _choose_named(problem: Problem, name: str | None) -> Choice:
    return _first_able(problem) if name is None else _asked(problem, load(name))


def _first_able(problem: Problem) -> Choice:
    """The first engine that does a problem: that of `UPCONV_ENGINE`, or else the table's first.

    One that defers is passed over as long as another but the last, the reference, does it. Warns
    when the variable's engine is not the one; raises `ArgumentError` when there is no such engine.
    """
    wanted = _asked_variable()
    refusals: list[Refusal] = []
    found: tuple[str, Engine, int] | None = None
    *_, last = ENGINES
    for name in dict.fromkeys((wanted, *ENGINES) if wanted else ENGINES):
        if found and name == last:
            break
        try:
            engine = load(name, "UPCONV_ENGINE")
        except (EngineMissing, EngineRefusal) as error:
            refusals.append(Refusal(name, str(error)))
            continue
        reason = engine.refuses(problem)
        if reason is None:
            defers = getattr(engine, "defers", None) if name != wanted else None
            reason = defers and defers(problem)
            found = found or (name, engine, len(refusals))
            if reason is None:
                found = name, engine, len(refusals)
                break
        refusals.append(Refusal(name, reason))
    if found is None:
        return Choice(None, tuple(refusals))
    name, engine, before = found
    if wanted and name != wanted:
        told = f"engine {name!r} is taken, though UPCONV_ENGINE asks for {refusals[0]}"
        warnings.warn(told, RuntimeWarning, stacklevel=2)
    return Choice(engine, tuple(refusals[:before]))


def _asked(problem: Problem, engine: Engine) -> Choice:
    reason = engine.refuses(problem)
    return Choice(engine, ()) if reason is None else Choice(None, (Refusal(engine.name, reason),))


def select(problem: Problem, engine: str | Engine | None) -> Engine:
    """The engine `choose` finds; `EngineRefusal` with every reason when there is none."""
    choice = choose(problem, engine)
    if choice.engine is None:
        if engine is None:
            reasons = "; ".join(map(str, choice.refusals))
            raise EngineRefusal(f"No engine does {problem}. {reasons}.")
        refusal = choice.refusals[0]
        raise EngineRefusal(
            f"Engine {refusal.engine!r} cannot do {problem}: {refusal.reason}."
            " Use engine=None to let upconv choose."
        )
    return choice.engine


def able(problem: Problem, engine: str | Engine | None) -> Iterator[Engine]:
    """The engines that do the problem, preferred first, loaded in turn; `engine` alone if given."""
    first = select(problem, engine)
    if engine is not None or first.name == _asked_variable():
        yield first
        return
    for each in map(_usable, ENGINES):
        if each is not None and each.refuses(problem) is None:
            yield each


def by_model(
    problem: Problem, engine: str | Engine | None, threads: int, algorithm: Algorithm, once: bool
) -> Selection:
    """The engine and variant that models choose; `once`: the weight is packed for one call only."""
    if algorithm is Algorithm.DIRECT:
        return Selection(select(problem, engine))
    if algorithm is Algorithm.WINOGRAD:
        capable = winograd_engine(problem, engine)
        if capable is None:
            raise EngineRefusal(_no_winograd(problem, engine))
        return Selection(capable, capable.winograd(problem, threads)[0])
    capable = next(_knowing_winograd(problem, engine), None)
    variant = "" if capable is None else capable.quicker(problem, threads, once=once)
    return (
        Selection(capable, variant) if capable and variant else Selection(select(problem, engine))
    )


def variants(
    engine: Engine, problem: Problem, threads: int, algorithm: Algorithm = Algorithm.DIRECT
) -> tuple[str, ...]:
    """The variants by which an engine does a problem with an algorithm."""
    direct = tuple(engine.variants(problem, threads))
    if algorithm is Algorithm.DIRECT:
        return direct
    auto = algorithm is Algorithm.AUTO
    if not isinstance(engine, WinogradEngine) or engine.refuses_winograd(problem) is not None:
        return direct if auto else ()
    found = engine.winograd(problem, threads, exact=auto)
    return (*direct, *found) if auto else found


def winograd_engine(problem: Problem, engine: str | Engine | None) -> WinogradEngine | None:
    """The first engine that knows Winograd's algorithm, if it can do a problem by it."""
    # No further engine is looked at: loading one takes as long as a first call should.
    found = next(_knowing_winograd(problem, engine), None)
    return None if found is None or found.refuses_winograd(problem) is not None else found


def _knowing_winograd(problem: Problem, engine: str | Engine | None) -> Iterator[WinogradEngine]:
    return (each for each in able(problem, engine) if isinstance(each, WinogradEngine))


def _no_winograd(problem: Problem, engine: str | Engine | None) -> str:
    reasons = [
        f"{each.name}: {each.refuses_winograd(problem)}"
        if isinstance(each, WinogradEngine)
        else f"{each.name}: it computes directly"
        for each in able(problem, engine)
    ]
    told = "; ".join(reasons)
    return f'No engine does {problem} by Winograd. {told}. Use algorithm="auto" or "direct".'


def _usable(name: str) -> Engine | None:
    try:
        return load(name)
    except EngineMissing:  # `choose` keeps the reason
        return None


def _asked_variable() -> str:
    return os.environ.get("UPCONV_ENGINE", "").strip()


def forget_choices() -> None:
    """Ask anew from now on: what engines refuse, and the environment variables, was remembered."""
    _choose_named.cache_clear()
    _tuning_variable.cache_clear()
