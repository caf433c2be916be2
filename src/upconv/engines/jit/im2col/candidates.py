"""The im2col kernel's candidate."""

from __future__ import annotations

from typing import NamedTuple

from ....threads import useful_threads
from ...base import Candidate, Eligible
from ..correlation import Correlation
from ..cpu import Cpu
from ..direct import refused
from ..values import BYTES
from .code import Tile
from .limits import ROWS, depth_of, positions_of, refusal

IM2COL = "im2col"
_L1_PANEL = 1 / 2  # part of the first-level cache for a panel's chunk
_L2_ROWS = 1 / 8  # part of the second-level cache for a chunk of a job's rows


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


def plan_of(correlation: Correlation, threads: int, cpu: Cpu) -> Plan:
    """Return the schedule."""
    channels, positions = correlation.made // correlation.groups, positions_of(correlation)
    threads = useful_threads(correlation.multiply_adds, threads)
    item = BYTES[correlation.element]
    vectors = min(cpu.sums(2) // ROWS, -(-positions // cpu.lanes(item)))
    tile = Tile(correlation.element, cpu.lanes(item), ROWS, vectors)
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
