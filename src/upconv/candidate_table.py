"""A readable table of a problem's candidates: cycles, memory, and why each is taken or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from textwrap import wrap

from .engine_choice import Choice, Selection, candidates, rating_engine
from .engines.base import Candidate, Eligible, ranked
from .memory import readable
from .problem import Problem
from .terminal import WIDTH, aligned

_TILES = 2  # number of Winograd tiles to list; the others are slower


@dataclass(frozen=True, slots=True)
class Use:
    """The engine and kernel that compute a layer in the use called `name`."""

    name: str
    engine: str
    kernel: str

    def __str__(self) -> str:
        return f"{self.engine} {self.kernel}".rstrip()


@dataclass(frozen=True, slots=True)
class Rated:
    """A candidate: cycles per thread, cycles to pack the weight, and bytes of scratch memory.

    A number is None if it is unknown or the candidate is never taken. `reason` says why it is
    taken or not.
    """

    name: str
    cycles: float | None
    packing: float | None
    workspace: int | None
    reason: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The name and the numbers as text."""
        numbers = self.cycles, self.packing
        figures = ("-" if number is None else f"{number:,.0f}" for number in numbers)
        return self.name, *figures, "-" if self.workspace is None else readable(self.workspace)


def kernel_of(choice: Choice | Selection, problem: Problem, threads: int) -> str:
    """Return a choice's variant, or its engine's default kernel for direct sums; "" if unknown."""
    engine = choice.engine
    if choice.variant or engine is None:
        return choice.variant
    listed = (c for c in candidates(engine, problem, threads) if not c.winograd)
    return next((c.variant for c in ranked(listed) if c.engine == engine.name), "")


def rated(problem: Problem, chosen: Selection, threads: int, *, once: bool) -> Iterator[Rated]:
    """Yield all candidates: the chosen one first, then by cost, impossible ones last."""
    engine = rating_engine(problem, chosen.engine)
    listed = list(candidates(engine, problem, threads, every=True)) if engine else []
    if not listed:
        return
    kernel = kernel_of(chosen, problem, threads)
    taken = [c for c in listed if (c.engine, c.variant) == (chosen.engine.name, kernel)]
    lowest_cost = taken[0].cost(once=once) if taken else 0.0
    others = sorted(
        (c for c in listed if c not in taken),
        key=lambda c: (not c.possible, c.eligible is Eligible.ON_REQUEST, c.cost(once=once)),
    )
    for candidate in (*taken, *_few_tiles(others)):
        name = f"{candidate.engine} {candidate.variant}".rstrip()
        if not candidate.possible:
            yield Rated(name, None, None, None, f"never: {candidate.reason}")
            continue
        reason = "taken" if candidate in taken else _reason(candidate, lowest_cost, once=once)
        workspace = candidate.workspace if candidate.engine == "jit" else None
        yield Rated(name, candidate.cycles, candidate.packing, workspace, reason)


def _few_tiles(listed: Iterable[Candidate]) -> Iterator[Candidate]:
    tiles = 0
    for candidate in listed:
        tiles += candidate.winograd
        if not candidate.winograd or tiles <= _TILES:
            yield candidate


def _reason(candidate: Candidate, lowest_cost: float, *, once: bool) -> str:
    """Why a possible candidate is not taken."""
    if candidate.eligible is Eligible.ON_REQUEST:
        return f"only on request: {candidate.reason}"
    if candidate.eligible is Eligible.ONCE and not once:
        return f"only for one call: {candidate.reason}"
    times = candidate.cost(once=once) / lowest_cost if lowest_cost else 1.0
    margin = f", with a margin of {candidate.margin:g} for its model" * (candidate.margin > 1)
    more = f": {candidate.reason}" if candidate.reason else ""
    return f"{times:.3g} times the cost{margin}{more}"


def table_of(listed: tuple[Rated, ...]) -> list[str]:
    """Return the table's lines, at most 80 columns wide; long reasons follow on separate lines."""
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
