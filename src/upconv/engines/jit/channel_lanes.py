"""Lanes: what the vectors of the channels kernel run along, and what each of them adds up."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from ...geometry import Phase
from ...problem import DType
from .correlation import Correlation
from .costs import Costs, costs_of
from .cpu import Cpu
from .values import BYTES, DOUBLE, FLOAT


@dataclass(frozen=True, slots=True)
class Lanes:
    """What the choice of bundles depends on: the last axis's phases, lanes, and the processor.

    `alone` says that no other group's channels lie between those of two positions. `depth` is the
    input channels of a group; `sums` are registers for sums, by the vectors of a tile, as far as
    there is one for each; `dots` is the processor's, or 0 where they are multiplied as float32.
    """

    size: int
    step: int
    stride: int
    out: int
    phases: tuple[Phase, ...]
    channels: int
    width: int
    sums: tuple[int, ...]
    costs: Costs
    own: bool
    alone: bool
    depth: int
    dots: float
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        # What is cached by it is asked for often, and hashing hundreds of phases takes long.
        object.__setattr__(self, "_hash", hash((self.size, self.out, self.phases, self.channels)))

    def __hash__(self) -> int:
        return self._hash


def element_of(correlation: Correlation) -> str:
    """The type of computing."""
    return DOUBLE if correlation.dtype is DType.FLOAT64 else FLOAT


def is_own(correlation: Correlation, cpu: Cpu) -> bool:
    """Whether lanes run over the channels of all groups, each with weights of its own."""
    own_in = correlation.reduced // correlation.groups
    spread = correlation.made // correlation.groups
    width = cpu.lanes(BYTES[element_of(correlation)])
    return own_in == 1 and correlation.groups > 1 and width % spread == 0 and width > spread


def can_dot(correlation: Correlation, cpu: Cpu) -> bool:
    """Whether there are dot-product instructions for a correlation, and pairs to give them."""
    paired = correlation.dtype is DType.BFLOAT16 and correlation.reduced >= 2 * correlation.groups
    return cpu.dots > 0 and paired


@lru_cache(maxsize=64)
def lanes_of(correlation: Correlation, cpu: Cpu, dots: bool | None = None) -> Lanes:
    """What a correlation's lanes are made of: with `dots` or without, or as is faster on `cpu`."""
    dots = can_dot(correlation, cpu) and (cpu.dots > 1 if dots is None else dots)
    last, own = correlation.lines[-1], is_own(correlation, cpu)
    return Lanes(
        last.size, last.step, last.stride, last.out, last.phases,
        correlation.made // (1 if own else correlation.groups),
        cpu.lanes(BYTES[element_of(correlation)]),
        tuple(cpu.sums(n) for n in range(9) if cpu.sums(n) >= n), costs_of(cpu.vector_bytes), own,
        correlation.groups == 1, 1 if own else correlation.reduced // correlation.groups,
        cpu.dots if dots else 0.0,
    )  # fmt: skip
