"""Phase groups: how the channel-vectorised kernel cuts the last axis, whatever its size; and which
of their taps reach an input of a line.

Nothing here touches an array or emits code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from ....geometry import Tap
from ..correlation import Line
from .lanes import Lanes

_MANY_TAPS, _MOST_TAPS = 1 << 6, 1 << 14


@dataclass(frozen=True, slots=True)
class PhaseGroup:
    """Phases [start, stop) of the last axis, `unroll` positions taken together."""

    start: int
    stop: int
    unroll: int


@lru_cache(maxsize=4096)
def taps_of(lanes: Lanes, phase_group: PhaseGroup) -> tuple[tuple[Tap, ...], ...]:
    """The taps of each phase of unrolled positions, those that reach no input included."""
    taps = []
    for phase in range(phase_group.start, phase_group.stop):
        position, own = divmod(phase, lanes.stride)
        taps.append(
            tuple(
                Tap(tap.index, tap.shift - lanes.step * position)
                for tap in (lanes.taps[own] if own < len(lanes.taps) else ())
            )
        )
    return tuple(taps)


@lru_cache(maxsize=4096)
def _all_shifts(
    lanes: Lanes, phase_group: PhaseGroup
) -> tuple[tuple[tuple[int, ...], ...], int, int]:
    """The shifts of these, the least and the greatest of all."""
    shifts = tuple(tuple(tap.shift for tap in taps) for taps in taps_of(lanes, phase_group))
    every = [shift for own in shifts for shift in own]
    return shifts, min(every, default=0), max(every, default=0)


def shifts_of(lanes: Lanes, phase_group: PhaseGroup, line: Line) -> tuple[tuple[int, ...], ...]:
    """For each phase of a phase group, the shifts of the taps that reach an input at some point."""
    shifts, low, high = _all_shifts(lanes, phase_group)
    last = lanes.step * phase_group.unroll * (points_along(line, phase_group) - 1)
    if -line.size < low and high <= last:
        return shifts
    return tuple(tuple(shift for shift in own if -line.size < shift <= last) for own in shifts)


def points_along(line: Line, phase_group: PhaseGroup) -> int:
    """Points of a phase group along the last axis."""
    return max(0, -(-(line.out - phase_group.start) // (line.stride * phase_group.unroll)))


@lru_cache(maxsize=256)
def phase_groupings(lanes: Lanes) -> tuple[tuple[PhaseGroup, ...], ...]:
    """Ways to cut the last axis: each phase alone, phases of equal shifts, all of n positions."""
    return tuple(_cuts(lanes))


def _cuts(lanes: Lanes) -> Iterator[tuple[PhaseGroup, ...]]:
    count = len(lanes.taps)
    if lanes.depthwise or not lanes.ungrouped:
        yield tuple(PhaseGroup(r, r + 1, 1) for r in range(count))
        return
    shifts = [tuple(tap.shift for tap in taps) for taps in lanes.taps]
    cuts = [r for r in range(count) if r == 0 or shifts[r] != shifts[r - 1]] + [count]
    yield tuple(PhaseGroup(a, b, 1) for a, b in pairwise(cuts))
    yield tuple(PhaseGroup(r, r + 1, 1) for r in range(count))
    if count < lanes.stride:
        return
    # Counting the taps of unrolled positions takes time where there are many.
    taps = sum(map(len, lanes.taps))
    for unroll in range(1, 17) if taps <= _MANY_TAPS else (1, 2, 4, 8, 16):
        few = unroll == 1 or unroll * taps <= _MOST_TAPS
        if few and unroll * lanes.stride * lanes.channels <= 8 * lanes.width:
            yield (PhaseGroup(0, unroll * lanes.stride, unroll),)
