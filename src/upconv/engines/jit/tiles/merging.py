"""Merged taps as plain data: products that take neighbouring taps' inputs.

A product takes up to 32 inputs. With 16 channels, half of each tap's inputs would be zeros. If
positions have no gaps between them, neighbouring taps' inputs are one *run* in memory. Products
take a fixed width of it at a time, regardless of which taps the inputs belong to. The last product
begins early enough to end with the run: an infinite input after the run, times a zero weight, would
turn a result that does not depend on it into NaN. Inputs in two products have half their weight in
each, because a zero weight in one would turn an infinite result into NaN.
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
    """Runs of taps: a packed position has `lanes` numbers, and a product has `width` inputs. `runs`
    are the kernel indices of each phase of the last axis, in the order of positions, and `outer`
    counts the taps of the other axes. If `dense`, positions are adjacent in the operand, as they
    are in the packed data. `spread` is how many numbers a position has in each, if they differ."""

    lanes: int
    width: int
    runs: tuple[tuple[int, ...], ...]
    outer: tuple[int, ...]
    dense: bool
    spread: tuple[int, int] | None

    @classmethod
    def of(cls, correlation: Correlation) -> Merging | None:
        """Return a correlation's merging, or None if it saves nothing or taps are dilated."""
        channels_first = correlation.layout is DataLayout.NCX
        channels = correlation.reduced // correlation.groups
        *outer, last = correlation.lines
        phases = [_in_order(phase) for phase in last.every if phase.taps]
        dilated = any(a.shift - 1 != b.shift for taps in phases for a, b in pairwise(taps))
        # With channels first, packing parts of positions takes as much time as merging saves.
        too_many = channels % PAIRS == 0 or (channels_first and channels > PAIRS)
        if too_many or dilated or not phases:
            return None
        lanes, least = channels, min(map(len, phases))
        lanes += int(lanes * least < PAIRS and lanes * least % 2)
        # Products multiply pairs. Prefer few products, then few inputs in two of them.
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
        dense = channels_first or correlation.groups == 1
        spread = (channels, lanes) if dense and lanes > channels else None
        return cls(lanes, width, runs, counts, dense, spread)

    @property
    def has_one_channel(self) -> bool:
        """Whether a position has one channel, so that positions are adjacent in both layouts."""
        return self.dense and (self.spread or (self.lanes,))[0] == 1

    def _count(self, taps: int) -> int:
        """Return the number of products for a run of `taps` taps."""
        return -(-taps * self.lanes // self.width)

    def _starts(self, taps: int) -> list[int]:
        """Return each product's offset in a run."""
        last = taps * self.lanes - self.width
        return [min(number * self.width, last) for number in range(self._count(taps))]

    def operand(self, correlation: Correlation) -> Correlation:
        """Return the correlation with all taps along the last axis, so that runs are complete."""
        *outer, last = correlation.lines
        return replace(correlation, lines=(*outer, last.with_every_tap))

    def merged(self, correlation: Correlation) -> Correlation:
        """Return a correlation used for its phases and weight: its taps are products, whose shifts
        count numbers instead of positions."""
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
        """Return the merged weight's form: [group][result][outer taps][product][32 inputs]."""
        sizes = *self.outer, sum(self._count(len(run)) for run in self.runs), PAIRS
        steps = [prod(sizes[i + 1 :]) for i in range(len(sizes) - 1)]
        by_made = prod(sizes)
        strides = by_made * (weight.made // weight.groups), 1, by_made, *steps
        return weight._replace(reduced=weight.groups * PAIRS, strides=strides)

    def weight(self, form: WeightForm, weight: Array) -> Array:
        """Return the merged weight for a contiguous weight."""
        channels, counts = form.reduced // form.groups, [self._count(len(r)) for r in self.runs]
        by_group, by_reduced, by_made, *outer, by_tap = (s * weight.itemsize for s in form.strides)
        shape = form.groups, form.made // form.groups, *self.outer
        taps = 1 + max(map(max, self.runs))
        bits = weight.view(f"u{weight.itemsize}")  # NumPy copies bfloat16 numbers slowly
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
        """Write the weights for a run's products. Numbers are integers with the weights' bits."""
        *shape, count, channels = taps.shape
        if self.lanes > channels:
            padded = np.zeros((*shape, count, self.lanes), taps.dtype)
            padded[..., :channels] = taps
            taps = padded
        numbers, width = taps.reshape(*shape, count * self.lanes), self.width
        full, repeated = numbers.shape[-1] // width, -numbers.shape[-1] % width
        products[..., :full, :] = numbers[..., : full * width].reshape(*shape, full, width)
        if repeated:
            first, second = _halves(numbers[..., -width:].view(dtype)[..., :repeated])
            products[..., -2, width - repeated :] = first.view(numbers.dtype)
            products[..., -1, :repeated] = second.view(numbers.dtype)
            products[..., -1, repeated:] = numbers[..., repeated - width :]


def _halves(weights: Array) -> tuple[Array, Array]:
    """Split weights into two addends: halves, or the weight and zero if halves would be subnormal,
    because products treat subnormal numbers as zero."""
    tiny, zero = abs(weights) < 2 * _TINY, weights.dtype.type(0)
    half = (weights / 2).astype(weights.dtype)
    return np.where(tiny, weights, half), np.where(tiny, zero, half)


def _in_order(phase: Phase) -> list[Tap]:
    """Return a phase's taps in the order of the positions that they read."""
    return sorted(phase.taps, key=lambda tap: -tap.shift)


class MergedPacking(ChannelPacking):
    """A packer of weights with merged taps."""

    def __init__(self, merging: Merging, weight: WeightForm, cut: Cut, cpu: Cpu) -> None:
        super().__init__(merging.form(weight), cut, cpu, PAIRS)
        self._merging, self._form = merging, weight

    def begin(self, weight: Array, nbytes: int = 0) -> tuple[Array, Block, Array]:
        """Begin as `Packer.begin` does, with the merged weight."""
        return super().begin(self._merging.weight(self._form, contiguous(weight)), nbytes)
