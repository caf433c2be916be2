"""Merging, as plain data: products that take neighbouring taps, where 32 does not divide channels.

A product takes 32 inputs. Of a tap with 16 channels, half of them would be zeros. Where positions
lie side by side without gaps, the inputs of neighbouring taps are one *run* in memory, which
products take 32 at a time, whatever tap they belong to; all take fewer where a run is shorter. The
last product of a run begins earlier, so as to end with the run. The weights of inputs that are in
two products are cut in halves: every input that is read meets a weight of its own. With zeros
instead, an infinite neighbour would make NaN of a result that does not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from .... import memory
from ....geometry import Phase, Tap
from ....problem import DataLayout
from ...base import Array
from ...copies import contiguous
from ..channels.schedule import Cut
from ..channels.weights import ChannelPacking
from ..correlation import Correlation, WeightForm
from ..cpu import Cpu
from ..kernel_arguments import Block
from .operations import PAIRS

_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class Merging:
    """Runs of taps: numbers of a position in memory, inputs of a product, the taps of each phase of
    the last axis by index and in the order of positions, and how many taps the other axes have.
    `dense`: positions that are packed side by side lie side by side in the operand, too, which may
    have fewer numbers: `spread` are those of a position there and here, where they differ."""

    lanes: int
    width: int
    runs: tuple[tuple[int, ...], ...]
    outer: tuple[int, ...]
    dense: bool
    spread: tuple[int, int] | None

    @classmethod
    def of(cls, correlation: Correlation) -> Merging | None:
        """The merging of a correlation; None where it saves nothing, or taps lie apart."""
        first = correlation.layout is DataLayout.NCX
        channels = correlation.reduced // correlation.groups
        *outer, last = correlation.lines
        phases = [_in_order(phase) for phase in last.every if phase.taps]
        apart = any(a.shift - 1 != b.shift for taps in phases for a, b in pairwise(taps))
        # Where channels come first, packing parts of a position takes what is saved.
        if channels % PAIRS == 0 or apart or not phases or (first and channels > PAIRS):
            return None
        lanes, least = channels, min(map(len, phases))
        lanes += int(lanes * least < PAIRS and lanes * least % 2)
        # Widths are even, as pairs are multiplied: few products, then few inputs in two of them.
        widths = range(2, min(PAIRS, lanes * least) + 1, 2)
        lengths = [lanes * len(taps) for taps in phases]
        width = min(
            widths, key=lambda w: (sum(-(-n // w) for n in lengths), sum(-n % w for n in lengths))
        )
        runs = tuple(tuple(tap.index for tap in taps) for taps in phases)
        counts = tuple(
            1 + max((tap.index for phase in line.every for tap in phase.taps), default=0)
            for line in outer
        )
        dense = first or correlation.groups == 1
        spread = (channels, lanes) if dense and lanes > channels else None
        return cls(lanes, width, runs, counts, dense, spread)

    @property
    def has_one_channel(self) -> bool:
        """Whether an operand of any layout has its positions side by side."""
        return self.dense and (self.spread or (self.lanes,))[0] == 1

    def _count(self, taps: int) -> int:
        """Products of a run."""
        return -(-taps * self.lanes // self.width)

    def _starts(self, taps: int) -> list[int]:
        """The first numbers of the products of a run."""
        last = taps * self.lanes - self.width
        return [min(number * self.width, last) for number in range(self._count(taps))]

    def operand(self, correlation: Correlation) -> Correlation:
        """The correlation with all taps along the last axis, so that runs are whole."""
        *outer, last = correlation.lines
        return replace(correlation, lines=(*outer, last.with_every_tap))

    def merged(self, correlation: Correlation) -> Correlation:
        """The correlation with products as taps, whose shifts count numbers instead of positions:
        for its phases and its weight."""
        *outer, last = self.operand(correlation).lines
        form, first, phases = self.form(correlation.weight), 0, []
        for phase in last.phases:
            taps = _in_order(phase)
            starts = self._starts(len(taps)) if taps else []
            numbered = enumerate(starts if phase.length else (), first)
            merged = tuple(Tap(i, taps[0].shift * self.lanes - start) for i, start in numbered)
            phases.append(phase._replace(taps=merged))
            first += len(starts)
        lines = *outer, last._replace(phases=tuple(phases))
        return replace(correlation, lines=lines, reduced=form.reduced, weight_strides=form.strides)

    def form(self, weight: WeightForm) -> WeightForm:
        """The form of the merged weight: [group][result][outer taps][product][32 inputs]."""
        sizes = *self.outer, sum(self._count(len(run)) for run in self.runs), PAIRS
        steps = [prod(sizes[i + 1 :]) for i in range(len(sizes) - 1)]
        made = prod(sizes)
        strides = made * (weight.made // weight.groups), 1, made, *steps
        return weight._replace(reduced=weight.groups * PAIRS, strides=strides)

    def weight(self, form: WeightForm, weight: Array) -> Array:
        """The merged weight of a contiguous one."""
        channels, counts = form.reduced // form.groups, [self._count(len(r)) for r in self.runs]
        by_group, by_reduced, by_made, *outer, by_tap = (s * weight.itemsize for s in form.strides)
        shape = form.groups, form.made // form.groups, *self.outer
        taps = 1 + max(map(max, self.runs))
        bits = weight.view(f"u{weight.itemsize}")  # numbers of bfloat16 take NumPy longer to copy
        strides = by_group, by_made, *outer, by_tap, by_reduced
        source = np.ndarray((*shape, taps, channels), bits.dtype, bits, 0, strides)
        merged_shape = *shape, sum(counts), PAIRS
        memory.require(prod(merged_shape) * weight.itemsize, "the merged weight")
        (run, *others), numbers = self.runs, taps * channels
        if not others and run[0] == 0 and counts[0] * PAIRS == len(run) * channels == numbers:
            return np.ascontiguousarray(source).reshape(merged_shape).view(weight.dtype)
        merged, first = np.zeros(merged_shape, bits.dtype), 0
        for run, count in zip(self.runs, counts, strict=True):
            step = run[1] - run[0] if len(run) > 1 else 1
            used = source[..., run[0] :: step, :][..., : len(run), :]
            self._merge(used, merged[..., first : first + count, : self.width], weight.dtype)
            first += count
        return merged.view(weight.dtype)

    def _merge(self, taps: Array, products: Array, dtype: np.dtype[Any]) -> None:
        """Write the products of a run. Numbers are integers of the same bits."""
        *shape, count, channels = taps.shape
        if self.lanes > channels:
            lanes = np.zeros((*shape, count, self.lanes), taps.dtype)
            lanes[..., :channels] = taps
            taps = lanes
        numbers, width = taps.reshape(*shape, count * self.lanes), self.width
        whole, twice = numbers.shape[-1] // width, -numbers.shape[-1] % width
        products[..., :whole, :] = numbers[..., : whole * width].reshape(*shape, whole, width)
        if twice:
            first, second = _halves(numbers[..., -width:].view(dtype)[..., :twice])
            products[..., -2, width - twice :] = first.view(numbers.dtype)
            products[..., -1, :twice] = second.view(numbers.dtype)
            products[..., -1, twice:] = numbers[..., twice - width :]


def _halves(weights: Array) -> tuple[Array, Array]:
    """Two addends of weights; one is zero where halves would be subnormal, which products take as
    zero."""
    whole, none = abs(weights) < 2 * _TINY, weights.dtype.type(0)
    half = (weights / 2).astype(weights.dtype)
    return np.where(whole, weights, half), np.where(whole, none, half)


def _in_order(phase: Phase) -> list[Tap]:
    """The taps of a phase in the order of the positions that they read."""
    return sorted(phase.taps, key=lambda tap: -tap.shift)


class MergedPacking(ChannelPacking):
    """Packs a weight of which products take neighbouring taps."""

    def __init__(self, merging: Merging, weight: WeightForm, cut: Cut, cpu: Cpu) -> None:
        super().__init__(merging.form(weight), cut, cpu, PAIRS)
        self._merging, self._form = merging, weight

    def begin(self, weight: Array, nbytes: int = 0) -> tuple[Array, Block, Array]:
        """`Packer.begin`, of the merged weight."""
        return super().begin(self._merging.weight(self._form, contiguous(weight)), nbytes)
