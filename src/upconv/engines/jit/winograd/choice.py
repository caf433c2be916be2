"""Whether Winograd's algorithm is worth it, and which tiles: by the models of both."""

from __future__ import annotations

from math import prod

from ....problem import DataLayout
from ..channels.primitive import prefers_channels
from ..channels.schedule import predicted_cycles
from ..channels.schedule import schedule as channel_schedule
from ..correlation import Correlation
from ..cpu import Cpu
from ..positions import schedule as positions_schedule
from ..positions.schedule import can_vectorise_positions
from .schedule import L3, Schedule, named_schedule, reduction_of, refused, schedules
from .transforms import named

_PREFIX = "winograd "
_MOST_VARIANTS = 6  # three axes have some sixty choices; the model knows which are hopeless
_MARGIN = 1.12  # what direct sums must be predicted to take, beside this
_FEWEST_PRODUCTS = 4_000_000  # with fewer, finding out takes longer than some runs
_DEFERRED_MARGIN, _FEWEST_DEFERRED = 1.25, 16  # where direct sums would be another engine's
_MOST_NUMBERS = 1 << 26  # of a transformed weight, which is up to eight times the weight
_PACK, _STREAMED = 0.55, 0.9  # cycles of a packed number, and more where it leaves the caches


def variants_of(
    correlation: Correlation, threads: int, cpu: Cpu, *, exact: bool
) -> tuple[str, ...]:
    """The names of all choices of tiles, the fastest first."""
    found = schedules(correlation, threads, cpu, exact=exact)
    return tuple(map(_name, found))[:_MOST_VARIANTS]


def is_winograd(variant: str) -> bool:
    """Whether a variant is one of these."""
    return variant.startswith(_PREFIX)


def by_name(correlation: Correlation, name: str, threads: int, cpu: Cpu) -> Schedule | None:
    """The schedule that a variant names, if it is one of these."""
    if not is_winograd(name):
        return None
    return named_schedule(correlation, name.removeprefix(_PREFIX), threads, cpu)


def _name(schedule: Schedule) -> str:
    return _PREFIX + named(schedule.transforms)


def ahead(correlation: Correlation, threads: int, cpu: Cpu, *, once: bool, deferred: bool) -> str:
    """The exact variant that beats direct sums, the packing of weights included if `once`.

    `deferred` says that another engine is likely to compute them faster than this one.
    """
    columns = correlation.made * prod(line.stride for line in correlation.lines)
    few = min(reduction_of(correlation), columns // correlation.groups) < (
        _FEWEST_DEFERRED if deferred else 2
    )
    if few or correlation.multiply_adds < _FEWEST_PRODUCTS or refused(correlation):
        return ""
    found = [
        (each.cycles + (_pack_cycles(correlation, each, threads, cpu) if once else 0.0), each)
        for each in schedules(correlation, threads, cpu, exact=True)
        if _numbers(correlation, each) <= _MOST_NUMBERS
    ]
    if not found:
        return ""
    cycles, best = min(found, key=lambda each: each[0])
    direct = direct_cycles(correlation, threads, cpu)
    direct += _pack_cycles(correlation, None, threads, cpu) if once else 0.0
    margin = _DEFERRED_MARGIN if deferred else _MARGIN
    return _name(best) if margin * cycles < direct else ""


def _numbers(correlation: Correlation, schedule: Schedule | None) -> int:
    """Those of a weight, transformed if there is a schedule."""
    each = schedule.saving[0] if schedule else correlation.taps
    return correlation.reduced * correlation.made // correlation.groups * each


def _pack_cycles(
    correlation: Correlation, schedule: Schedule | None, threads: int, cpu: Cpu
) -> float:
    """What packing a weight takes of each thread, in the unit of `Schedule.cycles`.

    On a Zen 4 (2026-11-23, one thread), 0.3 to 0.4 ns a number for up to 12 MB, 0.5 for 17, 0.8 for
    more than the third-level cache holds; half a cycle of 64-byte vectors is 0.28 ns."""
    numbers, itemsize = _numbers(correlation, schedule), correlation.dtype.itemsize
    streamed = min(1.0, (numbers * itemsize / L3) ** 2)
    # Channels that do not fill a vector are packed some at a time.
    filled = min(1.0, schedule.padded / cpu.lanes(itemsize)) if schedule else 1.0
    cycles = numbers * (_PACK / filled + _STREAMED * streamed)
    return cycles * 64 / cpu.vector_bytes / threads


def direct_cycles(correlation: Correlation, threads: int, cpu: Cpu) -> float:
    """What the faster one of the other kernels is predicted to take."""
    possible = can_vectorise_positions(correlation) and correlation.layout is DataLayout.NCX
    if possible and not prefers_channels(correlation, cpu):
        plan = positions_schedule.schedule(correlation, threads, cpu)
        return positions_schedule.predicted_cycles(correlation, plan)
    return predicted_cycles(correlation, channel_schedule(correlation, threads, cpu))


__all__ = ["ahead", "by_name", "direct_cycles", "is_winograd", "refused", "variants_of"]
