"""One layer through every contender: prepared, verified, and only then timed.

1. An engine that refuses the layer, or a peer that cannot do it or is not there, is left out with
   its reason.
2. An engine that fails, and anything whose numbers are wrong, is a fault: shown, and never timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import EngineError, EngineRefusal, MemoryLimitError
from . import contenders, peers
from .cases import Case, Contender
from .results import Measured, Result
from .rounds import timed

if TYPE_CHECKING:
    from ..engines.jit.limits import Limits


@dataclass(frozen=True, slots=True)
class Trial:
    """What every layer goes through. `step` is told what is about to begin.

    `limits` are the machine's ceilings, None where they cannot be measured.
    """

    engines: tuple[str, ...]
    peers: tuple[str, ...]
    threads: int
    seconds: float
    step: Callable[[str], None]
    limits: Limits | None = None

    def of(self, case: Case) -> Measured:
        """Every contender's result on a case."""
        name = case.layer.name
        self.step(f"{name}: preparing and verifying")
        entrants = [entrant for engine in self.engines for entrant in self._engine(engine, case)]
        entrants += [entrant for peer in self.peers for entrant in self._peer(peer, case)]
        ready = [entrant for entrant in entrants if entrant.contender]
        self.step(f"{name}: timing")
        timings = timed([e.contender for e in ready if e.contender], self.seconds)
        for entrant, timing in zip(ready, timings, strict=True):
            entrant.result = replace(entrant.result, timing=timing)
        bare = Case(case.layer, case.way, case.dtype)  # without the arrays, which may go now
        results = tuple(entrant.result for entrant in entrants)
        return Measured(bare, case.tolerance, results, self._floor(case))

    def _floor(self, case: Case) -> float | None:
        problem = case.problem
        if self.limits is None:
            return None
        return self.limits.floor(problem.multiply_adds, problem.nbytes, problem.dtype)

    def _engine(self, name: str, case: Case) -> list[_Entrant]:
        refusal = contenders.refusal(name, case)
        if refusal is not None:
            return [_left_out(name, refusal)]
        try:
            return [_verified(contenders.contender(name, case, self.threads), case, own=True)]
        except (EngineRefusal, MemoryLimitError) as error:
            return [_left_out(name, str(error))]
        except EngineError as error:
            return [_left_out(name, str(error), fault=True)]

    def _peer(self, name: str, case: Case) -> list[_Entrant]:
        try:
            return [_verified(made, case) for made in peers.contenders(name, case, self.threads)]
        except ImportError as error:
            return [_left_out(name, f"not installed ({error})")]
        # A foreign library may raise anything, and its troubles are no reason to lose a bench.
        except Exception as error:
            return [_left_out(name, f"{type(error).__name__}: {error}".replace("\n", " ")[:300])]


@dataclass(slots=True)
class _Entrant:
    """A contender that may be timed, if any, and its result so far."""

    contender: Contender | None
    result: Result


def _left_out(name: str, reason: str, *, fault: bool = False) -> _Entrant:
    return _Entrant(None, Result(name, name, reason=reason, fault=fault))


def _verified(contender: Contender, case: Case, *, own: bool = False) -> _Entrant:
    """The contender after one call whose result was looked at, element by element."""
    contender.run()
    error = case.error(contender.result())
    workspace = contender.workspace_bytes
    result = Result(
        contender.name, contender.family, error=error, workspace_bytes=workspace, own=own
    )
    if error <= case.tolerance:
        return _Entrant(contender, result)
    reason = f"wrong: the error is {error:.2g}, rounding explains {case.tolerance:.2g}"
    return _Entrant(None, replace(result, reason=reason, fault=True))


def reasons(measured: Sequence[Measured]) -> list[str]:
    """One line for everything that was left out or is wrong, with the layers it holds for."""
    places: dict[tuple[str, str], list[str]] = {}
    for layer in measured:
        for result in layer.results:
            if result.reason:
                said = (result.contender, result.reason)
                places.setdefault(said, []).append(layer.case.layer.name)
    return [
        f"{who}: {' '.join(why.split())} ({_places(names, len(measured))})"
        for (who, why), names in places.items()
    ]


def _places(names: Sequence[str], layers: int) -> str:
    return "every layer" if len(names) == layers > 1 else ", ".join(names)
