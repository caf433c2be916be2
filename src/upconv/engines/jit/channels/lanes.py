"""The lanes of the channel-vectorised kernel, and the phase groups of the last axis.

Neither depends on a size. Nothing here touches an array or emits code.
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

_MANY_TAPS, _MOST_TAPS = 1 << 6, 1 << 14


@dataclass(frozen=True, slots=True, eq=False)  # one object per class: hashing taps takes long
class Lanes:
    """The class of a layer that phase groups are chosen for: taps of the last axis by phase, lanes,
    and the processor.

    `channels` are those that lanes run over: of a group, or *depthwise* of all groups, `multiplier`
    to an input channel. `ungrouped` says that no other group's channels lie between those of two
    positions. `reduction` is the input channels of a group; `sums` are registers for sums, by the
    vectors of a tile, as far as there is one for each; `dots` is the processor's, or 0 where
    products are made in float32.
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


def can_dot(correlation: Correlation, cpu: Cpu) -> bool:
    """Whether there are dot-product instructions for a correlation, and pairs to give them."""
    bfloat16 = correlation.rounded or correlation.dtype is DType.BFLOAT16
    return cpu.dots > 0 and bfloat16 and correlation.reduced >= 2 * correlation.groups


def lanes_of(correlation: Correlation, cpu: Cpu, dots: bool | None = None) -> Lanes:
    """The lanes of a correlation, with `dots`, without, or the faster of both on `cpu`."""
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
    # Lanes run over the channels of all groups.
    depthwise = reduction == 1 < weight.groups and width % multiplier == 0 and width > multiplier
    return Lanes(
        step, stride, taps,
        weight.made if depthwise else multiplier, width,
        tuple(cpu.sums(n) for n in range(9) if cpu.sums(n) >= n), cpu.costs,
        depthwise, multiplier if depthwise else 1,
        weight.groups == 1, reduction, cpu.dots if dots else 0.0,
    )  # fmt: skip


# Phase groups -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class PhaseGroup:
    """Phases [start, stop) of the last axis, `unroll` positions taken together; `taps` are the
    kernel indices of each phase by their shifts, those that reach no input included."""

    start: int
    stop: int
    unroll: int
    taps: tuple[dict[int, int], ...]

    @classmethod
    def of(cls, lanes: Lanes, start: int, stop: int, unroll: int = 1) -> PhaseGroup:
        """Some phases of unrolled positions."""
        taps = []
        for number in range(start, stop):
            position, phase = divmod(number, lanes.stride)
            listed = lanes.taps[phase] if phase < len(lanes.taps) else ()
            taps.append({tap.shift - lanes.step * position: tap.index for tap in listed})
        return cls(start, stop, unroll, tuple(taps))

    @property
    def shifts(self) -> tuple[int, ...]:
        """The shifts of all phases."""
        return tuple(sorted(set().union(*self.taps), reverse=True))


@lru_cache(maxsize=256)
def phase_groupings(lanes: Lanes) -> tuple[tuple[PhaseGroup, ...], ...]:
    """Cuts of the last axis: phases of equal shifts, single phases, all of n positions."""
    return tuple(_cuts(lanes))


def _cuts(lanes: Lanes) -> Iterator[tuple[PhaseGroup, ...]]:
    count = len(lanes.taps)
    alone = tuple(PhaseGroup.of(lanes, r, r + 1) for r in range(count))
    if lanes.depthwise or not lanes.ungrouped:
        yield alone
        return
    shifts = [tuple(tap.shift for tap in taps) for taps in lanes.taps]
    cuts = [r for r in range(count) if r == 0 or shifts[r] != shifts[r - 1]] + [count]
    yield tuple(PhaseGroup.of(lanes, a, b) for a, b in pairwise(cuts))
    yield alone
    if count < lanes.stride:
        return
    # Counting the taps of unrolled positions takes time where there are many.
    taps = sum(map(len, lanes.taps))
    for unroll in range(1, 17) if taps <= _MANY_TAPS else (1, 2, 4, 8, 16):
        few = unroll == 1 or unroll * taps <= _MOST_TAPS
        if few and unroll * lanes.stride * lanes.channels <= 8 * lanes.width:
            yield (PhaseGroup.of(lanes, 0, unroll * lanes.stride, unroll),)
