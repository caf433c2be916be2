"""The candidates for a problem as a table for people: cycles, memory, why each is taken or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from textwrap import wrap

from .engine_choice import Choice, Selection, candidates, rating_engine
from .engines.base import Candidate, Eligible, ranked
from .memory import readable
from .problem import Problem
from .terminal import WIDTH, aligned

_TILES = 2  # of Winograd's algorithm that are listed; the others are slower


@dataclass(frozen=True, slots=True)
class Use:
    """The engine and kernel that the function `name` takes for a layer."""

    name: str
    engine: str
    kernel: str

    def __str__(self) -> str:
        return f"{self.engine} {self.kernel}".rstrip()


@dataclass(frozen=True, slots=True)
class Rated:
    """A candidate: cycles of each thread, those of packing the weight, bytes of scratch memory.

    Figures are None if they are unknown or the candidate is never taken. `reason` tells why the
    engine takes it or not.
    """

    name: str
    cycles: float | None
    packing: float | None
    workspace: int | None
    reason: str

    @property
    def cells(self) -> tuple[str, ...]:
        """Its name and figures as text."""
        numbers = self.cycles, self.packing
        figures = ("-" if number is None else f"{number:,.0f}" for number in numbers)
        return self.name, *figures, "-" if self.workspace is None else readable(self.workspace)


def kernel_of(choice: Choice | Selection, problem: Problem, threads: int) -> str:
    """The variant of a choice, or the kernel that its engine takes by itself for direct sums; "" if
    unknown."""
    engine = choice.engine
    if choice.variant or engine is None:
        return choice.variant
    listed = (c for c in candidates(engine, problem, threads) if not c.winograd)
    return next((c.variant for c in ranked(listed) if c.engine == engine.name), "")


def rated(problem: Problem, chosen: Selection, threads: int, *, once: bool) -> Iterator[Rated]:
    """All candidates, the one chosen first, then by their cost, and those never taken last."""
    engine = rating_engine(problem, chosen.engine)
    listed = list(candidates(engine, problem, threads, every=True)) if engine else []
    if not listed:
        return
    kernel = kernel_of(chosen, problem, threads)
    taken = [c for c in listed if (c.engine, c.variant) == (chosen.engine.name, kernel)]
    least = taken[0].cost(once=once) if taken else 0.0
    others = sorted(
        (c for c in listed if c not in taken),
        key=lambda c: (not c.possible, c.eligible is Eligible.ON_REQUEST, c.cost(once=once)),
    )
    for candidate in (*taken, *_few_tiles(others)):
        name = f"{candidate.engine} {candidate.variant}".rstrip()
        if not candidate.possible:
            yield Rated(name, None, None, None, f"never: {candidate.reason}")
            continue
        reason = "taken" if candidate in taken else _reason(candidate, least, once=once)
        workspace = candidate.workspace if candidate.engine == "jit" else None
        yield Rated(name, candidate.cycles, candidate.packing, workspace, reason)


def _few_tiles(listed: Iterable[Candidate]) -> Iterator[Candidate]:
    tiles = 0
    for candidate in listed:
        tiles += candidate.winograd
        if not candidate.winograd or tiles <= _TILES:
            yield candidate


def _reason(candidate: Candidate, least: float, *, once: bool) -> str:
    """Why a candidate that is possible is not taken."""
    if candidate.eligible is Eligible.ON_REQUEST:
        return f"only on request: {candidate.reason}"
    times = candidate.cost(once=once) / least if least else 1.0
    margin = f", with a margin of {candidate.margin:g} for its model" * (candidate.margin > 1)
    more = f": {candidate.reason}" if candidate.reason else ""
    return f"{times:.3g} times the cost{margin}{more}"


def table_of(listed: tuple[Rated, ...]) -> list[str]:
    """The table's lines, of at most 80 columns: a reason that is too long has lines of its own."""
    if not listed:
        return []
    cells = [candidate.cells for candidate in listed]
    head, *rows = aligned(cells, ("candidate", "cycles", "packing", "memory"), left=1)
    lines = ["", head]
    for row, candidate in zip(rows, listed, strict=True):
        line = f"{row}  {candidate.reason}".rstrip()
        if len(line) <= WIDTH:
            lines.append(line)
        else:
            reason = wrap(
                candidate.reason, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4
            )
            lines += [row, *reason]
    return lines
