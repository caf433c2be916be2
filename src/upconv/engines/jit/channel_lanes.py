"""Lanes: what the vectors of the channels kernel run along, and what each of them adds up.

What lives here: Lanes, and what of a problem and a processor they depend on. What never does: how
outputs are cut into blocks of lanes (channel_schedule.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from ...geometry import Phase
from ...problem import DType, Problem
from .cpu import Cpu
from .values import BYTES, DOUBLE, FLOAT


@dataclass(frozen=True, slots=True)
class Lanes:
    """What the choice of bundles depends on: the last axis's phases, lanes, and the processor.

    `alone` says that no other group's channels lie between those of two positions. `depth` is the
    input channels of a group; `dots` is the processor's, or 0 where they are multiplied as float32.
    """

    size: int
    stride: int
    out: int
    phases: tuple[Phase, ...]
    channels: int
    width: int
    registers: int
    masks: bool
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


def element_of(problem: Problem) -> str:
    """The type of computing."""
    return DOUBLE if problem.dtype is DType.FLOAT64 else FLOAT


def is_own(problem: Problem, cpu: Cpu) -> bool:
    """Whether lanes run over the channels of all groups, each with weights of its own."""
    own_in = problem.in_channels // problem.groups
    spread = problem.out_channels // problem.groups
    width = cpu.lanes(BYTES[element_of(problem)])
    return own_in == 1 and problem.groups > 1 and width % spread == 0 and width > spread


def can_dot(problem: Problem, cpu: Cpu) -> bool:
    """Whether there are dot-product instructions for a problem, and pairs to give them."""
    paired = problem.dtype is DType.BFLOAT16 and problem.in_channels >= 2 * problem.groups
    return cpu.dots > 0 and paired


@lru_cache(maxsize=64)
def lanes_of(problem: Problem, cpu: Cpu, dots: bool | None = None) -> Lanes:
    """What a problem's lanes are made of: with `dots` or without, or as is faster on `cpu`."""
    dots = can_dot(problem, cpu) and (cpu.dots > 1 if dots is None else dots)
    last, own = problem.axes[-1], is_own(problem, cpu)
    return Lanes(
        last.size, last.stride, last.out, last.phases(),
        problem.out_channels // (1 if own else problem.groups),
        cpu.lanes(BYTES[element_of(problem)]), cpu.registers, cpu.vector_bytes == 64, own,
        problem.groups == 1, 1 if own else problem.in_channels // problem.groups,
        cpu.dots if dots else 0.0,
    )  # fmt: skip
