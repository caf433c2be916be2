"""The im2col kernel's candidate."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ....problem import DType
from ....threads import useful_threads
from ...base import Candidate, Eligible
from ..correlation import Correlation
from ..cpu import Cpu
from ..direct import refused
from ..values import BYTES
from .code import Tile

IM2COL = "im2col"
_MAX_READS = 1 << 18  # inputs of an image's positions, each in a table
_L1_PANEL = 1 / 2  # part of the first-level cache for a panel's chunk
_L2_ROWS = 1 / 8  # part of the second-level cache for a chunk of a job's rows
_ROWS = 6
"""Rows of a tile. Their distance is often a power of two, so that they share a set in the
first-level cache, which may have as few as 8 lines."""


class Plan(NamedTuple):
    """The schedule. A job multiplies `tiles` tiles of rows by each position's `chunk` inputs, which
    stay in the first-level cache, then by the next inputs."""

    tile: Tile
    chunk: int
    tiles: int
    threads: int

    def __str__(self) -> str:
        tile = self.tile
        return (
            f"im2col: tile of {tile.rows} channels x {tile.vectors} vectors of {tile.lanes},"
            f" weights in place, jobs of {self.tiles} tiles x {self.chunk} inputs,"
            f" {self.threads} threads"
        )


def candidates(correlation: Correlation, threads: int, cpu: Cpu) -> tuple[Candidate, ...]:
    """Return the only candidate, which does not pack the weight."""
    reason = refusal(correlation)
    if reason is not None:
        return (refused(IM2COL, reason),)
    cycles = predicted_cycles(correlation, plan_of(correlation, threads, cpu), cpu)
    workspace = correlation.groups * positions_of(correlation) * depth_of(correlation)
    workspace *= correlation.dtype.itemsize
    reason = "it reads the weight in place, which is slower if the weight is used again"
    return (
        Candidate(
            "jit", IM2COL, cycles, workspace=workspace, sums=IM2COL, eligible=Eligible.ONCE,
            reason=reason,
        ),
    )  # fmt: skip


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
    if correlation.made // correlation.groups < _ROWS:
        return f"it needs at least {_ROWS} result channels per group"
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


def plan_of(correlation: Correlation, threads: int, cpu: Cpu) -> Plan:
    """Return the schedule."""
    channels, positions = correlation.made // correlation.groups, positions_of(correlation)
    threads = useful_threads(correlation.multiply_adds, threads)
    item = BYTES[correlation.element]
    vectors = min(cpu.sums(2) // _ROWS, -(-positions // cpu.lanes(item)))
    tile = Tile(correlation.element, cpu.lanes(item), _ROWS, vectors)
    chunk = max(1, int(cpu.l1 * _L1_PANEL) // (tile.width * item))
    count = -(-channels // tile.rows)
    most = max(1, int(cpu.l2 * _L2_ROWS) // (chunk * item * tile.rows))
    return Plan(tile, chunk, max(1, min(most, count // (2 * threads))), threads)


def _tile_cycles(tile: Tile, channels: int, positions: int, cpu: Cpu) -> float:
    """Return the cycles per number in each row of a group."""
    costs, panels = cpu.costs, divmod(-(-positions // tile.lanes), tile.vectors)

    def cycles(vectors: int) -> float:
        adds, loads = tile.rows * vectors / costs.adds, (tile.rows + vectors) / costs.loads
        return max(adds, loads, costs.latency) + costs.step

    last = cycles(panels[1]) if panels[1] else 0.0
    return -(-channels // tile.rows) * (panels[0] * cycles(tile.vectors) + last)


def predicted_cycles(correlation: Correlation, plan: Plan, cpu: Cpu) -> float:
    """Return the cycles per thread."""
    costs, depth, tile = cpu.costs.im2col, depth_of(correlation), plan.tile
    channels, positions = correlation.made // correlation.groups, positions_of(correlation)
    panels = -(-positions // tile.width)
    tiles = -(-channels // tile.rows) * panels * -(-depth // plan.chunk)
    group = (
        _tile_cycles(tile, channels, positions, cpu) * depth
        + costs.tile * tiles
        + costs.gather * panels * tile.width * depth
        + costs.result * positions * channels + costs.weight * channels * depth
    )  # fmt: skip
    return correlation.groups * group / plan.threads
