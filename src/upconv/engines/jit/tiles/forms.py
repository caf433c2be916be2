"""A correlation's forms on tiles: a product's inputs are channels of one tap, or of neighbouring
taps (merging.py).

The forms add in different orders. The choice does not depend on sizes, so that chunks of a result
have the same bits as the whole.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod

from ..correlation import Correlation
from ..cpu import Cpu
from .merging import Merging
from .operations import PAIRS, ROWS
from .schedule import SHAPES, Schedule, inputs_of, reads_in_place, scheduled, step_cycles


def schedule(correlation: Correlation, threads: int, cpu: Cpu) -> Schedule:
    """Return the schedule of a correlation that has outputs, in the faster form."""
    merging = Merging.of(correlation)
    if merging and _saves(merging, _without_size(correlation), cpu):
        operand, inner = merging.operand(correlation), merging.merged(correlation)
        plan = scheduled(operand, inner, merging.lanes, threads, cpu)
        return replace(plan, merging=merging)
    lanes = inputs_of(correlation.weight) * PAIRS
    return scheduled(correlation, correlation, lanes, threads, cpu)


def _without_size(correlation: Correlation) -> Correlation:
    """Return the correlation with all taps, and with one position per phase."""
    phases = (tuple(p._replace(length=1) for p in line.every) for line in correlation.lines)
    lines = (
        line._replace(size=1, out=1, every=every).with_every_tap
        for line, every in zip(correlation.lines, phases, strict=True)
    )
    return replace(correlation, batch=1, lines=tuple(lines))


@lru_cache(maxsize=256)  # new sizes share an entry
def _saves(merging: Merging, correlation: Correlation, cpu: Cpu) -> bool:
    """Whether merging taps is faster, regardless of sizes."""
    lines, lanes = correlation.lines, inputs_of(correlation.weight) * PAIRS
    pack = ROWS * prod(line.step for line in lines) * cpu.costs.tiles.pack
    merged = _cycles(correlation, merging.merged(correlation), merging.lanes, cpu)
    in_place = reads_in_place(correlation, merging.lanes)
    if not (all(line.is_pointwise for line in lines) and in_place):
        merged += pack * merging.lanes
    return merged * _MARGIN < pack * lanes + _cycles(correlation, correlation, lanes, cpu)


_MARGIN = 1.1  # for loads of merged taps, whose rows cross cache lines


def _cycles(correlation: Correlation, inner: Correlation, lanes: int, cpu: Cpu) -> float:
    """Return the cycles of all products for a tile of positions, with the taps of `inner`."""
    steps = inner.taps * inputs_of(inner.weight)
    phases = prod(len(line.phases) for line in inner.lines)
    blocks = -(-inner.made // inner.groups // ROWS)
    return steps * min(
        step_cycles(correlation, shape, steps // phases, lanes, cpu)
        * -(-blocks // shape[1]) / shape[0]
        for shape in SHAPES
    )  # fmt: skip
