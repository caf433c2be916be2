"""The channels kernel's lanes, and the last axis's phase groups.

They do not depend on sizes, except that taps that read no input are left out. Nothing here touches
an array or emits code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from ....geometry import Tap
from ....problem import DType
from ..correlation import Correlation, WeightForm
from ..cpu import Cpu
from ..processor_costs import Costs
from ..values import BYTES

_MANY_TAPS, _MAX_TAPS = 1 << 6, 1 << 14


@dataclass(frozen=True, slots=True, eq=False)  # one object per class: hashing taps is slow
class Lanes:
    """The key for choosing phase groups: the last axis's taps by phase, the lanes, the processor.

    Lanes run over `channels` outputs: a group's or, if *depthwise*, those of all groups, each with
    `multiplier` outputs. `ungrouped` means one group, so that neighbouring positions are adjacent.
    `reduction` is the number of input channels in a group. `sums[n]` is the number of registers for
    sums in tiles of n vectors, for each n that this allows. `dots` is as in `Cpu`, or 0 if products
    are computed in float32.
    """

    step: int
    stride: int
    taps: tuple[tuple[Tap, ...], ...]
    channels: int
    width: int
    sums: tuple[int, ...]
    costs: Costs
    depthwise: bool
    multiplier: int
    ungrouped: bool
    reduction: int
    dots: float


_SHUFFLED = 16  # bytes within which processors shuffle without a register of indices


def spans_groups(weight: WeightForm, cpu: Cpu) -> bool:
    """Whether lanes run over the channels of all groups, of which several fill a vector. Groups of
    several input channels have as many output channels, in at most `_SHUFFLED` bytes."""
    reduction, channels = weight.reduced // weight.groups, weight.made // weight.groups
    size = BYTES[weight.element]
    if weight.groups == 1 or cpu.lanes(size) % channels or cpu.lanes(size) == channels:
        return False
    return reduction == 1 or (reduction == channels and channels * size <= _SHUFFLED)


def can_dot(correlation: Correlation, cpu: Cpu) -> bool:
    """Whether the processor has dot products, and each bfloat16 group has pairs of channels."""
    bfloat16 = correlation.rounded or correlation.dtype is DType.BFLOAT16
    return cpu.dots > 0 and bfloat16 and correlation.reduced >= 2 * correlation.groups


def lanes_of(correlation: Correlation, cpu: Cpu, dots: bool | None = None) -> Lanes:
    """Return the lanes with or without dot products; None chooses the faster one on `cpu`."""
    dots = can_dot(correlation, cpu) and (cpu.dots > 1 if dots is None else dots)
    last = correlation.lines[-1]
    taps = tuple(phase.taps for phase in last.phases)
    return _lanes(correlation.weight, last.step, last.stride, taps, cpu, dots)


@lru_cache(maxsize=256)
def _lanes(
    weight: WeightForm,
    step: int,
    stride: int,
    taps: tuple[tuple[Tap, ...], ...],
    cpu: Cpu,
    dots: bool,
) -> Lanes:
    reduction, multiplier = weight.reduced // weight.groups, weight.made // weight.groups
    width = cpu.lanes(BYTES[weight.element])
    depthwise = not dots and spans_groups(weight, cpu)
    # A depthwise tile holds a vector of weights for each input channel, and one of inputs.
    held = reduction + 1 if depthwise and reduction > 1 else 0
    sums = [cpu.sums(max(n, held)) for n in range(9)]
    return Lanes(
        step, stride, taps,
        weight.made if depthwise else multiplier, width,
        tuple(count for n, count in enumerate(sums) if count >= n), cpu.costs,
        depthwise, multiplier if depthwise else 1,
        weight.groups == 1, reduction, cpu.dots if dots else 0.0,
    )  # fmt: skip


# Phase groups -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class PhaseGroup:
    """The last axis's phases [start, stop), for `unroll` positions together. `taps` maps each
    phase's shifts to kernel indices."""

    start: int
    stop: int
    unroll: int
    taps: tuple[dict[int, int], ...]

    @classmethod
    def of(cls, lanes: Lanes, start: int, stop: int, unroll: int = 1) -> PhaseGroup:
        """Return the group of phases [start, stop) of `unroll` positions."""
        taps = []
        for number in range(start, stop):
            position, phase = divmod(number, lanes.stride)
            of_phase = lanes.taps[phase] if phase < len(lanes.taps) else ()
            taps.append({tap.shift - lanes.step * position: tap.index for tap in of_phase})
        return cls(start, stop, unroll, tuple(taps))

    @property
    def shifts(self) -> tuple[int, ...]:
        """The shifts of all phases, in descending order."""
        return tuple(sorted(set().union(*self.taps), reverse=True))


@lru_cache(maxsize=256)
def phase_groupings(lanes: Lanes) -> tuple[tuple[PhaseGroup, ...], ...]:
    """Return cuts of the last axis: phases with equal shifts, single phases, all of n positions."""
    return tuple(_cuts(lanes))


def _cuts(lanes: Lanes) -> Iterator[tuple[PhaseGroup, ...]]:
    count = len(lanes.taps)
    single = tuple(PhaseGroup.of(lanes, r, r + 1) for r in range(count))
    if lanes.depthwise or not lanes.ungrouped:
        yield single
        return
    shifts = [tuple(tap.shift for tap in taps) for taps in lanes.taps]
    bounds = [r for r in range(count) if r == 0 or shifts[r] != shifts[r - 1]] + [count]
    yield tuple(PhaseGroup.of(lanes, a, b) for a, b in pairwise(bounds))
    yield single
    if count < lanes.stride:
        return
    # Creating phase groups with many taps is slow.
    taps = sum(map(len, lanes.taps))
    for unroll in range(1, 17) if taps <= _MANY_TAPS else (1, 2, 4, 8, 16):
        few = unroll == 1 or unroll * taps <= _MAX_TAPS
        if few and unroll * lanes.stride * lanes.channels <= 8 * lanes.width:
            yield (PhaseGroup.of(lanes, 0, unroll * lanes.stride, unroll),)
