"""The forms of a correlation on tiles: whether the inputs of a product are channels of one tap, or
of neighbouring taps (merging.py).

Each form adds up in an order of its own. Which is taken depends on no size, so that the parts of a
result have the bits of the whole.
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
    """The schedule of a correlation that has outputs, in the form that takes less cycles."""
    merging = Merging.of(correlation)
    if merging and _saves(merging, _of_no_size(correlation), cpu):
        operand, inner = merging.operand(correlation), merging.merged(correlation)
        plan = scheduled(operand, inner, merging.lanes, threads, cpu)
        return replace(plan, merging=merging)
    lanes = inputs_of(correlation.weight) * PAIRS
    return scheduled(correlation, correlation, lanes, threads, cpu)


def _of_no_size(correlation: Correlation) -> Correlation:
    """The correlation with all taps, and with one position of each phase."""
    phases = (tuple(p._replace(length=1) for p in line.every) for line in correlation.lines)
    lines = (
        line._replace(size=1, out=1, every=every).with_every_tap
        for line, every in zip(correlation.lines, phases, strict=True)
    )
    return replace(correlation, batch=1, lines=tuple(lines))


@lru_cache(maxsize=256)  # networks meet new sizes, not new forms
def _saves(merging: Merging, correlation: Correlation, cpu: Cpu) -> bool:
    """Whether merging saves time, at any size."""
    lines, lanes = correlation.lines, inputs_of(correlation.weight) * PAIRS
    pack = ROWS * prod(line.step for line in lines) * cpu.costs.tiles.pack
    merged = _cycles(correlation, merging.merged(correlation), merging.lanes, cpu)
    in_place = reads_in_place(correlation, merging.lanes)
    if not (all(line.is_pointwise for line in lines) and in_place):
        merged += pack * merging.lanes
    return merged * _CLEARLY < pack * lanes + _cycles(correlation, correlation, lanes, cpu)


_CLEARLY = 1.1  # rows of merged taps cross lines of the cache


def _cycles(correlation: Correlation, inner: Correlation, lanes: int, cpu: Cpu) -> float:
    """Cycles of all products of a tile of positions; taps are those of `inner`."""
    steps = inner.taps * inputs_of(inner.weight)
    phases = prod(len(line.phases) for line in inner.lines)
    blocks = -(-inner.made // inner.groups // ROWS)
    return steps * min(
        step_cycles(correlation, shape, steps // phases, lanes, cpu)
        * -(-blocks // shape[1]) / shape[0]
        for shape in SHAPES
    )  # fmt: skip
