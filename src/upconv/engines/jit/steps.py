"""Steps: calls of compiled functions with all addresses bound, so that a sequence of them runs
without Python (see program.py).

A `Launch` is the part of a step that is independent of arrays: a compiled function, argument
blocks, and the counter of finished jobs. A primitive's `run` and `steps` bind the same values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ..addresses import address_of
from ..base import Array
from .compile import Code
from .kernel_arguments import Block, Blocks
from .packing import Numbers
from .walk import Phase, phases


class Step(NamedTuple):
    """A walk that threads run together, and a counter that shows when it is over."""

    block: Block  # the step's copy of the arguments; its counters are zero
    threads: int  # how many threads may enter: scratch memory has one part for each
    over: int  # address of the last phase's counter of finished jobs
    jobs: int  # the value of this counter when the step is over
    flag: int = 0  # address of a counter that is 0 if results are valid; 0 if they always are
    weights: tuple[int, int] = (0, 0)  # address and bytes of the packed weight
    kept: tuple[object, ...] = ()  # objects that must stay alive for as long as the step may run


class Launch(NamedTuple):
    """A compiled function that threads run. `over` names the counter of its finished jobs, which
    reaches `jobs`, and `flag` names the counter that is 0 if results are valid."""

    blocks: Blocks
    work: int
    threads: int
    over: str
    jobs: int
    phases: Numbers
    flag: str = ""

    @classmethod
    def of_walk(
        cls, blocks: Blocks, work: int, threads: int, table: Numbers, flag: str = ""
    ) -> Launch:
        """Return the launch of a walk over a table of phases."""
        last = len(table) - 1
        return cls(blocks, work, threads, f"over_{last}", int(table[last, 1]), table, flag)

    def after_packing(self, pack: int, code: Code) -> Launch:
        """Return the launch that first packs a weight with the code at address `pack`. The value
        `pack_args` is that code's block; `code`, the walk's code, is kept alive by the caller."""
        packing = Phase(code.addresses["pack"], None, inner_count=self.threads)
        table = np.concatenate([phases(self.threads, packing), self.phases])
        values = {"phases": table.ctypes.data, "phase_count": len(table), "pack": pack}
        blocks = Blocks(self.blocks.bound(values))
        return Launch.of_walk(blocks, self.work, self.threads, table, self.flag)

    def step(self, values: Mapping[str, int], weight: Array | None, *kept: object) -> Step:
        """Bind values; some are addresses of memory that the `kept` objects own."""
        block = self.blocks.bound(values)
        flag = block.address_of(self.flag) if self.flag else 0
        weights = (0, 0) if weight is None else (address_of(weight), weight.nbytes)
        over = block.address_of(self.over)
        return Step(block, self.threads, over, self.jobs, flag, weights, (weight, *kept))
