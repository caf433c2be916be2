"""The tile kernel as an engine for `testing.check`, for a processor that the test describes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support.random_problems import case
from upconv.arrays import Array
from upconv.engines.base import Primitive
from upconv.engines.interior import bordered
from upconv.engines.jit.border_fill import JitBorder
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import AMX, Cpu, host
from upconv.engines.jit.kernel_choice import interior_of
from upconv.engines.jit.tiles.primitive import Tiles
from upconv.problem import DataLayout, DType, Problem

L1_SMALL, L1 = 512, 48 << 10
"""First-level caches, in bytes: the first is too small for the inputs of any tile."""
L2_SMALL, L2 = 20_000, 2 << 20
"""Second-level caches, in bytes: the first is too small for any layer, so data is split."""

needs_amx = pytest.mark.skipif(host().tiles != AMX, reason="this processor has no tile registers")
LOWERINGS = [pytest.param(AMX, id="AMX", marks=needs_amx), pytest.param("", id="vector code")]


def beginning_at(array: Array, offset: int) -> Array:
    """Return a copy that begins `offset` bytes after the start of a cache line."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    first = -memory.ctypes.data % 64 + offset
    copy = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class TilesAt(Tiles):
    """The kernel on channels-last operands that begin `offset` bytes into a cache line."""

    offset = 0

    def run(self, out: Array, a: Array, *others: Any) -> None:
        """Compute into `out`."""
        last = self.correlation.layout is DataLayout.NXC
        super().run(out, beginning_at(a, self.offset) if last else a, *others)


@dataclass(frozen=True)
class TileEngine:
    """The kernel with `tiles` as its instructions and caches of `l1` and `l2` bytes. Channels-last
    operands begin `offset` bytes into a cache line; they may be read in place if that is 0."""

    tiles: str = ""
    l1: int = L1
    l2: int = L2
    offset: int = 0
    name: str = "tiles"

    @property
    def cpu(self) -> Cpu:
        """This processor, with the engine's tiles and caches."""
        return replace(host(), tiles=self.tiles, l1=self.l1, l2=self.l2)

    @classmethod
    def numbered(cls, tiles: str, number: int) -> TileEngine:
        """Return the kernel with small or large caches, by the bits of a number."""
        return cls(tiles, (L1, L1_SMALL)[number & 1], (L2, L2_SMALL)[number >> 1 & 1])

    def kernel(self, problem: Problem, threads: int = 1) -> Tiles:
        """Return the kernel of a problem without a border."""
        kernel = TilesAt(Correlation.of(problem), threads, self.cpu)
        kernel.offset = self.offset
        return kernel

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """Build the kernel of the interior, and a border around it."""
        interior = interior_of(problem, margins=True)
        inner = interior.problem
        kernel = None if inner is None else self.kernel(inner, threads)
        return bordered(problem, interior, kernel, partial(JitBorder, threads=threads))


def random_layers(seeds: Iterator[int]) -> Iterator[tuple[int, Problem, int]]:
    """Yield seeds, random problems in bfloat16 or with rounded operands, and thread counts."""
    for seed in seeds:
        drawn = case(seed)
        kind = {"dtype": DType.BFLOAT16} if seed % 3 else {"dtype": DType.FLOAT32, "rounded": True}
        yield seed, drawn.problem.replace(**kind), drawn.threads
