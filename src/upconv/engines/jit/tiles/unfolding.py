"""Unfolding, as plain data: a correlation of few input channels as a pointwise one of many.

A product takes 32 inputs. With 3 channels most of them would be zeros, tap after tap. An unfolded
position has the inputs of all its taps, channel by channel, as the weight has them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from ....geometry import Phase, Tap
from ....problem import DataLayout
from ..correlation import Correlation, Line
from .operations import PAIRS


def taps_of(correlation: Correlation) -> int:
    """The taps of the weight, where unfolding is possible; 0 where not.

    Taps must be innermost in the weight, and next the input channels; results have one phase, and a
    window fits a vector.
    """
    _, by_reduced, by_made, *by_tap = correlation.weight_strides
    channels = correlation.reduced // correlation.groups
    one_phase = all(len(line.phases) == 1 == line.stride for line in correlation.lines)
    taps = min(by_reduced, by_made)
    inside = channels == 1 or by_reduced == taps
    falling = [taps, *by_tap]
    in_order = by_tap[-1] == 1 and all(a % b == 0 for a, b in pairwise(falling))
    fits = correlation.layout is DataLayout.NCX
    if not fits:  # then a window has all channels side by side, of one group
        longest = max(map(len, runs_of(correlation.lines[-1])), default=1)
        fits = correlation.groups == 1 and channels * longest <= PAIRS
    return taps if one_phase and inside and in_order and fits else 0


def unfolded(correlation: Correlation) -> Correlation:
    """The pointwise correlation of a position's inputs of all taps."""
    by_group, _, by_made, *_ = correlation.weight_strides
    lines = tuple(
        Line(line.out, 1, line.out, 1, (Phase(0, line.out, (Tap(0, 0),)),), 0, 0)
        for line in correlation.lines
    )
    strides = (by_group, 1, by_made, *[1] * len(lines))
    reduced = correlation.reduced * taps_of(correlation)
    return replace(correlation, lines=lines, reduced=reduced, weight_strides=strides)


def runs_of(line: Line) -> list[list[Tap]]:
    """Taps of an axis that read neighbouring inputs one after the other, at most 32."""
    runs: list[list[Tap]] = []
    for tap in sorted(line.phases[0].taps):
        before = runs[-1][-1] if runs else None
        beside = before and before.index + 1 == tap.index and before.shift - 1 == tap.shift
        if beside and len(runs[-1]) < PAIRS:
            runs[-1].append(tap)
        else:
            runs.append([tap])
    return runs
