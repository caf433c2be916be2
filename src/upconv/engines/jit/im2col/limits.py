"""The im2col kernel's limits, and what they depend on."""

from __future__ import annotations

from math import prod

from ....problem import DType
from ..correlation import Correlation

_MAX_READS = 1 << 18  # inputs of an image's positions, each in a table
ROWS = 6
"""Rows of a tile. Their distance is often a power of two, so that they share a set in the
first-level cache, which may have as few as 8 lines."""


def refusal(correlation: Correlation) -> str | None:
    """Return why the im2col kernel refuses a correlation, or None."""
    if correlation.dtype not in (DType.FLOAT32, DType.FLOAT64) or correlation.rounded:
        return "it reads float32 or float64 weights in place"
    if not correlation.epilogue.empty or correlation.accumulate:
        return "it applies no epilogue"
    if any(line.stride > 1 or not line.phases[0].taps for line in correlation.lines):
        return "it needs result stride 1, and results that some input reaches"
    if not _has_rows(correlation):
        return "the weights of a result channel are not adjacent"
    if positions_of(correlation) > correlation.made // correlation.groups:
        return "the copied inputs of all positions would be larger than the weight"
    if correlation.made // correlation.groups < ROWS:
        return f"it needs at least {ROWS} result channels per group"
    reads = prod(correlation.result_size) * prod(taps_of(correlation))
    if reads > _MAX_READS:
        return f"it handles at most {_MAX_READS} reads per image, not {reads}"
    return None


def _has_rows(correlation: Correlation) -> bool:
    """Whether a result's weights are adjacent, by input channel and then by tap."""
    by_group, by_reduced, by_made, *by_tap = correlation.weight_strides
    if correlation.groups > 1 and by_group != by_made * (correlation.made // correlation.groups):
        return False
    step = 1
    for taps, stride in zip(reversed(taps_of(correlation)), reversed(by_tap), strict=True):
        if taps > 1 and stride != step:
            return False
        step *= taps
    channels = correlation.reduced // correlation.groups
    return (channels == 1 or by_reduced == step) and by_made == step * channels


def taps_of(correlation: Correlation) -> tuple[int, ...]:
    """Return each axis's number of taps, including those that read no input."""
    return tuple(len(line.every[0].taps) for line in correlation.lines)


def depth_of(correlation: Correlation) -> int:
    """Return how many weights a result's row has."""
    return correlation.reduced // correlation.groups * prod(taps_of(correlation))


def positions_of(correlation: Correlation) -> int:
    """Return the number of positions in all images."""
    return correlation.batch * prod(correlation.result_size)
